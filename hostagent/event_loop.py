"""What an agent's event loop calls: a listening socket that hands over connections, and a state machine's timer."""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import Callable

_NEVER_NS = 1 << 63
_TICK_NS = 1_000_000
"""epoll and libuv count in milliseconds. What is rounded down would be called again and again until it is due."""


class Listener:
    """Owns a bound, listening, non-blocking stream socket from here on; counts when there are no descriptors left."""

    def __init__(
        self,
        sock: socket.socket,
        loop: asyncio.AbstractEventLoop,
        accepted: Callable[[socket.socket], None],
        exhausted: Callable[[], None],
    ) -> None:
        """`accepted` gets non-blocking sockets; `exhausted` is called when there was no descriptor left to accept a
        peer: it waits in the backlog."""
        self._sock = sock
        self._loop = loop
        self._accepted = accepted
        self._exhausted = exhausted
        loop.add_reader(sock.fileno(), self._readable)

    def close(self) -> None:
        """Listen no more."""
        self._loop.remove_reader(self._sock.fileno())
        self._sock.close()

    def _readable(self) -> None:
        try:
            sock, _ = self._sock.accept()
        except OSError as error:
            # Anything else: the peer went away before it was accepted.
            if error.errno in (errno.EMFILE, errno.ENFILE):
                self._exhausted()
            return
        sock.setblocking(False)
        self._accepted(sock)


class MachineTimer:
    """Calls `fire` at or after the time given last; being early is allowed and costs one call. It has one handle on the
    loop, moved only when it must fire earlier."""

    __slots__ = ("_fire", "_handle", "_loop", "due_ns")

    def __init__(self, loop: asyncio.AbstractEventLoop, fire: Callable[[], None]) -> None:
        self._loop = loop
        self._fire = fire
        self._handle: asyncio.Handle | None = None
        self.due_ns = _NEVER_NS
        """When it fires; a later time need not be set."""

    def set(self, due_ns: int, now_ns: int) -> None:
        """When the machine wants to be called next."""
        if self.due_ns <= due_ns:
            return
        if self._handle is not None:
            self._handle.cancel()
        self.due_ns = due_ns
        if due_ns <= now_ns:
            self._handle = self._loop.call_soon(self._run)
        else:
            self._handle = self._loop.call_later(-((now_ns - due_ns) // _TICK_NS) * _TICK_NS / 1e9, self._run)

    def cancel(self) -> None:
        """Never again."""
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def _run(self) -> None:
        self._handle = None
        self.due_ns = _NEVER_NS
        self._fire()
