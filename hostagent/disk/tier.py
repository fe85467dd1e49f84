"""The disk tier as the agent sees it: one object, for nodes with a disk and for nodes without.

Puts together the store, the background traffic to and from it, and loads for peers. Without a disk nothing is here.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from prometheus_client import CollectorRegistry

from hostagent import limits
from hostagent.disk.config import DiskConfig
from hostagent.disk.state import DiskState
from hostagent.disk.store import DiskStore, LoadOutcome
from hostagent.fetching import Fetching
from hostagent.pool.chunks import Chunk, ChunkPool
from hostagent.pool.memory import PoolMemory
from hostagent.preparing import Preparing
from hostagent.tier_metrics import WatchedDisk
from hostagent.tiering import Tiering
from kvproto.ids import ChunkKey
from kvproto.value import Loss, Touch


class DiskTier:
    """`open` before anything is bound, `connect` when fetches are possible, `start` at the end, `flush`, `close`."""

    def __init__(
        self,
        config: DiskConfig | None,
        memory: PoolMemory,
        pool: ChunkPool,
        loop: asyncio.AbstractEventLoop,
        loss: Loss | None = None,
    ) -> None:
        """`loss`: what losing a stored chunk costs (`PoolValues`)."""
        self._config = config
        self._pool = pool
        self._loop = loop
        self.store: DiskStore | None = None
        self.tiering: Tiering | None = None
        self.preparing: Preparing | None = None
        if config is not None:
            self.store = DiskStore(config, memory, pool, loop, partial(_index, loss))

    # ------------------------------------------------------------------ lifetime

    async def open(self) -> None:
        """Find what the last agent left."""
        if self.store is not None:
            await self.store.open()

    def connect(self, fetching: Fetching, changed: Callable[[], None], registry: CollectorRegistry) -> None:
        """Loads go through the agent's fetching; `changed()`: chunks came to the disk or left it."""
        if self.store is None:
            return
        self.preparing = Preparing(self._pool, self.store, fetching, self._loop)
        self.tiering = Tiering(self._pool, self.store, self.preparing, lambda: fetching.busy, changed, self._loop)
        registry.register(WatchedDisk(self.store, self.tiering))

    def start(self) -> None:
        """Begin with background traffic."""
        if self.tiering is not None:
            self.tiering.start()

    async def flush(self) -> None:
        """Write what is not on disk yet, as long as an orderly stop may take."""
        if self.tiering is not None and self._config is not None:
            await self.tiering.flush(self._config.flush_s)

    async def close(self) -> None:
        """End everything."""
        if self.tiering is not None:
            self.tiering.close()
        if self.store is not None:
            await self.store.close()

    # ------------------------------------------------------------------ what is there

    def find(self, key: ChunkKey) -> Chunk | None:
        """The stored chunk."""
        return self.store.find(key) if self.store is not None else None

    def load(self, key: ChunkKey, into: Chunk, done: Callable[[LoadOutcome, int], None]) -> None:
        """See `DiskStore.load`."""
        if self.store is None:
            self._loop.call_soon(done, LoadOutcome.ABSENT, 0)
        else:
            self.store.load(key, into, done)

    def drop(self, key: ChunkKey) -> bool:
        """Forget a stored chunk; False: it is not here."""
        return self.store is not None and self.store.drop(key)

    def stored_chunks(self) -> list[Chunk]:
        """All that can be loaded."""
        return self.store.stored_chunks() if self.store is not None else []

    def take_changes(self) -> tuple[list[Chunk], list[ChunkKey]]:
        """(chunks stored and still there, keys gone) since the last call."""
        return self.store.take_changes() if self.store is not None else ([], [])

    # ------------------------------------------------------------------ what happens elsewhere

    def arrived(self, chunk: Chunk) -> None:
        """A chunk became READY in the pool."""
        if self.tiering is not None:
            self.tiering.arrived(chunk)

    def quiet(self) -> None:
        """No engine waits any more."""
        if self.tiering is not None:
            self.tiering.pump_soon()

    def prepare(self, key: ChunkKey, then: Callable[[], None]) -> bool:
        """See `TransportSink.prepare`."""
        return self.preparing is not None and self.preparing.prepare(key, then)

    def hear(self, key: ChunkKey, score: float) -> None:
        """See `ChunkPool.hear`."""
        if self.store is not None:
            self.store.pool.hear(key, score)

    def fetched(self, touches: Sequence[Touch]) -> None:
        """An engine asked for these: what the tier is to keep is learned from it, wherever they were."""
        if self.store is not None:
            self.store.fetched(touches)

    # ------------------------------------------------------------------ figures

    @property
    def size_bytes(self) -> int:
        """What the tier may hold; 0 while it is off."""
        return self.store.pool.usage().size_bytes if self.store is not None and self._is_on else 0

    @property
    def used_bytes(self) -> int:
        """What it holds."""
        if self.store is None or not self._is_on:
            return 0
        usage = self.store.pool.usage()
        return usage.size_bytes - usage.free_bytes

    @property
    def _is_on(self) -> bool:
        return self.store is not None and self.store.state is not DiskState.OFF

    def health(self) -> Mapping[str, object]:
        """For /healthz."""
        if self.store is None:
            return {"state": DiskState.OFF.value, "reason": "not configured"}
        return {
            "state": self.store.state.value,
            "reason": self.store.reason,
            "size_bytes": self.store.pool.usage().size_bytes,
            "free_bytes": self.store.pool.usage().free_bytes,
            "chunks": len(self.stored_chunks()),
        }


def _index(loss: Loss | None, size_bytes: int) -> ChunkPool:
    return ChunkPool(size_bytes, limits.EXTENT_ALIGN_BYTES, time.monotonic_ns, loss)
