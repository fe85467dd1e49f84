"""A node's disk tier on a virtual clock: the agent's own index, values and background traffic over a modelled device.

The device is two queues, reads and writes, each served in order at the device's rate; nothing is lost on it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, cast

from hostagent import limits
from hostagent.disk.config import DiskConfig
from hostagent.disk.state import DiskState
from hostagent.pool.chunks import Chunk, ChunkPool
from hostagent.tiering import Tiering
from kvproto.ids import ChunkKey
from kvproto.value import Loss, Touch
from planner.cluster.clock import VirtualClock

READ_LATENCY_S: Final = 100e-6
"""Of an NVMe device, from asking to the first byte."""


class VirtualDisk:
    """Owns what is stored. Loads go into FILLING chunks of the node's DRAM, one load a chunk."""

    def __init__(self, clock: VirtualClock, dram: ChunkPool, size_bytes: int, bytes_per_s: float, loss: Loss) -> None:
        """`loss`: what losing a stored chunk costs (`PoolValues`)."""
        align = limits.EXTENT_ALIGN_BYTES
        self.config = DiskConfig(path="", size_bytes=size_bytes // align * align)
        self.state = DiskState.ON
        self.pool = ChunkPool(self.config.size_bytes, align, lambda: clock.now_ns, loss)
        self.tiering: Tiering | None = None
        self._clock = clock
        self._dram = dram
        self._rate = bytes_per_s
        self._reads_end_s = 0.0
        self._writes_end_s = 0.0
        self._loading: dict[ChunkKey, list[Callable[[], None]]] = {}
        self._changed: Callable[[], None] = lambda: None

    def connect(self, busy: Callable[[], bool], changed: Callable[[], None]) -> None:
        """Begin with background traffic. `busy()`: an engine waits for a fetch; `changed()`: chunks came or went."""
        self._changed = changed
        # It uses two methods of its loop, which the virtual clock has.
        loop = cast("Any", self._clock)
        self.tiering = Tiering(self._dram, self, self, busy, changed, loop, lambda: self._clock.now_ns)
        self.tiering.start()

    # -- what is there

    def find(self, key: ChunkKey) -> Chunk | None:
        return self.pool.find(key)

    def stored_chunks(self) -> list[Chunk]:
        return self.pool.ready_chunks()

    def take_changes(self) -> tuple[list[Chunk], list[ChunkKey]]:
        return self.pool.take_changes()

    def is_loading(self, key: ChunkKey) -> bool:
        return key in self._loading

    def fetched(self, touches: Sequence[Touch]) -> None:
        """An engine asked for these."""
        self.pool.fetched(touches)

    def arrived(self, chunk: Chunk) -> None:
        """A chunk became READY in DRAM."""
        if self.tiering is not None:
            self.tiering.arrived(chunk)

    def quiet(self) -> None:
        """No engine waits any more."""
        if self.tiering is not None:
            self.tiering.pump_soon()

    # -- transfers

    def save(self, chunk: Chunk, done: Callable[[bool], None]) -> bool:
        """See `hostagent.tiering.Store`."""
        place = self.pool.reserve(chunk.key, chunk.parent, chunk.size_bytes, chunk.position)
        if not isinstance(place, Chunk):
            return False
        self._dram.pin(chunk)
        self._writes_end_s = max(self._clock.now_s, self._writes_end_s) + chunk.size_bytes / self._rate

        def written() -> None:
            self._dram.unpin(chunk)
            self.pool.commit(place, chunk.checksum)
            done(True)

        self._clock.call_at(self._writes_end_s, written)
        return True

    def load(self, key: ChunkKey, done: Callable[[], None]) -> bool:
        """Bring a stored chunk into DRAM; `done` comes later, and finds it there. False: it is not stored, or there is
        no room for it."""
        waiting = self._loading.get(key)
        if waiting is not None:
            waiting.append(done)
            return True
        stored = self.pool.find(key)
        if stored is None:
            return False
        into = self._dram.reserve(key, stored.parent, stored.size_bytes, stored.position)
        if not isinstance(into, Chunk):
            return False
        self.pool.pin(stored)
        self._loading[key] = [done]
        begins_s = max(self._clock.now_s, self._reads_end_s)
        self._reads_end_s = begins_s + stored.size_bytes / self._rate
        self._clock.call_at(self._reads_end_s + READ_LATENCY_S, self._loaded, stored, into)
        return True

    def _loaded(self, stored: Chunk, into: Chunk) -> None:
        self.pool.unpin(stored)
        self._dram.commit(into, stored.checksum)
        self._changed()
        # Pinned until all who waited have had their turn.
        self._dram.pin(into)
        for done in self._loading.pop(stored.key):
            done()
        self._dram.unpin(into)

    def promote(self, key: ChunkKey, done: Callable[[], None]) -> None:
        """See `hostagent.tiering.Promoter`."""
        if not self.load(key, done):
            done()
