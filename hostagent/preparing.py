"""Brings chunks from this node's disk into its pool for others than its engines: peers, and plans of promotions."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

from hostagent import limits
from hostagent.api.server import FetchResult
from hostagent.disk.store import DiskStore
from hostagent.fetching import Fetching
from hostagent.pool.chunks import ChunkPool
from kvproto.ids import ChunkKey


class Preparing:
    """One load a chunk, however many wait for it."""

    def __init__(self, pool: ChunkPool, disk: DiskStore, fetching: Fetching, loop: asyncio.AbstractEventLoop) -> None:
        self._pool = pool
        self._disk = disk
        self._fetching = fetching
        self._loop = loop
        self._waiting: dict[ChunkKey, list[Callable[[], None]]] = {}

    @property
    def under_way_count(self) -> int:
        return len(self._waiting)

    def prepare(self, key: ChunkKey, then: Callable[[], None]) -> bool:
        """See `TransportSink.prepare`."""
        waiting = self._waiting.get(key)
        if waiting is not None:
            waiting.append(then)
            return True
        if self._disk.find(key) is None or len(self._waiting) >= limits.PREPARED_MAX:
            return False
        self._waiting[key] = [then]
        self._fetching.fetch(
            [key], limits.PREPARE_DEADLINE_S, None, partial(self._ended, key), _unheard, from_disk_only=True
        )
        return True

    def promote(self, key: ChunkKey, done: Callable[[], None]) -> None:
        """See `tiering.Promoter`."""
        if not self.prepare(key, done):
            done()

    def _ended(self, key: ChunkKey, result: FetchResult) -> None:
        """The load is over, perhaps before `prepare` has returned."""
        self._loop.call_soon(self._tell, key, result)

    def _tell(self, key: ChunkKey, result: FetchResult) -> None:
        """The chunk is in the pool, or is not; it stays pinned until all who waited have had their turn."""
        for then in self._waiting.pop(key, ()):
            then()
        for chunk, _ in result.chunks:
            self._pool.unpin(chunk)


def _unheard(_leading: int) -> None:
    """Marks the fetch as no engine's."""
