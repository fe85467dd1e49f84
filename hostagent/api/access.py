"""Who may use the local API: the socket's mode and group, the users, and how many connections a process gets."""

from __future__ import annotations

import os
import socket
import struct
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from hostagent import limits
from kvclient.messages import Status

_CREDENTIALS = struct.Struct("3i")


@dataclass(frozen=True, slots=True)
class Access:
    """The `api` section. What the file system refuses never connects; `users` is asked of those who do."""

    mode: int = 0o660
    group: int | None = None
    """Owner of the socket by group id; None: the agent's own group."""
    users: frozenset[int] = frozenset()
    """User ids that may connect beside root and the agent's own; empty: whoever the file system lets in."""

    def apply(self, path: str) -> None:
        """Set group and mode of the socket. Raises OSError."""
        if self.group is not None:
            os.chown(path, -1, self.group)
        os.chmod(path, self.mode)

    def allows(self, user: int) -> bool:
        """Whether a process of this user may connect."""
        return not self.users or user in self.users or user in (0, os.geteuid())


@dataclass(frozen=True, slots=True)
class Peer:
    """The process at the other end, as the kernel says (SO_PEERCRED, unix(7))."""

    process: int
    user: int


def peer_of(sock: socket.socket) -> Peer:
    """Whoever connected the socket. Raises OSError."""
    process, user, _ = _CREDENTIALS.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
    return Peer(process, user)


class Admission:
    """Counts connections and refuses those beyond the limits."""

    def __init__(self, access: Access, refused: Callable[[Status], None]) -> None:
        """`refused(why)` hears of every refusal."""
        self.access = access
        self._refused = refused
        self._by_process: Counter[int] = Counter()

    def admit(self, peer: Peer) -> Status:
        """OK: count the connection, and call `left` when it ends. Else why not."""
        status = Status.OK
        if not self.access.allows(peer.user):
            status = Status.FORBIDDEN
        elif (
            self._by_process.total() >= limits.API_CONNECTIONS_MAX
            or self._by_process[peer.process] >= limits.API_CONNECTIONS_PER_PROCESS_MAX
        ):
            status = Status.BUSY
        if status is Status.OK:
            self._by_process[peer.process] += 1
        else:
            self._refused(status)
        return status

    def left(self, peer: Peer) -> None:
        """A connection that was admitted has ended."""
        self._by_process[peer.process] -= 1
        if not self._by_process[peer.process]:
            del self._by_process[peer.process]
