"""The cold store: what this node knows of it and how it finds out, and the writing of last copies behind. Pure.

Objects are named by the chunk's key, so any node can look for any chunk. It looks for the first chunk of a request that
nothing else has; only where that is stored, for those behind it. A chunk that was not there is not looked for again for
ABSENT_S. The request waits for the answer while a look takes a small share of computing what is looked for, and not at
all while the store is away. What was found, or written by this node, is in the index.

A chunk is stored when its copy is among the next to be evicted, no other copy is known, somebody may ask for it again
(its session has not ended), and reading it from the store is quicker than computing it. How often it will be asked for
decides nothing: writes go behind everything else, and a cold store is large.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from hostagent import limits
from hostagent.core import effects, events
from hostagent.core.chunk_entry import ChunkEntry
from hostagent.core.clock import NEVER, Alarms
from hostagent.core.disk_index import DiskState, Promoter
from hostagent.core.events import ColdSaveEnded, ColdState, SaveOutcome
from hostagent.core.forms import Forms, next_victims_to_save
from hostagent.core.node import Foreground, Node
from hostagent.core.options import CoreOptions
from hostagent.pool.chunks import Chunk, ChunkPool
from kvchunk.ids import ChunkKey
from kvpolicy.tiers.flow import PRESSURE_FREE_SHARE
from kvpolicy.tiers.lane import Lane, LaneLimits
from kvpolicy.value import SourceCosts, Tier

VICTIMS_LOOKED_AT: Final = 64
LOOK_SHARE: Final = 0.1
"""Of the time to compute chunks: a request waits no longer than this for the answer whether they are stored."""

__all__ = ["PRESSURE_FREE_SHARE", "VICTIMS_LOOKED_AT", "may_wait_s", "worth_storing"]


def worth_storing(costs: SourceCosts, size_bytes: int, uses_per_s: float, reckoned_bytes: int | None = None) -> bool:
    """Whether a last copy of `size_bytes` is to be written to the store before it is evicted; `uses_per_s`: as
    expected (`CacheValues.rate`), 0 for what nobody is expected to ask for; `reckoned_bytes`: what the store is
    reckoned with (`kvpolicy.tiers.form_costs`), None: the chunk's own."""
    read_s = costs.cost_s(Tier.COLD, size_bytes if reckoned_bytes is None else reckoned_bytes)
    return uses_per_s > 0 and read_s < costs.cost_s(Tier.RECOMPUTE, size_bytes)


def may_wait_s(lookup_s: float, compute_s: float | None, wait_max_s: float) -> float:
    """How long a request may wait for a look into the store that takes about `lookup_s`; 0: not at all.

    `compute_s`: what computing the request takes; None: its engine does not say, and takes chunks from wherever.
    """
    if compute_s is None:
        return wait_max_s
    patience_s = min(wait_max_s, LOOK_SHARE * compute_s)
    # One look at the first chunk, and one at those behind it.
    return patience_s if 2 * lookup_s <= patience_s else 0.0


_ABSENT_NS: Final = int(limits.COLD_ABSENT_S * 1e9)
_SMOOTHING: Final = 0.2
WRITES_AT_ONCE: Final = 2
WRITES_WAITING_MAX: Final = 32
PATIENCE_NS: Final = 250_000_000
_FAILED_NS: Final = 60_000_000_000
_FAILED_MAX: Final = 1024
_PLAN_NS: Final = 10_000_000
"""Plans are no closer together: each looks at the order of eviction."""


@dataclass(slots=True)
class ColdCounts:
    """Running totals, for metrics."""

    looked_up: int = 0
    found: int = 0
    waits: int = 0
    """Requests that waited for a look."""
    waits_late: int = 0
    """Of these, what went on without an answer."""
    missing: int = 0
    """Chunks of the index that were not there any more."""
    damaged: int = 0
    """What was no chunk, or another, or did not match its digest: a miss."""


@dataclass(slots=True, eq=False)
class _Look:
    """A request that waits for an answer of the store."""

    keys: Sequence[ChunkKey]
    then: Callable[[], None]
    asked_ns: int
    due_ns: int
    number: int = 0
    behind: bool = False
    """The first chunk was found; these are the others."""


class ColdIndex:
    """Owns what is believed to be in the store, and the looks of requests that wait for an answer. It knows no pool and
    no fetch. Without a store nothing is ever found."""

    def __init__(self, options: CoreOptions, alarms: Alarms, emit: Callable[[effects.Effect], None]) -> None:
        self._clock = alarms.clock
        self._emit = emit
        self.wait_max_s = options.cold_wait_max_s
        """A request waits no longer for a look."""
        self.has_store = options.has_cold
        """There is a cold store."""
        self.state = ColdState.AWAY
        self.lookup_s = 0.0
        """What a look takes, as learned."""
        self.counts = ColdCounts()
        self._known: OrderedDict[ChunkKey, ChunkEntry] = OrderedDict()
        self._absent: OrderedDict[ChunkKey, int] = OrderedDict()
        """Until when nobody looks for them."""
        self._looks: dict[int, _Look] = {}
        self._number = 0
        self._alarm = alarms.add(self._too_late)

    # ------------------------------------------------------------------ the index

    @property
    def known_count(self) -> int:
        """Chunks that are believed to be in the store."""
        return len(self._known)

    def knows(self, key: ChunkKey) -> bool:
        """Whether a chunk is believed to be there, whether the store can be read now or not."""
        return key in self._known

    def find(self, key: ChunkKey) -> ChunkEntry | None:
        """A chunk that can be read from the store, as far as is known."""
        return None if self.state is ColdState.AWAY else self._known.get(key)

    def chunk_stored(self, entry: ChunkEntry) -> None:
        """A chunk is in the store."""
        self._absent.pop(entry.key, None)
        self._known[entry.key] = entry
        self._known.move_to_end(entry.key)
        if len(self._known) > limits.COLD_INDEX_CHUNKS_MAX:
            self._known.popitem(last=False)

    def chunk_lost(self, key: ChunkKey) -> None:
        """A chunk is not in the store, or what is there is none."""
        self._known.pop(key, None)
        self._absent[key] = self._clock.now_ns + _ABSENT_NS
        self._absent.move_to_end(key)
        if len(self._absent) > limits.COLD_ABSENT_MAX:
            self._absent.popitem(last=False)

    def load_ended(self, key: ChunkKey, outcome: events.LoadOutcome) -> None:
        """What came of a chunk that was believed to be there."""
        if outcome is events.LoadOutcome.ABSENT:
            self.counts.missing += 1
        elif outcome is events.LoadOutcome.DAMAGED:
            self.counts.damaged += 1
        if outcome in (events.LoadOutcome.ABSENT, events.LoadOutcome.DAMAGED):
            self.chunk_lost(key)

    # ------------------------------------------------------------------ looking

    @property
    def waiting_count(self) -> int:
        """Requests that wait for a look."""
        return len(self._looks)

    def look(
        self,
        keys: Sequence[ChunkKey],
        compute_s: float | None,
        then: Callable[[], None],
        *,
        any_order: bool = False,
    ) -> bool:
        """Look for chunks that nothing else has, in prefix order (or in any: for all of them at once). True: `then` is
        called later, once, when the answer is here or has taken too long; False: go on without."""
        if not self.has_store or self.state is ColdState.AWAY or len(self._looks) >= limits.COLD_LOOKS_MAX:
            return False
        now_ns = self._clock.now_ns
        wanted = [key for key in keys if self._may_look(key)]
        if not wanted or (wanted[0] != keys[0] and not any_order):
            return False
        patience_s = may_wait_s(self.lookup_s, compute_s, self.wait_max_s)
        if patience_s <= 0:
            return False
        self.counts.waits += 1
        self._ask(_Look(wanted, then, now_ns, now_ns + int(patience_s * 1e9), behind=any_order))
        return True

    def _may_look(self, key: ChunkKey) -> bool:
        return key not in self._known and self._absent.get(key, 0) <= self._clock.now_ns

    def _ask(self, look: _Look) -> None:
        keys = look.keys[: limits.COLD_LOOK_CHUNKS_MAX] if look.behind else look.keys[:1]
        self._number += 1
        look.number, look.asked_ns = self._number, self._clock.now_ns
        self._looks[look.number] = look
        self.counts.looked_up += len(keys)
        self._emit(effects.LookUpCold(look.number, tuple(keys)))
        self._arm()

    def lookup_ended(self, event: events.ColdLookedUp) -> None:
        """The store's answer; perhaps to one who went on without."""
        for entry in event.found:
            self.chunk_stored(entry)
        for key in (*event.absent, *event.damaged):
            self.chunk_lost(key)
        self.counts.found += len(event.found)
        self.counts.damaged += len(event.damaged)
        look = self._looks.pop(event.number, None)
        if look is None:
            return
        took_s = (self._clock.now_ns - look.asked_ns) / 1e9
        if not look.behind:
            self.lookup_s += _SMOOTHING * (took_s - self.lookup_s)
        if event.found and not look.behind and len(look.keys) > 1:
            self._ask(_Look(look.keys[1:], look.then, 0, look.due_ns, behind=True))
            return
        self._arm()
        look.then()

    def _too_late(self) -> None:
        now_ns = self._clock.now_ns
        late = [look for look in self._looks.values() if look.due_ns <= now_ns]
        for look in late:
            del self._looks[look.number]
            self.counts.waits_late += 1
            # It takes at least this long: the next ones wait only where that pays.
            self.lookup_s = max(self.lookup_s, (now_ns - look.asked_ns) / 1e9)
        self._arm()
        for look in late:
            look.then()

    def _arm(self) -> None:
        self._alarm.set(min((look.due_ns for look in self._looks.values()), default=None))

    # ------------------------------------------------------------------ the store

    def state_given(self, state: ColdState) -> None:
        """What the store is good for from now on; when it is away nobody waits for it."""
        self.state = state
        if state is ColdState.AWAY:
            looks = list(self._looks.values())
            self._looks.clear()
            self._arm()
            for look in looks:
                look.then()

    def store_probed(self, lookup_s: float) -> None:
        """What a look takes, measured by itself."""
        self.lookup_s = lookup_s

    def close(self) -> None:
        """Those who wait are not told any more."""
        self._looks.clear()
        self._alarm.due_ns = None


@dataclass(slots=True)
class ColdWriteCounts:
    """Running totals, for metrics."""

    stored: int = 0
    failed: int = 0
    dropped: int = 0
    """Worth storing, and evicted before their turn came, or the store went away."""


class ColdWrites:
    """Writes last copies behind to the cold store before they are evicted: owns a bounded lane, for which nothing ever
    waits. It does nothing while the store takes nothing."""

    def __init__(self, node: Node, index: ColdIndex, promoter: Promoter, foreground: Foreground, forms: Forms) -> None:
        """`promoter`: brings what the disk is about to evict into the pool, from where it is written."""
        self._clock = node.clock
        self._emit = node.emit
        self._pool = node.pool
        self._disk = node.disk
        self._directory = node.directory
        self._index = index
        self._costs = node.costs
        self._promoter = promoter
        self._foreground = foreground
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
        self._alarm.due_ns = None
        for chunk in self._writing:
            self._pool.unpin(chunk)
        self._writing.clear()

    def look_soon(self) -> None:
        """Chunks came, engines are served, or the store takes something again."""
        due_ns = self._alarm.due_ns
        if self._index.state is ColdState.ON and (due_ns is None or due_ns > self._clock.now_ns):
            self._alarm.set(self._clock.now_ns)

    def _pump(self) -> None:
        self._alarm.due_ns = None
        if self._index.state is not ColdState.ON:
            self.counts.dropped += len(self.lane.drop(lambda _: True))
            return
        now_ns = self._clock.now_ns
        due_ns = self._plan_after_ns
        if now_ns >= due_ns:
            self._plan_after_ns = now_ns + _PLAN_NS
            self._plan()
            due_ns = NEVER
        busy = self._foreground.busy
        while (key := self.lane.take(busy, now_ns)) is not None:
            self._begin(key)
        due_ns = min(due_ns, self.lane.due_ns(busy, now_ns) or NEVER)
        if due_ns < NEVER:
            self._alarm.set(max(due_ns, now_ns + 1_000_000))

    def _plan(self) -> None:
        """Offer what would be evicted next and is worth it."""
        if _is_full(self._pool):
            self._consider(self._pool)
        if self._disk is not None and self._disk.state is not DiskState.OFF and _is_full(self._disk.pool):
            self._consider(self._disk.pool)

    def _consider(self, pool: ChunkPool) -> None:
        now_ns = self._clock.now_ns
        for chunk in next_victims_to_save(pool, VICTIMS_LOOKED_AT):
            key = chunk.key
            if key in self.lane or not self.lane.has_room or not self._is_last(key, pool):
                continue
            if self._failed_ns.get(key, 0) > now_ns:
                continue
            rate = pool.values.rate(key, now_ns)
            if worth_storing(self._costs, chunk.size_bytes, rate, self._forms.cold_bytes(chunk)):
                self.lane.offer(key, chunk.size_bytes, now_ns)

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
            self._index.chunk_stored(replace(entry, namespace=chunk.namespace, stored=event.stored))
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
