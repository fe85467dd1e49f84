"""Tries whether another node answers: a TCP connection to its read endpoint on a rail, ended as soon as it is made."""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import Callable, Sequence
from typing import Final

from hostagent import limits
from hostagent.transport.base import Way
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

    def __init__(self, ways_to: Callable[[str], Sequence[Way]], ended: Callable[[str, bool | None], None]) -> None:
        """`ways_to`: see `HostTransport.ways_to`; `ended(node, reached)`: is told each outcome; None: nothing was
        learned."""
        self._ways_to = ways_to
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
            verdicts = await asyncio.gather(*(connects(way, wait_s) for way in self._ways_to(endpoint)))
            reached = True if True in verdicts else None if None in verdicts else False
            if reached is not False:
                break
        self._ended(node, reached)


async def connects(way: Way, wait_s: float) -> bool | None:
    """Whether a connection can be made there; None: nothing was learned."""
    try:
        sock, code = begin_connecting(way.endpoint, way.own_address)
    except OSError:  # no descriptors, or no sockets of that family: nothing is known of the path
        return None
    with sock:
        if code == errno.EINPROGRESS:
            code = await _connected(sock, wait_s)
    return _VERDICTS.get(code)


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
