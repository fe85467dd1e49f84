"""What the kernel says of interfaces is read; what is cut short, or no such message, is passed over."""

from __future__ import annotations

import socket
import struct

from hypothesis import given
from hypothesis import strategies as st

from hostagent.transport.interface_watch import Place
from hostagent.transport.rtnetlink import AddressChange, LinkChange, changes_of

V4, V6 = socket.inet_aton("10.99.0.3"), socket.inet_pton(socket.AF_INET6, "fd00::3")


def attribute(kind: int, value: bytes) -> bytes:
    return struct.pack("=HH", 4 + len(value), kind) + value + bytes(-len(value) % 4)


def message(kind: int, body: bytes) -> bytes:
    return struct.pack("=IHHII", 16 + len(body), kind, 0, 7, 0) + body + bytes(-len(body) % 4)


def link(kind: int, index: int, name: bytes) -> bytes:
    return message(kind, struct.pack("=BxHiII", 0, 1, index, 0x1043, 0) + attribute(3, name + b"\0"))


def address(kind: int, family: int, index: int, *attributes: bytes) -> bytes:
    return message(kind, struct.pack("=BBBBI", family, 24, 0, 0, index) + b"".join(attributes))


TOLD = [
    (link(16, 5, b"eth1"), LinkChange(5, "eth1", lost=False)),
    (link(17, 5, b"eth1.100"), LinkChange(5, "eth1.100", lost=True)),
    (address(20, 2, 5, attribute(1, V4), attribute(2, V4)), AddressChange(5, "10.99.0.3", lost=False)),
    # A point-to-point link: the first is the other end's.
    (address(21, 2, 5, attribute(1, bytes(4)), attribute(2, V4)), AddressChange(5, "10.99.0.3", lost=True)),
    (address(20, 10, 6, attribute(1, V6)), AddressChange(6, "fd00::3", lost=False)),
]
PASSED_OVER = [
    message(24, bytes(12)),
    message(20, b"\x02"),
    message(16, bytes(8)),
    address(20, 2, 5),
    address(20, 2, 5, attribute(1, V6)),
    address(20, 7, 5, attribute(1, V4)),
]


def test_changes_are_read_in_order() -> None:
    datagram = b"".join(told + passed for (told, _), passed in zip(TOLD, PASSED_OVER, strict=False))
    assert list(changes_of(datagram)) == [change for _, change in TOLD]
    assert list(changes_of(b"".join(PASSED_OVER))) == []


def test_what_is_cut_short_ends_the_reading() -> None:
    whole = b"".join(told for told, _ in TOLD)
    for size in range(len(whole)):
        changes = list(changes_of(whole[:size]))
        assert changes == [change for _, change in TOLD][: len(changes)]
    assert list(changes_of(struct.pack("=IHHII", 0, 16, 0, 0, 0) + whole)) == [], "a length of nothing"
    assert list(changes_of(struct.pack("=IHHII", 0xFFFF_FFF0, 16, 0, 0, 0) + whole)) == []


@given(st.binary(max_size=200), st.sampled_from([told for told, _ in TOLD]), st.integers(0, 60))
def test_any_bytes_are_read_to_an_end(noise: bytes, told: bytes, at: int) -> None:
    for change in changes_of(told[:at] + noise + told[at:]):
        assert change.index >= -(1 << 31)
        assert len(change.name if isinstance(change, LinkChange) else change.address) <= 200


def test_what_unbinds_sockets() -> None:
    place = Place("10.99.0.3", "10.99.0.3", "eth1", 5)
    assert place.is_lost_by(LinkChange(5, "eth1", lost=True)) and place.is_lost_by(
        AddressChange(5, "10.99.0.3", lost=True)
    )
    assert not place.is_lost_by(LinkChange(6, "eth2", lost=True))
    assert not place.is_lost_by(LinkChange(5, "eth1", lost=False))
    assert not place.is_lost_by(AddressChange(5, "10.99.0.4", lost=True)), "a second address went"
    # The same name again, ours on another interface, and whatever else happens to ours.
    assert place.is_concerned_by(LinkChange(9, "eth1", lost=False))
    assert place.is_concerned_by(AddressChange(9, "10.99.0.3", lost=False))
    assert place.is_concerned_by(AddressChange(5, "10.99.0.4", lost=False))
    assert not place.is_concerned_by(AddressChange(6, "10.99.0.4", lost=False))
    assert not place.is_concerned_by(LinkChange(6, "eth2", lost=True))
