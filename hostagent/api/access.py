"""Who may use the local API: the socket's mode and group, and the users."""

from __future__ import annotations

import array
import contextlib
import os
import socket
import struct
from dataclasses import dataclass

_CREDENTIALS = struct.Struct("3I")
_SO_PEERGROUPS = 59
"""Linux 4.13, include/uapi/asm-generic/socket.h."""
_GROUPS_MAX = 256
"""As many as Python's getsockopt has room for; of a process with more, only its own group counts."""


@dataclass(frozen=True, slots=True)
class Peer:
    """The process at the other end when it connected, as the kernel says (SO_PEERCRED, SO_PEERGROUPS; unix(7))."""

    process: int
    user: int
    groups: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class Access:
    """The `api` section. What the file system refuses never connects; users and group are asked of those who do: a
    socket can be reached by another path, or be passed on."""

    mode: int = 0o660
    group: int | None = None
    """Group of the socket, and of everybody who may connect, by group id; None: the agent's own group owns it."""
    users: frozenset[int] = frozenset()
    """User ids that may connect beside root and the agent's own; empty: whoever else is let in."""

    def apply(self, path: str) -> None:
        """Set group and mode of the socket. Raises OSError."""
        if self.group is not None:
            os.chown(path, -1, self.group)
        os.chmod(path, self.mode)

    def allows(self, peer: Peer) -> bool:
        """Whether a process of this user and these groups may connect."""
        if peer.user in (0, os.geteuid()):
            return True
        if self.users and peer.user not in self.users:
            return False
        return self.group is None or self.group in peer.groups


def peer_of(sock: socket.socket) -> Peer:
    """Whoever connected the socket. Raises OSError."""
    found = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    process, user, group = _CREDENTIALS.unpack(found)
    others = array.array("I")
    with contextlib.suppress(OSError):
        others.frombytes(sock.getsockopt(socket.SOL_SOCKET, _SO_PEERGROUPS, _GROUPS_MAX * others.itemsize))
    return Peer(process, user, frozenset({group, *others}))
