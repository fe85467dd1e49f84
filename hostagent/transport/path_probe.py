"""Tries whether another node's address answers: a TCP connection to its read endpoint, ended as soon as it is made."""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import Callable
from typing import Final

from hostagent import limits
from hostagent.transport.peer_connection import begin_connecting

_VERDICTS: Final = {
    0: True,
    errno.ECONNREFUSED: True,  # a host whose agent does not listen is there, too
    errno.ETIMEDOUT: False,
    errno.EHOSTUNREACH: False,
    errno.ENETUNREACH: False,
}
"""Whether the other node was reached, by errno; others, an own address that is gone among them, say nothing of it."""


class PathProbes:
    """One at a time for each node; the core asks for no second one before it has heard of the first."""

    def __init__(self, own_address: Callable[[], str], ended: Callable[[str, bool | None], None]) -> None:
        """`own_address()`: where connections come from; `ended(node, reached)`: is told each outcome;
        None: nothing was learned."""
        self._own_address = own_address
        self._ended = ended
        self._tasks: set[asyncio.Task[None]] = set()

    def probe(self, node: str, endpoint: str) -> None:
        """Try, and tell."""
        task = asyncio.get_running_loop().create_task(self._probe(node, endpoint), name=f"probe of {node}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def close(self) -> None:
        """Tell nothing more."""
        for task in self._tasks:
            task.cancel()

    async def _probe(self, node: str, endpoint: str) -> None:
        reached: bool | None = None
        for wait_s in limits.PATH_TRIES_S:
            try:
                sock, code = begin_connecting(endpoint, self._own_address())
            except OSError:  # no descriptors, or no sockets of that family: nothing is known of the path
                break
            with sock:
                if code == errno.EINPROGRESS:
                    code = await _connected(sock, wait_s)
            reached = _VERDICTS.get(code)
            if reached is not False:
                break
        self._ended(node, reached)


async def _connected(sock: socket.socket, wait_s: float) -> int:
    """How connecting ended: an errno."""
    loop = asyncio.get_running_loop()
    over = asyncio.Event()
    loop.add_writer(sock, over.set)
    try:
        async with asyncio.timeout(wait_s):
            await over.wait()
    except TimeoutError:
        return errno.ETIMEDOUT
    finally:
        loop.remove_writer(sock)
    return sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
