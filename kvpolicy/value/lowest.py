"""Who has the lowest score, again and again, while scores change: the queue of all orders of eviction. Pure.

The order is exact and made in passes. One pass sorts the lowest part of all members into a queue and remembers that
part's upper border; whatever comes below the border later goes to a small heap. Nothing is ever taken out of either
when a score changes: an entry counts only if its owner says that it is true still.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Generator, Iterable
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

_SIDE_SLACK: Final = 4
"""Entries of the heap, outdated ones too, for each member of the last pass; then the next pass begins early."""

Entry: TypeAlias = tuple[float, int, int]
"""Score, rank among equal scores, place: the owner's number of the member."""
Scores: TypeAlias = npt.NDArray[np.float64]
Numbers: TypeAlias = npt.NDArray[np.int64]


class LowestFirst:
    """Members by ascending score. The owner keeps scores; it calls `fill` when `first` finds nothing."""

    __slots__ = ("_asks", "_queue", "_queue_min", "_queue_share", "_side", "_side_max", "border", "is_true")

    def __init__(self, is_true: Callable[[float, int], bool], queue_min: int, queue_share: int) -> None:
        """`is_true(score, place)`: there is such a member, and that is its score. A pass queues one in `queue_share`
        members, and at least `queue_min`."""
        self.is_true = is_true
        self._queue_min = queue_min
        self._queue_share = queue_share
        self.forget()

    def forget(self) -> None:
        """Scores mean something else now: nothing is known until the next `fill`."""
        self._queue: list[Entry] = []
        """The lowest last."""
        self._side: list[Entry] = []
        self.border = -math.inf
        """Members that score less are in the queue or in the heap."""
        self._side_max = 0
        self._asks = 0

    def expire(self) -> None:
        """Somebody asks for the lowest of scores that change as time passes: those of the last pass hold for as many
        questions as it queued members."""
        self._asks -= 1
        if self._asks < 0:
            self.forget()

    def changed(self, score: float, rank: int, place: int) -> None:
        """A member came, or has this score now. Owners may leave out the call unless `score < border`."""
        if score >= self.border:
            return
        heapq.heappush(self._side, (score, rank, place))
        if len(self._side) > self._side_max:
            self.forget()

    def first(self) -> Entry | None:
        """The lowest of all members; None if nothing is known to be below the border: `fill`, or there is none."""
        queue, side, is_true = self._queue, self._side, self.is_true
        while True:
            if side and (not queue or side[0] < queue[-1]):
                entry = side[0]
                if is_true(entry[0], entry[2]):
                    return entry
                heapq.heappop(side)
            elif queue:
                entry = queue[-1]
                if is_true(entry[0], entry[2]):
                    return entry
                queue.pop()
            else:
                return None

    def precedes(self, entry: Entry) -> bool:
        """Whether a member that is new below the border is the first for sure: no entry, not even one that is outdated,
        lies before it."""
        side, queue = self._side, self._queue
        return (not side or entry < side[0]) and (not queue or entry < queue[-1])

    def take(self, first: Entry) -> None:
        """Take out what `first` returned, until it is put back."""
        if self._queue and self._queue[-1] is first:
            self._queue.pop()
        else:
            heapq.heappop(self._side)

    def put_back(self, taken: Iterable[Entry]) -> None:
        """Undo `take`. An entry that is no longer true does no harm."""
        for entry in taken:
            if entry[0] < self.border:
                heapq.heappush(self._side, entry)

    def fill(self, scores: Scores, ranks: Numbers, places: Numbers) -> bool:
        """A pass over all members that were not taken, which differ in rank. False if there are none."""
        self.forget()
        if not len(scores):
            return False
        self._side_max = _SIDE_SLACK * (len(scores) + self._queue_min)
        count = self._asks = max(self._queue_min, len(scores) // self._queue_share)
        self.border = math.inf
        if count < len(scores):
            self.border = float(np.partition(scores, count)[count])
            low = scores < self.border
            if not low.any():  # too many score the same
                self.border = math.nextafter(self.border, math.inf)
                low = scores < self.border
            scores, ranks, places = scores[low], ranks[low], places[low]
        order = np.lexsort((ranks, scores))[::-1]
        self._queue = list(zip(scores[order].tolist(), ranks[order].tolist(), places[order].tolist(), strict=True))
        return True

    def ascending(self, fill: Callable[[set[int]], bool]) -> Generator[Entry, None, None]:
        """All members, lowest first. `fill(places)` makes a pass over all but these. Nothing may change meanwhile;
        whoever stops early closes the iterator."""
        taken: list[Entry] = []
        seen: set[int] = set()
        try:
            while True:
                entry = self.first()
                if entry is None:
                    if not fill(seen):
                        return
                    continue
                self.take(entry)
                if entry[2] not in seen:
                    seen.add(entry[2])
                    taken.append(entry)
                    yield entry
        finally:
            self.put_back(taken)
