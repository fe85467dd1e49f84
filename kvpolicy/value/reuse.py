"""How soon chunks of a class are fetched again, and how likely at each age, learned from the stream.

A chunk's class is what its last fetch showed of it: how often it was fetched (`TOUCHES_EXACT`), how long after the time
before (`GAP_EDGES_S`), where it stands in the prefix, whether it was the last chunk of the fetch, and the kind of
session: how well known was the chunk that the fetch's new part hangs on (a template, a conversation, nothing).

    hits/s of a class = fetches again within the horizon / time that chunks of the class waited, at most the horizon

A young class leans on all classes with as many fetches, and those on everything. Rates are kept as *levels*: log2 in
steps of 1/1024, which fit 16 bits per chunk. `ReuseTimes` owns counts; chunks belong to others.

A chunk's age is the time since its last fetch. Hits fall into bins of age (`AGE_EDGES_S`), by class (`reuse`); so does
the time that chunks stay without a hit. A chunk of age a is worth the best rate that keeping it can still bring:

    index(class, a) = max over b >= a of  hits at ages a to b / time spent at ages a to b             [hits/s]

A burst that is over loses its worth at once, whatever it was worth before, and a chunk that comes back every minute
keeps its own for a minute. Of hits alone the maximum at b = a is the hazard rate; looking ahead makes the index of
Gittins ("Bandit processes and dynamic allocation indices", J. R. Stat. Soc. B 41, 1979). `ReuseAges` owns counts only.

`AgingScores` keeps what leaves of a shadow score by age in rows of arrays: a pass works out only those whose score has
changed. The index of a class holds for a bin of age, so a score is written in a form that stays the same within one:

    base + index(class, age) + recency x last fetch

which is the score of that moment plus what all leaves lose alike as time passes. It owns the rows; who is a leaf is
said by others, who may say it late: `put` and `drop` need be called before a pass only.
"""

from __future__ import annotations

import math
from array import array
from bisect import bisect_right
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from kvpolicy.value.parameters import GAP_EDGES_S

TOUCH_CLASSES: Final = 32
KINDS: Final = 6
POSITIONS: Final = 3
GAPS: Final = len(GAP_EDGES_S) + 2
CLASSES: Final = TOUCH_CLASSES * 2 * KINDS * POSITIONS * GAPS
PER_TOUCH: Final = CLASSES // TOUCH_CLASSES
"""Classes with equally many fetches, side by side."""
PER_GAP: Final = PER_TOUCH // GAPS

KIND_NEW: Final = 0
"""Nothing of the fetch was known."""
KIND_KNOWN: Final = KINDS - 1
"""Everything was."""
GAP_FIRST: Final = GAPS - 1

LEVEL_STEPS: Final = 1024
"""Levels in a factor of two."""
LEVEL_LOWEST: Final = 40
"""Level 0 is a rate of 2^-LEVEL_LOWEST per second."""
_LEVEL_MAX: Final = 0xFFFF
_HITS_BEFORE: Final = 1.0
"""Hits that are presumed before any was seen."""

assert CLASSES <= 0xFFFF
assert _LEVEL_MAX / LEVEL_STEPS - LEVEL_LOWEST > 20


def level_of(rate_per_s: float) -> int:
    """Level of a rate above 0."""
    return min(_LEVEL_MAX, max(0, round((math.log2(rate_per_s) + LEVEL_LOWEST) * LEVEL_STEPS)))


class ReuseTimes:
    """Hits per second by class: hits within the horizon and the waiting time that they cut short, by class and by
    number of fetches."""

    def __init__(self, horizon_s: float, class_prior: float, learn_half_touches: int) -> None:
        self._horizon_s = horizon_s
        self._hits = array("d", bytes(8 * CLASSES))
        self._spared_s = array("d", bytes(8 * CLASSES))
        self._coarse_hits = array("d", bytes(8 * TOUCH_CLASSES))
        self._coarse_spared_s = array("d", bytes(8 * TOUCH_CLASSES))
        self._all_hits = _HITS_BEFORE
        self._prior = class_prior
        self._learn_half_touches = learn_half_touches
        self._entered = array("d", bytes(8 * CLASSES))
        self._coarse_entered = array("d", bytes(8 * TOUCH_CLASSES))
        self._all_entered = 4.0
        self.levels = array("H", bytes(2 * CLASSES))
        """By class, as last worked out: `work_out` a class before reading."""
        self._due = array("d", bytes(8 * CLASSES))
        """Once a class has been entered this many times, its rates are recomputed."""

    def entered(self, group: int, chunks: int) -> None:
        """`chunks` more chunks are in this class from now on."""
        self._entered[group] += chunks
        self._coarse_entered[group // PER_TOUCH] += chunks
        self._all_entered += chunks
        if self._all_entered >= self._learn_half_touches:
            self._halve()

    def left(self, group: int, gap_s: float, chunks: int) -> None:
        """`chunks` chunks of this class were fetched again after `gap_s`."""
        if gap_s <= self._horizon_s:
            coarse, spared_s = group // PER_TOUCH, (self._horizon_s - gap_s) * chunks
            self._hits[group] += chunks
            self._spared_s[group] += spared_s
            self._coarse_hits[coarse] += chunks
            self._coarse_spared_s[coarse] += spared_s
            self._all_hits += chunks

    def work_out(self, group: int) -> None:
        """Bring `levels` of a class up to date; cheap when little was learned since the last time."""
        if self._entered[group] >= self._due[group]:
            self._work_out(group)

    def _work_out(self, group: int) -> None:
        entered, coarse, prior = self._entered[group], group // PER_TOUCH, self._prior
        if self._all_hits > _HITS_BEFORE:  # else all chunks are equal, and below those of later times
            seconds = self._horizon_s
            above = (self._coarse_hits[coarse] + prior * self._all_hits / self._all_entered) / (
                (self._coarse_entered[coarse] + prior) * seconds - self._coarse_spared_s[coarse]
            )
            rate = (self._hits[group] + prior * above * seconds) / ((entered + prior) * seconds - self._spared_s[group])
            self.levels[group] = level_of(rate)
        self._due[group] = entered + 1 + entered / 512

    def _halve(self) -> None:
        self._all_entered /= 2
        self._all_hits /= 2
        counted = (self._entered, self._coarse_entered, self._hits, self._spared_s)
        for counts in (*counted, self._coarse_hits, self._coarse_spared_s, self._due):
            for at, count in enumerate(counts):
                counts[at] = count / 2


Floats = npt.NDArray[np.float64]
Numbers = npt.NDArray[np.int64]

AGE_EDGES_S: Final = tuple(2.0**power for power in range(-3, 14))
"""Borders between bins of age: an eighth of a second to two hours and a quarter."""
AGES: Final = len(AGE_EDGES_S) + 1
NEVER: Final = CLASSES
"""Class of what is not expected again."""
FINISHED_SCORE: Final = -1e18
"""Of it: below any score."""

_EDGES: Final = np.array(AGE_EDGES_S)
_HOLDS_UNTIL: Final = np.array((*AGE_EDGES_S, np.inf))
_BEGINS: Final = np.array((0.0, *AGE_EDGES_S))
_ENDS: Final = np.array((*AGE_EDGES_S, 2 * AGE_EDGES_S[-1]))
_WIDTHS: Final = _ENDS - _BEGINS
_LOWEST: Final = -40.0
"""log2 of the index where no hit was ever seen."""
RECENCY: Final = 1e-6
"""What a second of age takes off a score: of one class and bin, what was fetched longest ago goes first."""
_DUE_MIN, _DUE_MAX, _DUE_SHARE = 64.0, 8192.0, 16
"""Chunks fetched between two computations of the index: a share of all so far, within these limits."""


class ReuseAges:
    """Index by class and age."""

    def __init__(self, class_prior: float, learn_half_touches: int) -> None:
        """`class_prior`: chunks that the coarser class counts for in a finer one; see `ValueParameters`."""
        self._prior = class_prior
        self._learn_half_touches = learn_half_touches
        self._hits = np.zeros((CLASSES, AGES))
        self._hits_at = self._hits.reshape(-1).data
        self._entered = np.zeros(CLASSES)
        self._entered_at = self._entered.data
        self._total = 0.0
        self._due = _DUE_MIN
        self._began_s: float | None = None
        self._index = np.full((CLASSES + 1, AGES), _LOWEST)
        self._index[NEVER] = FINISHED_SCORE
        self._index_at = self._index.reshape(-1).data
        self.fresh: list[float] = self._index[:, 0].tolist()
        """By class: log2 of the index at age 0."""

    def entered(self, group: int, chunks: int) -> None:
        """`chunks` more chunks are in this class from now on."""
        self._entered_at[group] += chunks
        self._total += chunks

    def left(self, group: int, gap_s: float, chunks: int) -> None:
        """`chunks` chunks of this class were fetched again at the age of `gap_s`."""
        self._hits_at[group * AGES + bisect_right(AGE_EDGES_S, gap_s)] += chunks

    def log_index(self, group: int, age_s: float) -> float:
        """log2 of the index of one chunk, in hits/s."""
        return self._index_at[group * AGES + bisect_right(AGE_EDGES_S, age_s)]

    def log_indices(self, groups: npt.NDArray[np.integer], ages_s: Floats) -> tuple[Floats, Floats]:
        """`log_index` of many chunks, and the ages at which it changes next."""
        bins = np.searchsorted(_EDGES, ages_s, side="right")
        return self._index[groups, bins], _HOLDS_UNTIL[bins]

    def score(self, group: int, age_s: float) -> float:
        """`log_index`, and what age takes off it."""
        return self.log_index(group, age_s) - RECENCY * age_s

    def scores(self, groups: npt.NDArray[np.integer], ages_s: Floats) -> Floats:
        """`score` of many chunks."""
        return self.log_indices(groups, ages_s)[0] - RECENCY * ages_s

    def work_out(self, now_s: float) -> bool:
        """Bring the index up to date, if enough was learned since the last time. True if it was."""
        if self._began_s is None:
            self._began_s = now_s
        if self._total < self._due or now_s <= self._began_s:
            return False
        if self._total >= self._learn_half_touches:
            for counts in (self._hits, self._entered):
                counts /= 2
            self._total /= 2
        self._due = self._total + min(_DUE_MAX, max(_DUE_MIN, self._total / _DUE_SHARE))
        groups = np.flatnonzero(self._entered)
        entered, hits = self._entered[groups], self._hits[groups]
        spent_s = _spent_s(entered, hits, now_s - self._began_s)
        self._index[groups] = np.log2(
            np.maximum(_best_rate(*self._leaning(groups, entered, hits, spent_s)), 2**_LOWEST)
        )
        self.fresh = self._index[:, 0].tolist()
        return True

    def _leaning(self, groups: Numbers, entered: Floats, hits: Floats, spent_s: Floats) -> tuple[Floats, Floats]:
        """Hits and time of each class, with the prior: classes with as many fetches, and for those all classes."""
        coarse = groups // PER_TOUCH
        first = np.flatnonzero(np.diff(coarse, prepend=-1))
        above = np.repeat(np.arange(len(first)), np.diff(first, append=len(groups)))
        total = np.add.reduceat(entered, first)[:, None] + self._prior
        leaning = []
        for counts in (hits, spent_s):
            of_all = counts.sum(axis=0) / entered.sum()
            of_touches = (np.add.reduceat(counts, first, axis=0) + self._prior * of_all) / total
            leaning.append(counts + self._prior * of_touches[above])
        return leaning[0], leaning[1]


def _spent_s(entered: Floats, hits: Floats, life_s: float) -> Floats:
    """Time that chunks of each class spent in each bin of age, in all. What still waits is taken to have come evenly
    over the time `life_s` that the stream lasts: nothing can be older than that."""
    later = np.cumsum(hits[:, ::-1], axis=1)[:, ::-1]
    waiting = np.maximum(entered - later[:, 0], 0.0)
    begins, ends = np.minimum(_BEGINS, life_s), np.minimum(_ENDS, life_s)
    waiting_s = (ends - begins) - (ends**2 - begins**2) / (2 * life_s)
    spent_s: Floats = (later - hits / 2) * _WIDTHS + waiting[:, None] * waiting_s
    return spent_s


def _best_rate(hits: Floats, spent_s: Floats) -> Floats:
    """The index by class and bin, in hits/s."""
    best = np.empty_like(hits)
    for age in range(AGES):
        ahead_s = np.maximum(np.cumsum(spent_s[:, age:], axis=1), 1e-9)
        best[:, age] = (np.cumsum(hits[:, age:], axis=1) / ahead_s).max(axis=1)
    return best


_ROWS_FIRST: Final = 64
_COLUMNS: Final[dict[str, str]] = {
    "chunk": "i8",
    "group": "u2",
    "base": "f8",
    "last_s": "f8",
    "score": "f8",
    "until_s": "f8",
}
"""`until_s`: age at which the score changes next."""


class AgingScores:
    """Scores of chunks that get older, by the number of the chunk."""

    _chunk: npt.NDArray[np.int64]
    _group: npt.NDArray[np.uint16]
    _base: Floats
    _last_s: Floats
    _score: Floats
    _until_s: Floats
    _chunk_at: Any
    _group_at: Any
    _base_at: Any
    _last_s_at: Any
    _score_at: Any
    _until_s_at: Any

    def __init__(self, ages: ReuseAges) -> None:
        self._ages = ages
        self._rows: dict[int, int] = {}
        self._free: list[int] = []
        self._end = 0
        """All rows in use lie below it."""
        self._grow(_ROWS_FIRST)

    def __len__(self) -> int:
        return len(self._rows)

    def one(self, base: float, group: int, last_s: float, now_s: float) -> float:
        """Score of a chunk of this class, fetched last at `last_s`, whatever is in the rows."""
        return base + (self._ages.log_index(group, now_s - last_s) + RECENCY * last_s)

    def put(self, chunk: int, base: float, group: int, last_s: float) -> None:
        """There is this chunk, or something else is known of it now."""
        row = self._rows.get(chunk)
        if row is None:
            row = self._free.pop() if self._free else self._new_row()
            self._rows[chunk] = row
            self._chunk_at[row] = chunk
        self._base_at[row], self._group_at[row], self._last_s_at[row] = base, group, last_s
        self._score_at[row] = self._until_s_at[row] = -math.inf

    def drop(self, chunk: int) -> None:
        """The chunk is gone, if it was here."""
        row = self._rows.pop(chunk, None)
        if row is not None:
            self._score_at[row] = self._until_s_at[row] = math.inf
            self._free.append(row)

    def clear(self) -> None:
        """All are gone."""
        self._rows.clear()
        self._free.clear()
        self._end = 0

    def ages_changed(self) -> None:
        """The index says something else than before."""
        self._until_s[: self._end] = np.where(self._score[: self._end] < math.inf, -math.inf, math.inf)

    def grow_older(self, now_s: float) -> tuple[list[int], list[float]]:
        """It is `now_s`. Returns the chunks that were put, or score something else than before, and their scores."""
        end = self._end
        ages_s = now_s - self._last_s[:end]
        due = np.flatnonzero(ages_s >= self._until_s[:end])
        index, self._until_s[due] = self._ages.log_indices(self._group[due], ages_s[due])
        scores = self._base[due] + (index + RECENCY * self._last_s[due])
        self._score[due] = scores
        return self._chunk[due].tolist(), scores.tolist()

    def all(self) -> tuple[Floats, Numbers]:
        """Scores as of the last `grow_older`, and chunks."""
        scores, chunks = self._score[: self._end], self._chunk[: self._end]
        if not self._free:
            return scores, chunks
        here = scores < math.inf
        return scores[here], chunks[here]

    def _new_row(self) -> int:
        if self._end == len(self._chunk):
            self._grow(2 * self._end)
        self._end += 1
        return self._end - 1

    def _grow(self, rows: int) -> None:
        for name, kind in _COLUMNS.items():
            column = np.zeros(rows, kind)
            if self._end:
                column[: self._end] = getattr(self, f"_{name}")
            setattr(self, f"_{name}", column)
            setattr(self, f"_{name}_at", column.data)
