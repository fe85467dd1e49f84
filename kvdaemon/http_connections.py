"""Who is connected to an HTTP server, and which connection ends when another one wants in."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

BACKLOG = 64
"""Connections that the kernel keeps for the server, and that one turn of the loop accepts."""
CONNECTIONS_PER_PEER_MAX = 96
"""From one address. More than one turn accepts: whose request came along is answered before others push it out."""
CONNECTIONS_MAX = 256
"""Of all; streams do not count, they have a limit of their own. The daemon keeps its file descriptors."""
STREAMS_MAX = 16
"""Connections that may be streams. Further streams get 503, so that metrics and health stay reachable."""
STREAMS_PER_ADDRESS_MAX = 8
"""Of one address: some places stay for others."""
assert BACKLOG < CONNECTIONS_PER_PEER_MAX < CONNECTIONS_MAX


@dataclass(slots=True)
class _Connection:
    writer: asyncio.StreamWriter
    address: str
    is_stream: bool = False
    is_ended: bool = False


class Connections:
    """In the order in which they came. No one is turned away: the oldest one of an address that has its share ends, and
    where all have too many, the oldest one of the address that has most. So who connects and is silent, or does not
    take its answer, shuts out itself."""

    def __init__(self) -> None:
        self._all: dict[asyncio.Task[None], _Connection] = {}

    def __len__(self) -> int:
        return len(self._all)

    def enter(self, task: asyncio.Task[None], writer: asyncio.StreamWriter) -> None:
        """`task` serves a new one."""
        peer = writer.get_extra_info("peername")
        address = peer[0] if peer else ""
        waiting = [one for one in self._all.values() if not one.is_stream and not one.is_ended]
        counts = Counter(one.address for one in waiting)
        if counts[address] >= CONNECTIONS_PER_PEER_MAX:
            _end_oldest(one for one in waiting if one.address == address)
        elif len(waiting) >= CONNECTIONS_MAX:
            ((greediest, _),) = counts.most_common(1)
            _end_oldest(one for one in waiting if one.address == greediest)
        self._all[task] = _Connection(writer, address)

    def leave(self, task: asyncio.Task[None]) -> None:
        """It has ended."""
        self._all.pop(task).writer.transport.abort()

    def becomes_stream(self, task: asyncio.Task[None]) -> str:
        """It goes on for as long as its peer likes, and does not count any more. Or why it may not."""
        own, streams = self._all[task], [one.address for one in self._all.values() if one.is_stream]
        if len(streams) >= STREAMS_MAX:
            return f"{STREAMS_MAX} watch already: try again later"
        if streams.count(own.address) >= STREAMS_PER_ADDRESS_MAX:
            return f"{own.address} has {STREAMS_PER_ADDRESS_MAX} streams already: close one of them"
        own.is_stream = True
        return ""

    async def end_all(self) -> None:
        """End every one, and wait for those who serve them."""
        for one in self._all.values():
            one.writer.transport.abort()
        if self._all:
            await asyncio.wait(self._all)


def _end_oldest(connections: Iterable[_Connection]) -> None:
    oldest = next(iter(connections))
    oldest.is_ended = True
    oldest.writer.transport.abort()
