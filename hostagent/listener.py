"""A listening socket on the event loop: hands over each connection, counts when there are no descriptors left."""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import Callable


class Listener:
    """Owns a bound, listening, non-blocking stream socket from here on."""

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
