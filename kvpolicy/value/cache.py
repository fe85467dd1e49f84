"""What each chunk is worth to one pool, which goes first, and who gets in: a node's DRAM, its disk, the switch.

The owner reports what was fetched (hit or not), what came and what went, and asks; nothing happens here by itself. All
that is remembered of a chunk, in the pool or not, is one row of a `ChunkTable`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from math import exp2, inf, log2
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from kvchunk.ids import ChunkKey
from kvpolicy.value import parameters
from kvpolicy.value.history import TOUCHES_MAX, AccessHistory, PastFetches, Touch, class_of, kind_of_session
from kvpolicy.value.order import EvictionOrder
from kvpolicy.value.parameters import NS, ValueParameters
from kvpolicy.value.policies import POLICIES, Policy, Rule, Scorer
from kvpolicy.value.reuse import FINISHED_SCORE, KIND_KNOWN, KIND_NEW, ReuseAges, ReuseTimes
from kvpolicy.value.shadows import PolicySelector, ShownChunk
from kvpolicy.value.table import FINISHED, NONE, ORPHAN, RESIDENT, ChunkTable, mixed

_WEIGHT_MIN = 1e-30
_PURGE_SHARE = 64
"""When the table is full, one pass picks one row in this many to be forgotten."""
_ROOM_SHARE = 8
_TIE_S = 1e-6
"""Fetches of one moment still come one after the other."""
_AGE = Rule.AGE
_PRESUMED = class_of(1, None, KIND_NEW, 0, False)
"""Class of chunks that nobody has fetched yet."""

EvictionCosts: TypeAlias = Callable[[Sequence[Touch]], Sequence[float]]
"""Of each of these chunks: seconds above 0 that a reader waits longer when this pool's copy is gone. See
`SourceCosts.eviction_cost_s`."""


def _always(_: ChunkKey) -> bool:
    return True


class CacheValues:
    """Values, order and admission of one pool of `capacity_bytes`."""

    def __init__(
        self,
        capacity_bytes: int,
        parameters: ValueParameters | None = None,
        policies: tuple[Policy, ...] = POLICIES,
        eviction_costs: EvictionCosts | None = None,
    ) -> None:
        """`eviction_costs`: asked at each fetch and arrival, for every chunk alike; None: all bytes are equal."""
        self._eviction_costs = eviction_costs
        self.parameters = parameters or ValueParameters()
        self.capacity_bytes = capacity_bytes
        self._used_bytes = 0
        self._count = 0
        self._base_ns: int | None = None
        """Seconds count from the first moment heard of: floats keep microseconds for years."""
        self.table = ChunkTable(self.parameters.tracked_max)
        learning = (self.parameters.class_prior, self.parameters.learn_half_touches)
        self._reuse = ReuseTimes(self.parameters.horizon_s, *learning)
        self._ages = ReuseAges(*learning)
        self._half_life_s = self.parameters.half_life_s
        self._access_history = AccessHistory(self.table, self._reuse, self._ages, self._half_life_s)
        self._scorer = Scorer(policies, self.parameters.rate_prior, self._half_life_s)
        self.selector = PolicySelector(
            policies,
            capacity_bytes,
            self._ages,
            self._scorer.every,
            self.parameters.shadow_chunks_max,
            self.parameters.selector_half_touches,
        )
        self._policies = policies
        self._active = policies[0]
        self._sample_mask = 0
        self._as_of_s = 0.0
        """Moment of the chunks' ages in the order of eviction: that of its last pass."""
        self._order = EvictionOrder(self.table, self._score_one, self._score_many, self._begin_pass)
        self._near: dict[ChunkKey, int] = {}
        """Slots of the chunks of the last fetch and of what they displace: most questions are about those."""
        self._held: set[int] = set()
        """Slots of the fetch under way, which must not be purged."""
        self._to_purge: list[int] = []
        """Rows to forget next, the oldest last, as long as nobody fetched them after `_purge_border_s`."""
        self._purge_border_s = 0.0
        self._now_s = 0.0
        self._fetched_s = -1.0

    # -- what happened

    def fetched(self, chunks: Sequence[Touch], now_ns: int) -> None:
        """One fetch, in prefix order, whether the chunks were here or not. The only thing that teaches."""
        now_s = self._now_s = max(self._seconds(now_ns), self._fetched_s + _TIE_S)
        self._fetched_s = now_s
        if not chunks:
            return
        keys = [touch.key for touch in chunks]
        mixes = list(map(mixed, keys))
        slots = self._slots(keys, mixes)
        touches = list(map(self.table.touches_at.__getitem__, slots))
        kind = self._kind(touches, chunks[0].parent)
        if self._access_history.fetched(chunks, slots, touches, kind, now_s):
            self._ages_changed()
        if self._eviction_costs is not None:
            self._weigh(slots, chunks, self._eviction_costs)
        turn = self.selector.turn
        self._shadow(chunks, slots, touches, mixes, turn)
        flags_at, children_at, turn_at = self.table.flags_at, self.table.children_at, self.table.turn_at
        for slot in slots:
            turn_at[slot] = turn
            if not children_at[slot] and flags_at[slot] & RESIDENT:
                self._order.changed(slot)

    def remember(self, chunks: Sequence[Touch], pasts: Sequence[PastFetches], now_ns: int) -> None:
        """Fetches of these chunks, each named once, that somebody else counted and nobody told of here."""
        now_s = self._seconds(now_ns)
        slots = self._slots([touch.key for touch in chunks], [mixed(touch.key) for touch in chunks])
        if self._access_history.remember(chunks, slots, pasts, now_s):
            self._ages_changed()
        for slot in slots:
            if self.table.flags_at[slot] & RESIDENT:
                self._order.changed(slot)

    def finished(self, keys: Iterable[ChunkKey], now_ns: int) -> None:
        """These are not expected to be fetched again: they go first, until somebody does fetch them."""
        self._seconds(now_ns)
        for key in keys:
            slot = self.table.find(key)
            if slot == NONE:
                continue
            self.table.flags_at[slot] |= FINISHED
            if self.table.flags_at[slot] & RESIDENT:
                self._order.changed(slot)
            mix = mixed(key)
            if not mix & self._sample_mask:
                self.selector.shadows.finished(mix)

    def expect(self, keys: Iterable[ChunkKey], within_s: float, now_ns: int) -> None:
        """These will be fetched in about `within_s`: each counts as one reader then, at least, and as fetched now for
        an order that looks at nothing else."""
        now_s = self._seconds(now_ns)
        for key in keys:
            slot = self._slot(key)
            table = self.table
            weight = self._weight(slot, now_s)
            if table.weight_at[slot] == 0.0:
                self._presume((slot,))
            table.weight_at[slot] = max(weight, self._decay(max(0.0, within_s)), _WEIGHT_MIN)
            self._stamp(slot)
            table.flags_at[slot] &= ~FINISHED & 0xFF
            if table.flags_at[slot] & RESIDENT:
                self._order.changed(slot)

    # -- who is in the pool

    def add(self, chunks: Sequence[Touch], now_ns: int, *, is_whole: bool = True) -> None:
        """Chunks arrived. Not `is_whole`: they begin to arrive, and cannot go before they are whole; by then each has
        been `fetched`. Raises ValueError when one is here already."""
        self._seconds(now_ns)
        if not chunks:
            return
        keys = [touch.key for touch in chunks]
        slots = self._slots(keys, list(map(mixed, keys)))
        table = self.table
        rejoined: list[int] = []
        for touch, slot in zip(chunks, slots, strict=True):
            flags = table.flags_at[slot]
            if flags & RESIDENT:
                raise ValueError(f"chunk {touch.key.hex()} is in the pool already")
            table.flags_at[slot] = (flags | RESIDENT) & ~ORPHAN & 0xFF
            if table.children_at[slot]:
                rejoined.append(slot)
        parents = [NONE if touch.parent is None else self._slot(touch.parent) for touch in chunks]
        # All rows are there by now: the table, and with it these columns, grows no more.
        parent_at, children_at = table.parent_at, table.children_at
        size_at, weight_at, touches_at, last_at = table.size_at, table.weight_at, table.touches_at, table.last_at
        unweighed: dict[int, Touch] = {}
        presumed: list[int] = []
        for touch, slot, parent in zip(chunks, slots, parents, strict=True):
            if parent != NONE:
                parent_at[slot] = parent
                children_at[parent] += 1
            if size_at[slot] == 0.0:
                size_at[slot] = touch.size_bytes
            self._used_bytes += int(size_at[slot])
            # Whatever was fetched at this moment has been weighed, and what nobody has fetched will be.
            is_fetched = last_at[slot] == self._fetched_s if touches_at[slot] else not is_whole
            if self._eviction_costs is not None and not is_fetched:
                unweighed[slot] = touch
            if weight_at[slot] == 0.0:
                presumed.append(slot)
        self._presume(presumed)
        if self._eviction_costs is not None and unweighed:
            self._weigh(unweighed, list(unweighed.values()), self._eviction_costs)
        self._count += len(slots)
        for slot in slots:
            self._order.changed(slot)
        for slot in rejoined:
            self._mark_orphans(slot, False)

    def remove(self, key: ChunkKey) -> None:
        """A chunk went. Raises KeyError when it is not here."""
        slot = self._find(key)
        table = self.table
        if slot == NONE or not table.flags_at[slot] & RESIDENT:
            raise KeyError(f"chunk {key.hex()} is not in the pool")
        table.flags_at[slot] &= ~(RESIDENT | ORPHAN) & 0xFF
        if table.children_at[slot]:
            self._mark_orphans(slot, True)
        self._count -= 1
        self._used_bytes -= int(table.size_at[slot])
        parent = table.parent_at[slot]
        table.parent_at[slot] = NONE
        if parent != NONE:
            table.children_at[parent] -= 1
            if table.children_at[parent] == 0 and table.flags_at[parent] & RESIDENT:
                self._order.changed(parent)

    def __contains__(self, key: ChunkKey) -> bool:
        slot = self.table.find(key)
        return slot != NONE and bool(self.table.flags_at[slot] & RESIDENT)

    def __len__(self) -> int:
        """Chunks in the pool."""
        return self._count

    # -- decisions

    def admits(
        self, touch: Touch, now_ns: int, evictable: Callable[[ChunkKey], bool] = _always, room_bytes: int | None = None
    ) -> bool:
        """Whether the chunk should come in: there is room, or it is worth more than what it would displace.

        `room_bytes`: free bytes as the owner counts them; None: capacity less the residents.
        """
        return self.displaced_by(touch, now_ns, evictable, room_bytes) is not None

    def displaced_by(
        self, touch: Touch, now_ns: int, evictable: Callable[[ChunkKey], bool] = _always, room_bytes: int | None = None
    ) -> list[ChunkKey] | None:
        """What the chunk displaces, in the order to go; empty where there is room. None: it should stay out.

        See `admits`; nothing is removed by this.
        """
        self._seconds(now_ns)
        room = self.capacity_bytes - self._used_bytes if room_bytes is None else room_bytes
        if room >= touch.size_bytes:
            return []
        if touch.size_bytes > self.capacity_bytes:
            return None
        slot = self._slot(touch.key)
        table = self.table
        if self._active.filtered and table.touches_at[slot] < 2:
            return None
        if table.weight_at[slot] == 0.0:
            self._presume((slot,))
        if not table.flags_at[slot] & RESIDENT or table.size_at[slot] == 0.0:
            table.size_at[slot] = touch.size_bytes
        if self._eviction_costs is not None:
            self._weigh([slot], [touch], self._eviction_costs)
        score = self._score_one(slot)
        keep = NONE if touch.parent is None else self._find(touch.parent)
        self._expire()
        cheapest = self._order.cheapest()
        if cheapest is None or cheapest[0] >= score:
            return None
        first = cheapest[1]
        if first != keep and room + table.size_at[first] >= touch.size_bytes and evictable(key := table.key(first)):
            self._near[key] = first
            return [key]
        return self._displaced_several(touch.size_bytes - room, score, keep, evictable)

    def _displaced_several(
        self, needed_bytes: int, score: float, keep: int, evictable: Callable[[ChunkKey], bool]
    ) -> list[ChunkKey] | None:
        """The general case of `displaced_by`: the first may have to stay, or be too small."""
        table = self.table
        displaced: list[ChunkKey] = []
        victims = self._order.victims(evictable)
        try:
            for victim in victims:
                if victim == keep:
                    continue
                if self._score_one(victim) >= score:
                    return None
                displaced.append(table.key(victim))
                needed_bytes -= int(table.size_at[victim])
                if needed_bytes <= 0:
                    return displaced
        finally:
            victims.close()  # type: ignore[attr-defined]  # a generator: puts back what it looked at
        return None

    def victims(self, now_ns: int, evictable: Callable[[ChunkKey], bool] = _always) -> Iterator[ChunkKey]:
        """Keys in the order they should go: leaves first, cheapest first, each assumed gone before the next."""
        self._seconds(now_ns)
        self._expire()
        for slot in self._order.victims(evictable):
            yield self.table.key(slot)

    # -- figures

    def rate(self, key: ChunkKey, now_ns: int) -> float:
        """Fetches expected per second: mean of a Poisson rate, prior by chunk class (docs/explanation/value.md)."""
        now_s = self._seconds(now_ns)
        slot = self.table.find(key)
        table = self.table
        if slot == NONE or table.flags_at[slot] & FINISHED or table.weight_at[slot] == 0.0:
            return 0.0
        mean = self._scorer.mean_rate_per_s(table.level_at[slot], table.weight_at[slot])
        return mean * self._decay(now_s - table.last_at[slot])

    def score(self, key: ChunkKey) -> float | None:
        """log2 of `rate` carried back to the first moment heard of: the same until the next fetch. None: no rate."""
        slot = self.table.find(key)
        table = self.table
        if slot == NONE or table.flags_at[slot] & FINISHED or table.weight_at[slot] == 0.0:
            return None
        mean = self._scorer.mean_rate_per_s(table.level_at[slot], table.weight_at[slot])
        return log2(mean) + float(table.last_at[slot]) / self._half_life_s

    def value(
        self, key: ChunkKey, size_bytes: int, saved_s: float, now_ns: int, readers: float = 1.0, rooted: bool = True
    ) -> float:
        """Seconds saved per byte and second by a copy of this chunk here (`parameters.value`)."""
        return parameters.value(self.rate(key, now_ns), saved_s, size_bytes, readers, rooted)

    def touched_again(self, key: ChunkKey, now_ns: int) -> bool:
        """Fetched at least twice within the second-touch time that ends now."""
        now_s = self._seconds(now_ns)
        slot = self.table.find(key)
        if slot == NONE or self.table.touches_at[slot] < 2:
            return False
        before_s = self.table.last_at[slot] - self.table.gap_at[slot] / 10
        return bool(now_s - before_s <= self.parameters.second_touch_s)

    def is_known(self, key: ChunkKey) -> bool:
        """Whether the chunk was ever fetched, as far as is remembered."""
        (slot,) = self.table.find_all((key,), (mixed(key),))
        return slot != NONE and bool(self.table.touches_at[slot])

    def idle_s(self, key: ChunkKey, now_ns: int) -> float:
        """Seconds since the last fetch; infinite when none is remembered."""
        now_s = self._seconds(now_ns)
        slot = self.table.find(key)
        if slot == NONE or not self.table.touches_at[slot]:
            return inf
        return float(now_s - self.table.last_at[slot])

    # -- inside

    def _seconds(self, now_ns: int) -> float:
        """Seconds since the first moment; time never goes back here, so that late reports cannot disturb the order."""
        if self._base_ns is None:
            self._base_ns = now_ns
        now_s = (now_ns - self._base_ns) * NS
        if now_s > self._now_s:
            self._now_s = now_s
        return self._now_s

    def _decay(self, elapsed_s: float) -> float:
        return exp2(-elapsed_s / self._half_life_s)

    def _weight(self, slot: int, now_s: float) -> float:
        return float(self.table.weight_at[slot] * self._decay(now_s - self.table.last_at[slot]))

    def _kind(self, touches: Sequence[int], parent: ChunkKey | None) -> int:
        """Kind of session that a fetch belongs to, by how often its chunks were fetched before it."""
        if 0 not in touches:
            return KIND_KNOWN
        known = touches.index(0)
        before = touches[known - 1] if known else 0
        if not known and parent is not None and (above := self._find(parent)) != NONE:
            before = self.table.touches_at[above]
        return kind_of_session(before) if before else KIND_NEW

    def _shadow(
        self,
        chunks: Sequence[Touch],
        slots: Sequence[int],
        touches: Sequence[int],
        mixes: Sequence[int],
        turn: float,
    ) -> None:
        """Show the sampled chunks of a fetch to the selector."""
        mask = self._sample_mask
        sampled = [at for at, mix in enumerate(mixes) if not mix & mask] if mask else range(len(mixes))
        if not sampled:
            return
        table = self.table
        last_s = table.last_at[slots[0]]
        weight_at, worth_at, level_at, group_at = table.weight_at, table.worth_at, table.level_at, table.group_at
        before: tuple[float, ...] = ()
        shown = []
        for at in sampled:
            slot, touch = slots[at], chunks[at]
            facts = (
                weight_at[slot], touches[at], level_at[slot], worth_at[slot], group_at[slot], touch.size_bytes,
                touch.readers,
            )  # fmt: skip
            if facts != before:
                before = facts
                weight, known, level, worth, group, size_bytes, readers = facts
                scored = (last_s, weight, min(known + 1, TOUCHES_MAX), level, worth, turn)
                one = ShownChunk(scored, group, size_bytes, exp2(worth) * size_bytes * readers, known > 0)
            shown.append(one)
        if self.selector.fetched([mixes[at] for at in sampled] if mask else mixes, shown, self._now_s):
            self._active = self._policies[self.selector.active]
            self._order.forget()
        self._sample_mask = self.selector.sample_mask

    def _presume(self, slots: Sequence[int]) -> None:
        """Nobody has fetched these chunks yet: they were put here for somebody who will, as if fetched once now."""
        table, turn = self.table, self.selector.turn
        self._reuse.work_out(_PRESUMED)
        level = self._reuse.levels[_PRESUMED]
        for slot in slots:
            table.last_at[slot], table.turn_at[slot] = self._now_s, turn
            table.weight_at[slot], table.group_at[slot], table.level_at[slot] = 1.0, _PRESUMED, level

    def _stamp(self, slot: int) -> None:
        """As if the chunk were fetched now, for orders that ask when that was."""
        table = self.table
        table.last_at[slot], table.turn_at[slot] = self._now_s, self.selector.turn

    def _weigh(self, slots: Iterable[int], chunks: Sequence[Touch], eviction_costs: EvictionCosts) -> None:
        """Note what evicting these chunks costs for each of their bytes."""
        worth_at = self.table.worth_at
        for slot, touch, cost_s in zip(slots, chunks, eviction_costs(chunks), strict=True):
            worth_at[slot] = log2(cost_s / max(1, touch.size_bytes))

    def _score_one(self, slot: int) -> float:
        table = self.table
        if table.flags_at[slot] & (FINISHED | ORPHAN):
            return FINISHED_SCORE
        last_s = table.last_at[slot]
        facts = (
            last_s, table.weight_at[slot], table.touches_at[slot], table.level_at[slot], table.worth_at[slot],
            table.turn_at[slot],
        )  # fmt: skip
        score = self._scorer.one(self._active, facts)
        if self._active.rule is _AGE:
            score += self._ages.score(table.group_at[slot], self._as_of_s - last_s)
        return score

    def _score_many(self, slots: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
        table = self.table
        last_s = table.last_s[slots]
        scores = self._scorer.many(
            self._active,
            last_s,
            table.weight[slots].astype(np.float64),
            table.touches[slots],
            table.level[slots],
            table.worth[slots].astype(np.float64),
            table.turn[slots],
        )
        if self._active.rule is _AGE:
            scores = scores + self._ages.scores(table.group[slots], self._as_of_s - last_s)
        return np.where(table.flags[slots] & (FINISHED | ORPHAN) != 0, FINISHED_SCORE, scores)

    def _begin_pass(self) -> None:
        self._as_of_s = self._now_s

    def _expire(self) -> None:
        """Whoever asks for an order by age gets one that is not too old."""
        if self._active.rule is _AGE:
            self._order.expire()

    def _ages_changed(self) -> None:
        self.selector.shadows.ages_changed()
        if self._active.rule is _AGE:
            self._order.forget()

    def _find(self, key: ChunkKey) -> int:
        """Slot of a key, NONE if it has none."""
        slot = self._near.get(key)
        return self.table.find(key) if slot is None else slot

    def _slot(self, key: ChunkKey) -> int:
        """Slot of a key, a new one if it has none."""
        near = self._near.get(key)
        if near is not None:
            return near
        slot = self.table.find(key)
        return self._new_slot(key, mixed(key)) if slot == NONE else slot

    def _slots(self, keys: Sequence[ChunkKey], mixes: Sequence[int]) -> list[int]:
        """Slots of the chunks of a fetch, new ones for those that have none."""
        slots = self.table.find_all(keys, mixes)
        if NONE in slots:
            self._held, new = set(slots), dict[ChunkKey, int]()
            for at, slot in enumerate(slots):
                if slot == NONE:
                    key = keys[at]
                    slots[at] = new[key] if key in new else self._new_slot(key, mixes[at])
                    new[key] = slots[at]
            self._held.clear()
        self._near = dict(zip(keys, slots, strict=True))
        return slots

    def _new_slot(self, key: ChunkKey, mix: int) -> int:
        slot = self.table.take(key, mix)
        if slot == NONE:
            self._purge()
            slot = self.table.take(key, mix)
        self._stamp(slot)
        return slot

    def _purge(self) -> None:
        """Forget the chunk fetched longest ago of those that are not here and on which nothing here hangs.

        Ancestors are fetched whenever their descendants are, so what goes first are the ends of prefixes. If all that
        is remembered is in the pool, or of this very moment, the table takes more than `tracked_max`.
        """
        table = self.table
        while self._to_purge:
            slot = self._to_purge.pop()
            if self._may_forget(slot) and table.last_at[slot] <= self._purge_border_s:
                self._near.pop(table.key(slot), None)
                table.drop(slot)
                return
        end = table.end
        idle = (table.flags[:end] & RESIDENT == 0) & (table.children[:end] == 0) & (table.last_s[:end] < self._now_s)
        idle[[slot for slot in self._held if slot != NONE]] = False
        slots = np.flatnonzero(idle)
        if not len(slots):
            table.allow(table.end + max(1, table.end // _ROOM_SHARE))
            return
        last_s = table.last_s[slots]
        count = min(len(slots), max(1, end // _PURGE_SHARE))
        oldest = np.argpartition(last_s, count - 1)[:count]
        self._purge_border_s = float(last_s[oldest].max())
        self._to_purge = slots[oldest[np.argsort(-last_s[oldest], kind="stable")]].tolist()
        self._purge()

    def _may_forget(self, slot: int) -> bool:
        table = self.table
        return not table.flags_at[slot] & RESIDENT and not table.children_at[slot] and slot not in self._held

    def _mark_orphans(self, slot: int, orphans: bool) -> None:
        """All residents that hang on this slot have lost their ancestor, or got it back. Rare, so a few passes over the
        table will do: each looks twice as far up as the one before, so parents that lead in a circle end, too."""
        table = self.table
        end = table.end
        # Only those that do not say so yet.
        here = table.flags[:end] & (RESIDENT | ORPHAN) == (RESIDENT if orphans else RESIDENT | ORPHAN)
        parent = table.parent[:end]
        # One more entry stands for nobody.
        up = np.append(np.where(here & (parent != NONE), parent, end), end)
        below = np.append(here & (parent == slot), False)
        before, found = 0, int(np.count_nonzero(below))
        while found > before:
            below |= below[up]
            up = up[up]
            before, found = found, int(np.count_nonzero(below))
        table.flags[:end][below[:end]] ^= np.uint8(ORPHAN)
        self._order.forget()
