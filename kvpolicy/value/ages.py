"""How likely a chunk's next fetch is at each age, learned from the stream: the Gittins index of its class.

A chunk's age is the time since its last fetch. Hits fall into bins of age (`AGE_EDGES_S`), by class (`reuse`); so does
the time that chunks stay without a hit. A chunk of age a is worth the best rate that keeping it can still bring:

    index(class, a) = max over b >= a of  hits at ages a to b / time spent at ages a to b             [hits/s]

A burst that is over loses its worth at once, whatever it was worth before, and a chunk that comes back every minute
keeps its own for a minute. Of hits alone the maximum at b = a is the hazard rate; looking ahead makes the index of
Gittins ("Bandit processes and dynamic allocation indices", J. R. Stat. Soc. B 41, 1979). Owns counts only.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import Final

import numpy as np
import numpy.typing as npt

from kvpolicy.value.reuse import CLASSES, PER_TOUCH

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

    @property
    def nbytes(self) -> int:
        """Memory, without what `fresh` takes."""
        return int(self._hits.nbytes + self._entered.nbytes + self._index.nbytes)

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
