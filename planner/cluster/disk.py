"""A node's disk on a virtual clock: the index that the agent's core works with, over a modelled device.

The device is two queues, reads and writes, each served in order at the device's rate; nothing is lost on it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from hostagent.core.disk_index import DiskState
from hostagent.pool.chunks import Chunk, ChunkPool
from hostagent.tree import Hashed
from kvchunk.ids import ChunkKey
from planner.cluster.clock import VirtualClock

READ_LATENCY_S: Final = 100e-6
"""Of an NVMe device, from asking to the first byte."""


class VirtualDisk:
    """See `hostagent.core.sources.DiskIndex`."""

    def __init__(self, clock: VirtualClock, pool: ChunkPool, bytes_per_s: float) -> None:
        """`pool`: the index of the stored chunks."""
        self.state = DiskState.ON
        self.pool = pool
        self._clock = clock
        self._rate = bytes_per_s
        self._reads_end_s = 0.0
        self._writes_end_s = 0.0

    def find(self, key: ChunkKey) -> Chunk | None:
        return self.pool.find(key)

    def stored_chunks(self) -> list[Chunk]:
        return self.pool.ready_chunks()

    def take_changes(self) -> tuple[list[Chunk], list[ChunkKey]]:
        return self.pool.take_changes()

    def save(self, chunk: Chunk, then: Callable[[bool], None]) -> None:
        """Write a chunk; `then` comes later, False: there is no room for it."""
        place = self.pool.reserve(chunk.key, chunk.parent, chunk.size_bytes, chunk.position)
        if not isinstance(place, Chunk):
            self._clock.call_later(0.0, then, False)
            return
        self._writes_end_s = max(self._clock.now_s, self._writes_end_s) + chunk.size_bytes / self._rate

        def written() -> None:
            self.pool.commit(place, Hashed(chunk.digest))
            then(True)

        self._clock.call_at(self._writes_end_s, written)

    def load(self, key: ChunkKey, then: Callable[[Chunk | None], None]) -> None:
        """Read a chunk; `then` comes later, None: it is no longer stored."""
        stored = self.pool.find(key)
        if stored is None:
            self._clock.call_later(0.0, then, None)
            return
        self.pool.pin(stored)
        self._reads_end_s = max(self._clock.now_s, self._reads_end_s) + stored.size_bytes / self._rate

        def loaded() -> None:
            self.pool.unpin(stored)
            then(stored)

        self._clock.call_at(self._reads_end_s + READ_LATENCY_S, loaded)
