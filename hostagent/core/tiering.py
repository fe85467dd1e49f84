"""Traffic between this node's pool and its disk that no engine waits for: loads for peers, writes, promotions."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

from hostagent import limits
from hostagent.core import effects
from hostagent.core.disk_index import DiskIndex, DiskState, Promoter
from hostagent.core.events import SaveOutcome
from hostagent.core.fetch import FetchRequest, FetchResult, Purpose
from hostagent.core.fetches import Fetches
from hostagent.core.forms import Forms
from hostagent.core.node import Foreground, Node
from hostagent.pool.chunks import Chunk
from kvchunk.ids import ChunkKey
from kvpolicy.tiers.flow import PROMOTE_FREE_SHARE, Stored, plan_demotions, plan_promotions
from kvpolicy.tiers.lane import Lane, LaneLimits

WRITES_AT_ONCE: Final = 2
"""One being written, the next one ready for the writing thread; both are pinned in DRAM meanwhile."""
WRITES_WAITING_MAX: Final = 8
"""Few: the plan is made again as the queue drains, so that it follows what has become urgent."""
PLANNED_MAX: Final = 32
PROMOTIONS_AT_ONCE: Final = 2
PROMOTIONS_WAITING_MAX: Final = 64
DEAREST_LOOKED_AT: Final = 1024
PATIENCE_NS: Final = 250_000_000
PLAN_PROMOTIONS_NS: Final = 10_000_000_000
"""How often promotions are planned."""
_PUMP_NS_MIN: Final = 1_000_000
_DEADLINE_NS: Final = int(limits.PREPARE_DEADLINE_S * 1e9)


class PeerLoads:
    """Brings chunks from this node's disk into its pool, not for its engines but for peers and promotions: one load per
    chunk, however many wait for it. Who waits, and for what, it does not know."""

    def __init__(self, node: Node, fetches: Fetches) -> None:
        self._clock = node.clock
        self._pool = node.pool
        self._disk = node.disk
        self._fetches = fetches
        self._waiting: dict[ChunkKey, list[Callable[[], None]]] = {}
        self._ended: list[tuple[ChunkKey, FetchResult]] = []
        self._answer_soon = node.alarms.add(self._answer)

    @property
    def under_way_count(self) -> int:
        """Chunks that are being loaded for peers or to promote them."""
        return len(self._waiting)

    def can_load(self, key: ChunkKey) -> bool:
        """Whether `load` would return True."""
        if key in self._waiting:
            return True
        return self._disk is not None and self._disk.find(key) is not None and len(self._waiting) < limits.PREPARED_MAX

    def load(self, key: ChunkKey, then: Callable[[], None]) -> bool:
        """Bring a chunk from disk; `then` is called once, never inside this call, when it is in the pool or is not, and
        the chunk stays until all who waited have had their turn. False: it is not on disk, or too many are wanted."""
        if not self.can_load(key):
            return False
        waiting = self._waiting.get(key)
        if waiting is not None:
            waiting.append(then)
            return True
        self._waiting[key] = [then]
        request = FetchRequest((key,), Purpose.DISK, self._clock.now_ns + _DEADLINE_NS)
        self._fetches.begin(request, partial(self._load_ended, key))
        return True

    def _load_ended(self, key: ChunkKey, result: FetchResult) -> None:
        """Perhaps before `load` has returned."""
        self._ended.append((key, result))
        self._answer_soon.set(self._clock.now_ns)

    def _answer(self) -> None:
        ended, self._ended = self._ended, []
        for key, result in ended:
            for then in self._waiting.pop(key, ()):
                then()
            for chunk, _ in result.chunks:
                self._pool.unpin(chunk)

    def close(self) -> None:
        """Unpin chunks of loads that have ended, without calling those who wait."""
        for _, result in self._ended:
            for chunk, _ in result.chunks:
                self._pool.unpin(chunk)
        self._ended.clear()


class Tiering:
    """Carries out the plans of `kvpolicy.tiers.flow`. Owns the set of unsaved chunks and two lanes, for writes and for
    promotions; what engines wait for goes before both. It has nothing to do until `start`."""

    def __init__(
        self,
        node: Node,
        disk: DiskIndex,
        promoter: Promoter,
        foreground: Foreground,
        forms: Forms,
        changed: Callable[[], None],
    ) -> None:
        """`changed()`: chunks came to the disk or left it."""
        self._clock = node.clock
        self._emit = node.emit
        self._pool = node.pool
        self._disk = disk
        self._promoter = promoter
        self._foreground = foreground
        self._changed = changed
        self._forms = forms
        self._promotes = node.options.promote
        self._unsaved: dict[ChunkKey, None] = {}
        self.refused_count = 0
        """Chunks that the disk would not take: worth less than those on it."""
        self.writes: Lane[ChunkKey] = Lane(
            LaneLimits(
                waiting_max=WRITES_WAITING_MAX,
                at_once=WRITES_AT_ONCE,
                patience_ns=PATIENCE_NS,
                bytes_per_s=node.options.disk_write_bytes_per_s,
            )
        )
        self.promotions: Lane[ChunkKey] = Lane(
            LaneLimits(PROMOTIONS_WAITING_MAX, PROMOTIONS_AT_ONCE, patience_ns=PATIENCE_NS)
        )
        self._pump_alarm = node.alarms.add(self._pump)
        self._plan_alarm = node.alarms.add(self._plan_promotions)
        self._flushing = False

    @property
    def unsaved_count(self) -> int:
        """Chunks that a crash would lose."""
        return len(self._unsaved)

    def start(self) -> None:
        """Begin: what the pool has is not on disk, what the disk has is not in the pool."""
        for chunk in self._pool.ready_chunks():
            self.chunk_ready(chunk)
        self._plan_promotions()

    def close(self) -> None:
        """Plan nothing any more."""
        self._pump_alarm.due_ns = None
        self._plan_alarm.due_ns = None

    def flush(self) -> None:
        """Write unsaved chunks to disk, then emit Flushed. Engines are gone, so nothing has to wait."""
        self._flushing = True
        self._pump()

    def chunk_ready(self, chunk: Chunk) -> None:
        """A chunk became READY in the pool."""
        if self._disk.find(chunk.key) is None:
            self._unsaved[chunk.key] = None
            self._pump_soon(self._clock.now_ns)

    # ------------------------------------------------------------------ the lanes

    def engines_served(self) -> None:
        """No engine waits any more: writes and promotions that had to wait may start."""
        if self.writes.waiting or self.promotions.waiting:
            self._pump_alarm.set(self._clock.now_ns)

    def _pump_soon(self, due_ns: int) -> None:
        if self._pump_alarm.due_ns is None:
            self._pump_alarm.set(due_ns)

    def _pump(self) -> None:
        """Fill the lane of writes, start what may start, and come back when more may."""
        self._pump_alarm.due_ns = None
        self._plan_writes()
        now_ns = self._clock.now_ns
        busy = self._foreground.busy and not self._flushing
        while (key := self.writes.take(busy, now_ns)) is not None:
            self._write(key)
        while (key := self.promotions.take(busy, now_ns)) is not None:
            self._promote(key)
        if self._flushing and not self._unsaved:
            self._flushing = False
            self._emit(effects.Flushed())
        dues = [lane.due_ns(busy, now_ns) for lane in (self.writes, self.promotions)]
        due_ns = min((due for due in dues if due is not None), default=None)
        if due_ns is not None:
            self._pump_soon(max(now_ns + _PUMP_NS_MIN, due_ns))
        elif self._unsaved and not self.writes.running_count:
            self._pump_soon(now_ns)  # all planned chunks had gone: the next ones get their turn

    def _plan_writes(self) -> None:
        if self._disk.state is not DiskState.ON:
            self._unsaved.clear()
            self.writes.drop(lambda _: True)
            return
        if not self._unsaved or not self.writes.has_room:
            return
        usage = self._pool.usage()
        free_share = usage.free_bytes / usage.size_bytes
        now_ns = self._clock.now_ns
        for key in plan_demotions(self._unsaved, self._pool.next_victims, free_share, PLANNED_MAX):
            chunk = self._pool.find(key)
            if chunk is None:
                del self._unsaved[key]
            elif self.writes.has_room:
                self.writes.offer(key, chunk.size_bytes, now_ns)

    def _write(self, key: ChunkKey) -> None:
        chunk = self._pool.find(key)
        if chunk is None or self._disk.find(key) is not None:
            self._no_longer_unsaved(key)
        elif self._disk.pool.admits(chunk):
            self._pool.pin(chunk)
            self._emit(effects.SaveChunk(chunk, self._forms.for_disk(chunk)))
        else:
            self.refused_count += 1
            self._no_longer_unsaved(key)

    def save_ended(self, chunk: Chunk, outcome: SaveOutcome) -> None:
        """What became of SaveChunk."""
        self._pool.unpin(chunk)
        if outcome is SaveOutcome.REFUSED:
            self.refused_count += 1
        self._no_longer_unsaved(chunk.key)
        self._pump_soon(self._clock.now_ns)
        if outcome is not SaveOutcome.REFUSED:
            self._changed()  # even where nothing was stored, something may have had to go

    def _no_longer_unsaved(self, key: ChunkKey) -> None:
        self._unsaved.pop(key, None)
        self.writes.ended(key)

    # ------------------------------------------------------------------ promotions

    def _plan_promotions(self) -> None:
        """Now and then: only where DRAM has room to spare."""
        self._plan_alarm.set(self._clock.now_ns + PLAN_PROMOTIONS_NS)
        usage = self._pool.usage()
        room_bytes = usage.free_bytes - int(usage.size_bytes * PROMOTE_FREE_SHARE)
        if not self._promotes or self._disk.state is DiskState.OFF or room_bytes <= 0:
            return
        plan = plan_promotions(
            self._disk.pool.dearest(DEAREST_LOOKED_AT),
            self._stored_chunk,
            lambda key: self._pool.find(key) is not None,
            room_bytes,
            PROMOTIONS_WAITING_MAX,
        )
        now_ns = self._clock.now_ns
        for key in plan:
            found = self._disk.find(key)
            if found is not None:
                self.promotions.offer(key, found.size_bytes, now_ns)
        self._pump_soon(now_ns)

    def _stored_chunk(self, key: ChunkKey) -> Stored | None:
        found = self._disk.find(key)
        return None if found is None else Stored(found.parent, found.size_bytes)

    def _promote(self, key: ChunkKey) -> None:
        here = self._pool.find(key) is not None
        if here or not self._promoter.load(key, partial(self._promotion_ended, key)):
            self.promotions.ended(key)

    def _promotion_ended(self, key: ChunkKey) -> None:
        self.promotions.ended(key)
        self._pump_soon(self._clock.now_ns)
