"""What a fetch teaches of its chunks: fetches, times between them, classes, and what the classes say of each. Pure.

Rows stand in the table, counts of classes in `ReuseTimes` and `ReuseAges`. A `FetchTally` keeps what one node has told
of, by chunk and bounded, to tell of it again where nobody knows.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import repeat
from math import exp2, log2
from typing import Final, NamedTuple, TypeAlias

from kvchunk.ids import ChunkKey
from kvpolicy.value.parameters import GAP_EDGES_S, HALF_LIFE_S, NS, POSITION_EARLY, TOUCHES_EXACT
from kvpolicy.value.reuse import (
    GAP_FIRST,
    KIND_KNOWN,
    KIND_NEW,
    PER_GAP,
    PER_TOUCH,
    POSITIONS,
    TOUCH_CLASSES,
    ReuseAges,
    ReuseTimes,
)
from kvpolicy.value.table import FINISHED, MOVED, RESIDENT, ChunkTable

TOUCHES_MAX = 0xFFFF
_GAP_MAX = 0xFFFF


class Touch(NamedTuple):
    """One chunk of one fetch."""

    key: ChunkKey
    parent: ChunkKey | None
    position: int
    """0 for the first chunk of the prefix."""
    size_bytes: int
    readers: int = 1
    """At once."""


@dataclass(frozen=True, slots=True)
class PastFetches:
    """Fetches of a chunk that somebody else counted."""

    touches: int
    """1 to `TOUCHES_MAX`."""
    weight: float
    """The same, each decayed until the last one."""
    idle_s: float
    """Since the last one."""
    gap_s: float | None
    """Between the last two; None: there was only one."""

    def with_others(self, other: PastFetches, half_life_s: float) -> PastFetches:
        """Both together, none of them in both."""
        later, earlier = sorted((self, other), key=lambda past: past.idle_s)
        apart_s = earlier.idle_s - later.idle_s
        return PastFetches(
            min(later.touches + earlier.touches, TOUCHES_MAX),
            later.weight + earlier.weight * exp2(-apart_s / half_life_s),
            later.idle_s,
            apart_s if later.gap_s is None else min(apart_s, later.gap_s),
        )


def _touch_class(touches: int) -> int:
    if touches <= TOUCHES_EXACT:
        return max(0, touches - 1)
    return min(TOUCH_CLASSES - 1, TOUCHES_EXACT + int(2 * log2(touches / TOUCHES_EXACT)))


def _touch_offsets() -> Iterator[int]:
    """Where each count's class stands. Class by class: counts are many, and a process has to wait for this to start."""
    first = 0
    while first <= TOUCHES_MAX:
        own = _touch_class(first)
        after = bisect_right(range(TOUCHES_MAX + 1), own, first, key=_touch_class)
        yield from repeat(own * PER_TOUCH, after - first)
        first = after


_TOUCH_OFFSET: Final = tuple(_touch_offsets())


def kind_of_session(touches_of_branch: int) -> int:
    """Kind by how often the chunk was fetched on which a fetch's new part hangs."""
    if touches_of_branch <= 1:
        return 1
    return 2 if touches_of_branch <= 3 else 3 if touches_of_branch <= 15 else 4


def place_in_prefix(position: int) -> int:
    """Part of a class: the first chunk, an early one, or one behind."""
    return 2 if position == 0 else 1 if position < POSITION_EARLY else 0


def class_of(touches: int, gap_s: float | None, kind: int, place: int, is_last: bool) -> int:
    """Class of a chunk after a fetch; `touches` counts it, `gap_s` is None for the first (`place_in_prefix`)."""
    gap = GAP_FIRST if gap_s is None else bisect_right(GAP_EDGES_S, gap_s)
    return _TOUCH_OFFSET[touches] + gap * PER_GAP + (kind * POSITIONS + place) * 2 + is_last


_History: TypeAlias = tuple[int, float, float, int, int, int, bool]
"""Of a chunk before a fetch: times fetched, the last one in s, decayed weight, class. And of its place in the fetch:
readers, place in the prefix, whether it is the last."""


@dataclass(slots=True)
class _Run:
    """Neighbouring chunks of a fetch with one history, and what the fetch makes of them."""

    left: int | None
    """Class that they were in; None: never fetched before."""
    gap_s: float
    gap_ds: int
    touches: int
    weight: float
    group: int
    count: int = 0


class AccessHistory:
    """Owns what is remembered of each chunk's fetches, and what can be learned from them."""

    def __init__(self, table: ChunkTable, reuse: ReuseTimes, ages: ReuseAges, half_life_s: float) -> None:
        """`half_life_s`: of the decayed fetches."""
        self._table = table
        self._reuse = reuse
        self._ages = ages
        self._half_life_s = half_life_s

    def fetched(
        self, chunks: Sequence[Touch], slots: Sequence[int], touches: Sequence[int], kind: int, now_s: float
    ) -> bool:
        """One fetch of `chunks`, in prefix order, whose rows are `slots` and which were fetched `touches` times before;
        `kind` of session (`reuse`). Returns whether ages say something else than before."""
        self._rank(slots, self._note(chunks, slots, touches, kind, now_s))
        return self._ages.work_out(now_s)

    def remember(
        self, chunks: Sequence[Touch], slots: Sequence[int], pasts: Sequence[PastFetches], now_s: float
    ) -> bool:
        """Fetches of `chunks`, whose rows are `slots`, that somebody else counted. They teach as if all had been as far
        apart as the last two. Returns whether ages say something else than before."""
        groups = [
            self._remember_one(touch, slot, past, now_s) for touch, slot, past in zip(chunks, slots, pasts, strict=True)
        ]
        for group in set(groups):
            self._reuse.work_out(group)
        levels, level_at = self._reuse.levels, self._table.level_at
        for slot, group in zip(slots, groups, strict=True):
            level_at[slot] = max(level_at[slot], levels[group])
        return self._ages.work_out(now_s)

    def _remember_one(self, touch: Touch, slot: int, past: PastFetches, now_s: float) -> int:
        """The row of one chunk, with what it knew already. Returns the class of the chunk."""
        table = self._table
        place = place_in_prefix(touch.position)
        told = past.touches
        if known := table.touches_at[slot]:
            gap_s = table.gap_at[slot] / 10 if known > 1 else None
            own = PastFetches(known, table.weight_at[slot], max(0.0, now_s - table.last_at[slot]), gap_s)
            past = past.with_others(own, self._half_life_s)
        group = class_of(past.touches, past.gap_s, KIND_NEW if past.gap_s is None else KIND_KNOWN, place, False)
        for learned in (self._reuse, self._ages):
            learned.entered(group, told)
            if past.gap_s is not None:
                learned.left(group, past.gap_s, told - 1)
                if known:
                    learned.left(table.group_at[slot], past.gap_s, 1)
        table.touches_at[slot] = past.touches
        table.last_at[slot] = now_s - past.idle_s
        table.weight_at[slot] = past.weight
        table.gap_at[slot] = min(int((past.gap_s or 0.0) * 10), _GAP_MAX)
        table.group_at[slot] = group
        if not table.flags_at[slot] & RESIDENT:
            table.size_at[slot] = touch.size_bytes
        return group

    def _note(
        self, chunks: Sequence[Touch], slots: Sequence[int], touches: Sequence[int], kind: int, now_s: float
    ) -> list[_Run]:
        """Note a fetch in the rows of its chunks. Neighbours have a common history as a rule, and what follows from it
        is worked out once for all of them."""
        table, last = self._table, len(chunks) - 1
        last_at, weight_at, gap_at = table.last_at, table.weight_at, table.gap_at
        touches_at, group_at, flags_at, size_at = table.touches_at, table.group_at, table.flags_at, table.size_at
        history: _History | None = None
        runs: list[_Run] = []
        for at, slot in enumerate(slots):
            touch = chunks[at]
            place = place_in_prefix(touch.position)
            before = (touches[at], last_at[slot], weight_at[slot], group_at[slot], touch.readers, place, at == last)
            if before != history:
                history = before
                run = self._run(before, kind, now_s)
                runs.append(run)
                touched, weight, gap_ds, group = run.touches, run.weight, run.gap_ds, run.group
            run.count += 1
            touches_at[slot] = touched
            last_at[slot] = now_s
            weight_at[slot] = weight
            gap_at[slot] = gap_ds
            group_at[slot] = group
            flags = flags_at[slot]
            if flags & RESIDENT:
                flags_at[slot] = (flags | MOVED) & ~FINISHED
            else:
                size_at[slot] = touch.size_bytes
                if flags:
                    flags_at[slot] = flags & ~FINISHED
        return runs

    def _run(self, history: _History, kind: int, now_s: float) -> _Run:
        """What a fetch makes of chunks with this history."""
        touches, last_s, weight, group, readers, place, is_last = history
        gap_s = now_s - last_s
        touched = min(touches + 1, TOUCHES_MAX)
        return _Run(
            left=group if touches else None,
            gap_s=gap_s,
            gap_ds=min(int(gap_s * 10), _GAP_MAX) if touches else 0,
            touches=touched,
            weight=weight * exp2(-gap_s / self._half_life_s) + readers,
            group=class_of(touched, gap_s if touches else None, kind, place, is_last),
        )

    def _rank(self, slots: Sequence[int], runs: Sequence[_Run]) -> None:
        """Learn how long classes waited, and note what their classes say of chunks just fetched. An ancestor is worth
        at least what its descendants are, so it takes the highest level behind it."""
        reuse, ages = self._reuse, self._ages
        for run in runs:
            if run.left is not None:
                reuse.left(run.left, run.gap_s, run.count)
                ages.left(run.left, run.gap_s, run.count)
            reuse.entered(run.group, run.count)
            ages.entered(run.group, run.count)
        level_at, best, end = self._table.level_at, 0, len(slots)
        for run in reversed(runs):
            reuse.work_out(run.group)
            best = max(best, reuse.levels[run.group])
            for slot in slots[end - run.count : end]:
                level_at[slot] = best
            end -= run.count


class FetchTally:
    """Counts the fetches of the chunks that were fetched last."""

    def __init__(self, chunks_max: int, half_life_s: float = HALF_LIFE_S) -> None:
        """`chunks_max`: the chunk fetched longest ago is forgotten first. `half_life_s`: of a fetch's weight."""
        self._chunks_max = chunks_max
        self._half_life_s = half_life_s
        self._counted: OrderedDict[ChunkKey, tuple[int, float, int, int | None]] = OrderedDict()
        """By chunk, fetched longest ago first: fetches, their weight at the last one, when that was, and the time from
        the one before; in ns."""

    def __len__(self) -> int:
        """Chunks that are remembered."""
        return len(self._counted)

    def fetched(self, key: ChunkKey, at_ns: int) -> None:
        """A fetch of a chunk, told of in the order in which fetches were."""
        before = self._counted.pop(key, None)
        if before is None:
            self._counted[key] = (1, 1.0, at_ns, None)
            if len(self._counted) > self._chunks_max:
                del self._counted[next(iter(self._counted))]
            return
        touches, weight, last_ns, _ = before
        gap_ns = max(0, at_ns - last_ns)
        weight = 1.0 + weight * exp2(-gap_ns * NS / self._half_life_s)
        self._counted[key] = (min(touches + 1, TOUCHES_MAX), min(weight, TOUCHES_MAX), at_ns, gap_ns)

    def past(self, now_ns: int) -> Iterator[tuple[ChunkKey, PastFetches]]:
        """All that is remembered, fetched longest ago first."""
        for key, (touches, weight, last_ns, gap_ns) in self._counted.items():
            gap_s = None if gap_ns is None else gap_ns * NS
            yield key, PastFetches(touches, weight, max(0, now_ns - last_ns) * NS, gap_s)
