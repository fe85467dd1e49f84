"""The order in which chunks leave one pool: leaves before their ancestors, cheaper before dearer.

Scores stand in arrays and change only when a chunk is fetched, so the order is worked out in passes: one pass finds
the cheapest part of all leaves, and a small heap holds whatever has since come below that part's upper border.
Together they give the exact order, without an object for each chunk.

Owns the queue; residents, children and scores stand in the table.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterator
from typing import Final

import numpy as np
import numpy.typing as npt

from kvproto.ids import ChunkKey
from kvproto.value.table import MOVED, NONE, RESIDENT, ChunkTable

_QUEUE_MIN: Final = 64
_QUEUE_SHARE: Final = 32
"""A pass queues one in so many leaves."""
_SIDE_SLACK: Final = 4
"""Entries of the heap, outdated ones too, for each leaf of the last pass; then everything is worked out anew."""

Slots = npt.NDArray[np.int64]


class EvictionOrder:
    """Leaves of the residents in a table, cheapest first."""

    def __init__(
        self,
        table: ChunkTable,
        score_one: Callable[[int], float],
        score_many: Callable[[Slots], npt.NDArray[np.float64]],
    ) -> None:
        self._table = table
        self._score_one = score_one
        self._score_many = score_many
        self._queue: list[tuple[float, int]] = []
        """Cheapest last."""
        self._side: list[tuple[float, int]] = []
        self._border = -math.inf
        """Leaves that score less are in the queue or in the heap."""
        self._side_max = 0

    def changed(self, slot: int) -> None:
        """A resident came, was fetched, lost its last child, or is worth something else for another reason."""
        table = self._table
        table.flags_at[slot] |= MOVED
        if table.children_at[slot] or self._border == -math.inf:
            return
        score = self._score_one(slot)
        if score < self._border:
            heapq.heappush(self._side, (score, slot))
            if len(self._side) > self._side_max:
                self.forget()

    def forget(self) -> None:
        """Scores mean something else now."""
        self._queue.clear()
        self._side.clear()
        self._border = -math.inf

    def cheapest(self) -> tuple[float, int] | None:
        """Score and slot of the first of `victims`, without going through them; None if there is no leaf."""
        queue, side = self._settle_queue(), self._settle_side()
        if queue is None and side is None:
            return self._queue[-1] if self._work_out(set()) else None
        if queue is None or side is None:
            return queue or side
        return min(queue, side)

    def victims(self, evictable: Callable[[ChunkKey], bool]) -> Iterator[int]:
        """Slots in the order they should go, each assumed gone before the next. Changes nothing by itself.

        Chunks with children here come last, for the case that all leaves have to stay.
        """
        table = self._table
        seen: set[int] = set()
        passed: list[tuple[float, int]] = []
        orphaned: list[tuple[float, int]] = []
        """Parents whose children were all yielded."""
        gone: dict[int, int] = {}
        """Children that were yielded, by parent."""
        try:
            while True:
                entry = self._next(orphaned, seen)
                if entry is None:
                    break
                slot = entry[1]
                if slot in seen:
                    continue
                seen.add(slot)
                passed.append(entry)
                if not evictable(table.key(slot)):
                    continue
                parent = table.parent_at[slot]
                yield slot
                if parent == NONE or not table.flags_at[parent] & RESIDENT:
                    continue
                gone[parent] = gone.get(parent, 0) + (1 if table.flags_at[slot] & RESIDENT else 0)
                left = table.children_at[parent] - gone[parent]
                if left == 0 and gone[parent]:
                    heapq.heappush(orphaned, (self._score_one(parent), parent))
            yield from self._rest(seen, evictable)
        finally:
            for entry in passed:
                heapq.heappush(self._side, entry)

    def _next(self, orphaned: list[tuple[float, int]], seen: set[int]) -> tuple[float, int] | None:
        """The cheapest leaf; None when there is none but those in `seen`."""
        fruitless = False
        while True:
            queue, side = self._settle_queue(), self._settle_side()
            best = min((heads for heads in (queue, side) if heads is not None), default=None)
            if orphaned and (orphaned[0] < best if best is not None else orphaned[0][0] < self._border or fruitless):
                return heapq.heappop(orphaned)
            if best is not None:
                if best is queue:
                    self._queue.pop()
                else:
                    heapq.heappop(self._side)
                if best[1] in seen:
                    continue
                return best
            if fruitless:
                return None
            fruitless = not self._work_out(seen)

    def _settle_queue(self) -> tuple[float, int] | None:
        flags_at, children_at, queue = self._table.flags_at, self._table.children_at, self._queue
        while queue:
            slot = queue[-1][1]
            if flags_at[slot] & (RESIDENT | MOVED) == RESIDENT and not children_at[slot]:
                return queue[-1]
            queue.pop()
        return None

    def _settle_side(self) -> tuple[float, int] | None:
        table, side = self._table, self._side
        while side:
            told, slot = side[0]
            if not table.flags_at[slot] & RESIDENT or table.children_at[slot]:
                heapq.heappop(side)
                continue
            score = self._score_one(slot)
            if score <= told:
                return side[0]
            if score < self._border:
                heapq.heapreplace(side, (score, slot))
            else:
                heapq.heappop(side)
        return None

    def _work_out(self, seen: set[int]) -> bool:
        """Queue the cheapest leaves anew, without those in `seen`. False if there are none."""
        table = self._table
        end = table.end
        leaves = np.flatnonzero((table.flags[:end] & RESIDENT != 0) & (table.children[:end] == 0))
        table.flags[:end] &= ~np.uint8(MOVED)
        self._queue.clear()
        self._side.clear()
        if seen:
            leaves = leaves[~np.isin(leaves, np.fromiter(seen, np.int64, len(seen)))]
        if not len(leaves):
            self._border = -math.inf
            return False
        scores = self._score_many(leaves)
        self._side_max = _SIDE_SLACK * (len(leaves) + _QUEUE_MIN)
        count = max(_QUEUE_MIN, len(leaves) // _QUEUE_SHARE)
        if count < len(leaves):
            self._border = float(np.partition(scores, count)[count])
            cheap = scores < self._border
            if not cheap.any():
                cheap = scores <= self._border
                self._border = math.nextafter(self._border, math.inf)
            leaves, scores = leaves[cheap], scores[cheap]
        else:
            self._border = math.inf
        ranks = np.argsort(-scores, kind="stable")
        self._queue.extend(zip(scores[ranks].tolist(), leaves[ranks].tolist(), strict=True))
        return True

    def _rest(self, seen: set[int], evictable: Callable[[ChunkKey], bool]) -> Iterator[int]:
        table = self._table
        residents = np.flatnonzero(table.flags[: table.end] & RESIDENT)
        scores = self._score_many(residents)
        for slot in residents[np.argsort(scores, kind="stable")].tolist():
            if slot not in seen and table.flags_at[slot] & RESIDENT and evictable(table.key(slot)):
                yield slot
