"""Background traffic between this node's pool and its disk: carries out the plans of `kvproto.tiers.flow`.

Owns what is not on disk yet, and two lanes, one of writes and one of promotions, both below what engines wait for.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from functools import partial
from typing import Final, Protocol

from hostagent.disk.config import DiskConfig
from hostagent.disk.state import DiskState
from hostagent.pool.chunks import Chunk, ChunkPool
from kvproto.ids import ChunkKey
from kvproto.tiers.flow import PROMOTE_FREE_SHARE, Stored, plan_demotions, plan_promotions
from kvproto.tiers.lane import Lane, LaneLimits

WRITES_AT_ONCE: Final = 2
"""One being written, the next one ready for the writing thread; both are pinned in DRAM meanwhile."""
WRITES_WAITING_MAX: Final = 8
"""Few: the plan is made anew as the queue drains, so that it follows what has become urgent."""
PLANNED_MAX: Final = 32
PROMOTIONS_AT_ONCE: Final = 2
PROMOTIONS_WAITING_MAX: Final = 64
DEAREST_LOOKED_AT: Final = 1024
PATIENCE_NS: Final = 250_000_000
LOOK_AGAIN_S: Final = 10.0
"""Promotions are planned so often, besides when something is heard."""


class Store(Protocol):
    """What is on this node's disk, and its order of eviction."""

    config: DiskConfig
    state: DiskState
    pool: ChunkPool

    def find(self, key: ChunkKey) -> Chunk | None: ...
    def save(self, chunk: Chunk, done: Callable[[bool], None]) -> bool:
        """Begin to store a READY chunk; False: refused. `done(stored)` comes later, never inside the call."""
        ...


class Promoter(Protocol):
    """Who loads a chunk from disk into the pool; `done` comes once, later or at once."""

    def promote(self, key: ChunkKey, done: Callable[[], None]) -> None: ...


class Tiering:
    """One node's. Everything happens on the event loop."""

    def __init__(
        self,
        pool: ChunkPool,
        disk: Store,
        promoter: Promoter,
        busy: Callable[[], bool],
        changed: Callable[[], None],
        loop: asyncio.AbstractEventLoop,
        now_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        """`busy()`: an engine waits for something; `changed()`: chunks came to the disk or left it."""
        self._now_ns = now_ns
        self._pool = pool
        self._disk = disk
        self._promoter = promoter
        self._busy = busy
        self._changed = changed
        self._loop = loop
        self._unsaved: dict[ChunkKey, None] = {}
        self.refused_count = 0
        """Chunks that the disk would not take: worth less than what it has."""
        self.writes: Lane[ChunkKey] = Lane(
            LaneLimits(
                waiting_max=WRITES_WAITING_MAX,
                at_once=WRITES_AT_ONCE,
                patience_ns=PATIENCE_NS,
                bytes_per_s=disk.config.write_bytes_per_s,
            )
        )
        self.promotions: Lane[ChunkKey] = Lane(
            LaneLimits(PROMOTIONS_WAITING_MAX, PROMOTIONS_AT_ONCE, patience_ns=PATIENCE_NS)
        )
        self._pump_timer: asyncio.TimerHandle | None = None
        self._look_timer: asyncio.TimerHandle | None = None
        self._flushed: asyncio.Event | None = None

    @property
    def unsaved_count(self) -> int:
        """Chunks that a crash would lose."""
        return len(self._unsaved)

    def start(self) -> None:
        """Begin: what the pool has is not on disk, what the disk has is not in the pool."""
        for chunk in self._pool.ready_chunks():
            self.arrived(chunk)
        self._look()

    def close(self) -> None:
        """Plan nothing any more."""
        for timer in (self._pump_timer, self._look_timer):
            if timer is not None:
                timer.cancel()
        self._pump_timer = self._look_timer = None

    async def flush(self, limit_s: float) -> None:
        """Write what is not on disk yet, as far as it goes in `limit_s`; engines are gone, so nothing has to wait."""
        if self._disk.state is not DiskState.ON:
            return
        self._flushed = asyncio.Event()
        self._pump()
        if self._unsaved:
            try:
                async with asyncio.timeout(limit_s):
                    await self._flushed.wait()
            except TimeoutError:
                pass

    def arrived(self, chunk: Chunk) -> None:
        """A chunk became READY in the pool."""
        if self._disk.find(chunk.key) is None:
            self._unsaved[chunk.key] = None
            self._pump_soon(0.0)

    # ------------------------------------------------------------------ the lanes

    def pump_soon(self) -> None:
        """No engine waits any more: what had to wait may start."""
        if len(self.writes) or len(self.promotions):
            if self._pump_timer is not None:
                self._pump_timer.cancel()
                self._pump_timer = None
            self._pump_soon(0.0)

    def _pump_soon(self, delay_s: float) -> None:
        if self._pump_timer is None:
            self._pump_timer = self._loop.call_later(delay_s, self._pump)

    def _pump(self) -> None:
        """Fill the lane of writes, start what may start, and come back when more may."""
        self._pump_timer = None
        self._plan_writes()
        now_ns = self._now_ns()
        busy = self._busy() and self._flushed is None
        while (key := self.writes.take(busy, now_ns)) is not None:
            self._write(key)
        while (key := self.promotions.take(busy, now_ns)) is not None:
            self._promote(key)
        if self._flushed is not None and not self._unsaved:
            self._flushed.set()
        dues = [lane.due_ns(busy, now_ns) for lane in (self.writes, self.promotions)]
        due_ns = min((due for due in dues if due is not None), default=None)
        if due_ns is not None:
            self._pump_soon(max(0.001, (due_ns - now_ns) / 1e9))

    def _plan_writes(self) -> None:
        if self._disk.state is not DiskState.ON:
            self._unsaved.clear()
            self.writes.drop(lambda _: True)
            return
        if not self._unsaved or not self.writes.has_room:
            return
        usage = self._pool.usage()
        free_share = usage.free_bytes / usage.size_bytes
        now_ns = self._now_ns()
        for key in plan_demotions(self._unsaved, self._pool.next_victims, free_share, PLANNED_MAX):
            chunk = self._pool.find(key)
            if chunk is None:
                del self._unsaved[key]
            elif self.writes.has_room:
                self.writes.offer(key, chunk.size_bytes, now_ns)
        if self._unsaved and not len(self.writes) and not self.writes.running_count:
            self._pump_soon(0.0)  # all that was planned had gone: what comes behind it has its turn

    def _write(self, key: ChunkKey) -> None:
        chunk = self._pool.find(key)
        if chunk is not None and self._disk.find(key) is None:
            if self._disk.pool.admits(chunk) and self._disk.save(chunk, partial(self._written, key)):
                self._changed()  # something may have had to go
                return
            self.refused_count += 1
        self._unsaved.pop(key, None)
        self.writes.ended(key)

    def _written(self, key: ChunkKey, stored: bool) -> None:
        self._unsaved.pop(key, None)
        self.writes.ended(key)
        self._pump_soon(0.0)
        if stored:
            self._changed()

    # ------------------------------------------------------------------ promotions

    def _look(self) -> None:
        """Plan promotions, now and then: only where DRAM has room to spare."""
        self._look_timer = self._loop.call_later(LOOK_AGAIN_S, self._look)
        usage = self._pool.usage()
        room_bytes = usage.free_bytes - int(usage.size_bytes * PROMOTE_FREE_SHARE)
        if not self._disk.config.promote or self._disk.state is DiskState.OFF or room_bytes <= 0:
            return
        plan = plan_promotions(
            self._disk.pool.dearest(DEAREST_LOOKED_AT),
            self._stored,
            lambda key: self._pool.find(key) is not None,
            room_bytes,
            PROMOTIONS_WAITING_MAX,
        )
        now_ns = self._now_ns()
        for key in plan:
            found = self._disk.find(key)
            if found is not None:
                self.promotions.offer(key, found.size_bytes, now_ns)
        self._pump_soon(0.0)

    def _stored(self, key: ChunkKey) -> Stored | None:
        found = self._disk.find(key)
        return None if found is None else Stored(found.parent, found.size_bytes)

    def _promote(self, key: ChunkKey) -> None:
        if self._pool.find(key) is not None or self._disk.find(key) is None:
            self.promotions.ended(key)
            return
        self._promoter.promote(key, partial(self._promoted, key))

    def _promoted(self, key: ChunkKey) -> None:
        self.promotions.ended(key)
        self._pump_soon(0.0)
