"""Keeps a gRPC server's port open to others while somebody opens connections and says nothing.

gRPC accepts connections by itself. It ends one whose handshake takes too long, and does not count them by peer. So the
doorkeeper looks at the process's sockets every now and then: of those at the port from which no RPC has come, each
address may have some, and all together more. The oldest ones beyond that end.
"""

from __future__ import annotations

import contextlib
import ipaddress
import os
import resource
import socket
import urllib.parse
from collections import Counter
from dataclasses import dataclass

LOOK_S = 0.25
HANDSHAKE_MS = 10_000
SILENT_PER_ADDRESS_MAX = 128
SILENT_MAX = 1024
DESCRIPTORS_MAX = 1 << 16
"""More than one address can make connections in LOOK_S, and all of them in the time of a handshake."""
OPTIONS = (("grpc.server_handshake_timeout_ms", HANDSHAKE_MS), ("grpc.max_allowed_incoming_connections", 1 << 14))
"""Of a server that a doorkeeper watches."""
_FOLDER = "/proc/self/fd"

assert SILENT_PER_ADDRESS_MAX < SILENT_MAX < 1 << 14 < DESCRIPTORS_MAX


def raise_descriptors_limit() -> None:
    """As many file descriptors as this process may have, up to DESCRIPTORS_MAX: service managers start with 1,024."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = DESCRIPTORS_MAX if hard == resource.RLIM_INFINITY else min(hard, DESCRIPTORS_MAX)
    if soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


@dataclass(frozen=True, slots=True)
class Connection:
    """`number`: its inode, which grows from socket to socket; `peer`: HOST:PORT as gRPC writes it."""

    number: int
    descriptor: int
    address: str
    peer: str


def too_many(silent: list[Connection]) -> list[Connection]:
    """The oldest ones of each address beyond its share, and of all beyond theirs."""
    kept: list[Connection] = []
    ended: list[Connection] = []
    counts: Counter[str] = Counter()
    for one in sorted(silent, key=lambda one: one.number, reverse=True):
        fits = counts[one.address] < SILENT_PER_ADDRESS_MAX and len(kept) < SILENT_MAX
        (kept if fits else ended).append(one)
        counts[one.address] += fits
    return ended


class Doorkeeper:
    """Of one port of a server in this process. `spoke` may be called from any thread."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._spoken: set[str] = set()
        self._seen: dict[str, Connection | None] = {}
        """By what the descriptor is; None: no connection at the port."""

    def spoke(self, peer: str) -> None:
        """An RPC has come from this peer, as gRPC's context names it."""
        self._spoken.add(urllib.parse.unquote(peer).partition(":")[2])

    def look(self) -> int:
        """End the silent connections that are too many; how many those were."""
        spoken = set(self._spoken)  # those that speak from here on have connections that may not be listed below
        here = self._connections()
        self._spoken.difference_update(spoken - {one.peer for one in here})
        ended = too_many([one for one in here if one.peer not in self._spoken])
        for one in ended:
            with contextlib.suppress(OSError), socket.socket(fileno=os.dup(one.descriptor)) as copy:
                if os.fstat(copy.fileno()).st_ino == one.number:  # else another file has its descriptor by now
                    copy.shutdown(socket.SHUT_RDWR)
        return len(ended)

    def _connections(self) -> list[Connection]:
        seen: dict[str, Connection | None] = {}
        for name in os.listdir(_FOLDER):
            with contextlib.suppress(OSError):  # closed meanwhile
                what = os.readlink(f"{_FOLDER}/{name}")
                if what.startswith("socket:"):
                    known = self._seen.get(what)
                    seen[what] = self._examined(int(name), what) if what not in self._seen else known
        self._seen = seen
        return [one for one in seen.values() if one is not None]

    def _examined(self, descriptor: int, what: str) -> Connection | None:
        with socket.socket(fileno=os.dup(descriptor)) as copy:
            if copy.family not in (socket.AF_INET, socket.AF_INET6) or copy.getsockname()[1] != self._port:
                return None
            try:
                host, port = copy.getpeername()[:2]
            except OSError:  # the listener; or the peer has gone
                return None
        address = ipaddress.ip_address(host.partition("%")[0])
        address = getattr(address, "ipv4_mapped", None) or address
        shown = f"[{address}]" if address.version == 6 else str(address)
        return Connection(int(what[8:-1]), descriptor, str(address), f"{shown}:{port}")
