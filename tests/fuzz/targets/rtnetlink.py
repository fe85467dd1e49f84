"""What comes through a netlink socket: the kernel's, which changes from release to release."""

from __future__ import annotations

import ipaddress
from random import Random
from typing import ClassVar

from hostagent.transport.rtnetlink import LinkChange, changes_of
from tests.fuzz.target import Case, check
from tests.unit.hostagent.test_rtnetlink import PASSED_OVER, TOLD


class Rtnetlink:
    """A step: one datagram."""

    name: ClassVar[str] = "rtnetlink"
    checks: ClassVar[str] = "changes of interfaces and addresses, never more than the datagram has room for"
    limit_s: ClassVar[float] = 1.0
    words: ClassVar[tuple[bytes, ...]] = (b"eth1\0", b"\0\0\0\0", b"\xff\xff\xff\xff", b"\x10\0", b"\x15\0")

    def fresh(self, random: Random) -> Case:
        known = [*(told for told, _ in TOLD), *PASSED_OVER]
        return [b"".join(random.choices(known, k=random.randrange(1, 6))) for _ in range(4)]

    def run(self, case: Case) -> None:
        for datagram in case:
            changes = list(changes_of(datagram))
            check(len(changes) * 24 <= len(datagram), f"{len(changes)} changes of {len(datagram)} bytes")
            for change in changes:
                if isinstance(change, LinkChange):
                    check(len(change.name) <= len(datagram), "a name longer than what came")
                else:
                    ipaddress.ip_address(change.address)

    def close(self) -> None:
        """Nothing is open."""
