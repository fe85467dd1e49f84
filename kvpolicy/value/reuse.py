"""How soon chunks of a class are fetched again, learned from the stream.

A chunk's class is what its last fetch showed of it: how often it was fetched (`TOUCHES_EXACT`), how long after the time
before (`GAP_EDGES_S`), where it stands in the prefix, whether it was the last chunk of the fetch, and the kind of
session: how well known was the chunk that the fetch's new part hangs on (a template, a conversation, nothing).

    hits/s of a class = fetches again within the horizon / time that chunks of the class waited, at most the horizon

A young class leans on all classes with as many fetches, and those on everything. Rates are kept as *levels*: log2 in
steps of 1/1024, which fit 16 bits per chunk. Owns counts; chunks belong to others.
"""

from __future__ import annotations

import math
from array import array
from bisect import bisect_right
from typing import Final

from kvpolicy.value.parameters import GAP_EDGES_S, POSITION_EARLY, TOUCHES_EXACT

TOUCH_CLASSES: Final = 32
KINDS: Final = 6
POSITIONS: Final = 3
GAPS: Final = len(GAP_EDGES_S) + 2
CLASSES: Final = TOUCH_CLASSES * 2 * KINDS * POSITIONS * GAPS
PER_TOUCH: Final = CLASSES // TOUCH_CLASSES
"""Classes with equally many fetches, side by side."""
_PER_GAP: Final = PER_TOUCH // GAPS
_TOUCHES_MAX: Final = 0xFFFF

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


def _touch_class(touches: int) -> int:
    if touches <= TOUCHES_EXACT:
        return max(0, touches - 1)
    return min(TOUCH_CLASSES - 1, TOUCHES_EXACT + int(2 * math.log2(touches / TOUCHES_EXACT)))


_TOUCH_OFFSET: Final = tuple(_touch_class(touches) * PER_TOUCH for touches in range(_TOUCHES_MAX + 1))


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
    return _TOUCH_OFFSET[touches] + gap * _PER_GAP + (kind * POSITIONS + place) * 2 + is_last


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
