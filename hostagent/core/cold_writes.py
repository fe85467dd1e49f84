"""Writes last copies behind to the cold store before they are evicted: a bounded lane, for which nothing ever waits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from hostagent.cold.cold_state import ColdState
from hostagent.core import effects
from hostagent.core.clock import NEVER
from hostagent.core.cold import ColdIndex
from hostagent.core.directory import ChunkEntry
from hostagent.core.disk_index import DiskState
from hostagent.core.events import ColdSaveEnded, SaveOutcome
from hostagent.core.forms import Forms
from hostagent.core.node import Node
from hostagent.core.tiering import Promoter
from hostagent.core.twins import is_twin
from hostagent.pool.chunks import Chunk, ChunkPool
from kvchunk.ids import ChunkKey
from kvpolicy.tiers.cold import PRESSURE_FREE_SHARE, VICTIMS_LOOKED_AT, worth_storing
from kvpolicy.tiers.lane import Lane, LaneLimits

WRITES_AT_ONCE: Final = 2
WRITES_WAITING_MAX: Final = 32
PATIENCE_NS: Final = 250_000_000
_FAILED_NS: Final = 60_000_000_000
_FAILED_MAX: Final = 1024
_PLAN_NS: Final = 10_000_000
"""Plans are no closer together: each looks at the order of eviction."""


@dataclass(slots=True)
class ColdWriteCounts:
    """Running totals, for metrics."""

    stored: int = 0
    failed: int = 0
    dropped: int = 0
    """Worth storing, and evicted before their turn came, or the store went away."""


class ColdWrites:
    """One node's; it does nothing while the store takes nothing."""

    def __init__(
        self,
        node: Node,
        index: ColdIndex,
        promoter: Promoter,
        busy: Callable[[], bool],
        forms: Forms,
    ) -> None:
        """`promoter`: brings what the disk is about to evict into the pool, from where it is written."""
        self._clock = node.clock
        self._emit = node.emit
        self._pool = node.pool
        self._disk = node.disk
        self._directory = node.directory
        self._index = index
        self._costs = node.costs
        self._promoter = promoter
        self._busy = busy
        self._forms = forms
        self.counts = ColdWriteCounts()
        self.lane: Lane[ChunkKey] = Lane(
            LaneLimits(
                WRITES_WAITING_MAX,
                WRITES_AT_ONCE,
                patience_ns=PATIENCE_NS,
                bytes_per_s=node.options.cold_write_bytes_per_s,
            )
        )
        self._alarm = node.alarms.add(self._pump)
        self._plan_after_ns = 0
        self._writing: set[Chunk] = set()
        self._failed_ns: dict[ChunkKey, int] = {}
        """Until when a chunk that the store did not take is not offered again."""

    def close(self) -> None:
        """Begin nothing any more, and take the pins of what is being written back."""
        self._alarm.cancel()
        for chunk in self._writing:
            self._pool.unpin(chunk)
        self._writing.clear()

    def look_soon(self) -> None:
        """Chunks came, engines are served, or the store takes something again."""
        due_ns = self._alarm.due_ns
        if self._index.state is ColdState.ON and (due_ns is None or due_ns > self._clock.now_ns):
            self._alarm.set(self._clock.now_ns)

    def _pump(self) -> None:
        self._alarm.cancel()
        if self._index.state is not ColdState.ON:
            self.counts.dropped += len(self.lane.drop(lambda _: True))
            return
        now_ns = self._clock.now_ns
        due_ns = self._plan_after_ns
        if now_ns >= due_ns:
            self._plan_after_ns = now_ns + _PLAN_NS
            self._plan()
            due_ns = NEVER
        busy = self._busy()
        while (key := self.lane.take(busy, now_ns)) is not None:
            self._begin(key)
        due_ns = min(due_ns, self.lane.due_ns(busy, now_ns) or NEVER)
        if due_ns < NEVER:
            self._alarm.set(max(due_ns, now_ns + 1_000_000))

    def _plan(self) -> None:
        """Offer what would be evicted next and is worth it."""
        if _is_full(self._pool):
            for key in self._pool.next_victims(VICTIMS_LOOKED_AT):
                self._consider(key, self._pool)
        if self._disk is not None and self._disk.state is not DiskState.OFF and _is_full(self._disk.pool):
            for key in self._disk.pool.next_victims(VICTIMS_LOOKED_AT):
                self._consider(key, self._disk.pool)

    def _consider(self, key: ChunkKey, pool: ChunkPool) -> None:
        chunk = pool.find(key)
        if chunk is None or is_twin(chunk):
            return
        if key in self.lane or not self.lane.has_room or not self._is_last(key, pool):
            return
        if self._failed_ns.get(key, 0) > self._clock.now_ns:
            return
        rate = pool.values.rate(key, self._clock.now_ns)
        if not worth_storing(self._costs, chunk.size_bytes, rate, self._forms.cold_bytes(chunk)):
            return
        self.lane.offer(key, chunk.size_bytes, self._clock.now_ns)

    def _is_last(self, key: ChunkKey, pool: ChunkPool) -> bool:
        """Whether a chunk is nowhere else, once this pool has evicted it."""
        if self._index.knows(key) or self._directory.tiers_elsewhere(key):
            return False
        if pool is self._pool:
            return self._disk is None or self._disk.find(key) is None
        return True

    # ------------------------------------------------------------------ one write

    def _begin(self, key: ChunkKey) -> None:
        if self._pool.find(key) is not None:
            self._write(key)
        elif not self._promoter.load(key, partial(self._write, key)):
            self.counts.dropped += 1
            self.lane.ended(key)

    def _write(self, key: ChunkKey) -> None:
        chunk = self._pool.find(key)
        if chunk is None or self._index.state is not ColdState.ON:
            self.counts.dropped += 1
            self.lane.ended(key)
            self.look_soon()
            return
        self._pool.pin(chunk)
        self._writing.add(chunk)
        self._emit(effects.SaveCold(chunk, self._forms.for_cold(chunk)))

    def save_ended(self, event: ColdSaveEnded) -> None:
        """What became of SaveCold."""
        chunk, outcome = event.chunk, event.outcome
        if chunk not in self._writing:
            return
        self._writing.remove(chunk)
        if outcome is SaveOutcome.STORED:
            self.counts.stored += 1
            digest = event.digest or chunk.digest
            entry = ChunkEntry(chunk.key, chunk.parent, chunk.size_bytes, digest, chunk.position, ())
            self._index.stored(replace(entry, namespace=chunk.namespace, stored=event.stored))
        else:
            self.counts.failed += 1
            if len(self._failed_ns) >= _FAILED_MAX:
                self._failed_ns.clear()
            self._failed_ns[chunk.key] = self._clock.now_ns + _FAILED_NS
        self._pool.unpin(chunk)
        self.lane.ended(chunk.key)
        self.look_soon()


def _is_full(pool: ChunkPool) -> bool:
    usage = pool.usage()
    return usage.free_bytes < PRESSURE_FREE_SHARE * usage.size_bytes
