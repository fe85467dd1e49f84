"""The order in which chunks leave one pool: leaves before their ancestors, cheaper before dearer.

Scores change when a chunk is fetched, and those that depend on age with each pass of `LowestFirst`, which keeps the
order without an object for each chunk.
Residents, children and scores stand in the table.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterator
from typing import Final

import numpy as np
import numpy.typing as npt

from kvchunk.ids import ChunkKey
from kvpolicy.value.lowest import Entry, LowestFirst
from kvpolicy.value.reuse import FINISHED_SCORE
from kvpolicy.value.table import MOVED, NONE, RESIDENT, ChunkTable

QUEUE_MIN: Final = 64
QUEUE_SHARE: Final = 32

Slots = npt.NDArray[np.int64]


class EvictionOrder:
    """Leaves of the residents in a table, cheapest first."""

    def __init__(
        self,
        table: ChunkTable,
        score_one: Callable[[int], float],
        score_many: Callable[[Slots], npt.NDArray[np.float64]],
        begin_pass: Callable[[], None],
    ) -> None:
        """`score_one(slot)`, `score_many(slots)`: what rows of the table score; lower goes first. Scores may change
        with time where `begin_pass` is called, and at no other time unless `changed` or `forget` says so."""
        self._table = table
        self._score_one = score_one
        self._score_many = score_many
        self._begin_pass = begin_pass
        self._leaves = LowestFirst(self._is_leaf, QUEUE_MIN, QUEUE_SHARE)

    def changed(self, slot: int) -> None:
        """A resident came, was fetched, lost its last child, or is worth something else for another reason."""
        table = self._table
        table.flags_at[slot] |= MOVED
        if table.children_at[slot] or self._leaves.border == -math.inf:
            return
        self._leaves.changed(self._score_one(slot), slot, slot)

    def forget(self) -> None:
        """Scores mean something else now."""
        self._leaves.forget()

    def expire(self) -> None:
        """See `LowestFirst.expire`."""
        self._leaves.expire()

    def cheapest(self) -> tuple[float, int] | None:
        """Score and slot of the first of `victims`, without going through them; None if there is no leaf."""
        while (entry := self._leaves.first()) is None:
            if not self._fill(set()):
                return None
        return entry[0], entry[2]

    def victims(self, evictable: Callable[[ChunkKey], bool]) -> Iterator[int]:
        """Slots in the order they should go, each assumed gone before the next. Changes nothing by itself.

        Chunks with children here come last, for the case that all leaves have to stay.
        """
        table = self._table
        seen: set[int] = set()
        passed: list[Entry] = []
        orphaned: list[Entry] = []
        """Parents whose children were all yielded."""
        gone: dict[int, int] = {}
        """Children that were yielded, by parent."""
        try:
            while (entry := self._next(orphaned, seen)) is not None:
                slot = entry[2]
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
                    heapq.heappush(orphaned, (self._score_one(parent), parent, parent))
            yield from self._rest(seen, gone, evictable)
        finally:
            self._leaves.put_back(passed)

    def _next(self, orphaned: list[Entry], seen: set[int]) -> Entry | None:
        """The cheapest leaf; None when there is none but those in `seen`."""
        fruitless = False
        while True:
            best = self._leaves.first()
            limit = best if best is not None else (math.inf if fruitless else self._leaves.border, -1, -1)
            if orphaned and orphaned[0] < limit:
                return heapq.heappop(orphaned)
            if best is not None:
                self._leaves.take(best)
                return best
            if fruitless:
                return None
            fruitless = not self._fill(seen)

    def _is_leaf(self, score: float, slot: int) -> bool:
        """There is this leaf, with this score. The queue's scores are true until a resident moves."""
        flags = self._table.flags_at[slot]
        if not flags & RESIDENT or self._table.children_at[slot]:
            return False
        return not flags & MOVED or bool(self._score_one(slot) == score)

    def _fill(self, seen: set[int]) -> bool:
        """Work out the order of the leaves that are not in `seen`. False if there are none."""
        self._begin_pass()
        table, end = self._table, self._table.end
        leaves = np.flatnonzero((table.flags[:end] & RESIDENT != 0) & (table.children[:end] == 0))
        table.flags[:end] &= ~np.uint8(MOVED)
        if seen:
            leaves = leaves[~np.isin(leaves, np.fromiter(seen, np.int64, len(seen)))]
        # Of equals the row taken last goes first.
        return self._leaves.fill(self._score_many(leaves), -leaves, leaves)

    def _rest(self, seen: set[int], gone: dict[int, int], evictable: Callable[[ChunkKey], bool]) -> Iterator[int]:
        """Chunks with children that stay. What hangs on one that goes is worth nothing, and one may become a leaf."""
        table = self._table
        residents = np.flatnonzero(table.flags[: table.end] & RESIDENT)
        heap = [
            (True, score, slot, slot)
            for slot, score in zip(residents.tolist(), self._score_many(residents).tolist(), strict=True)
            if slot not in seen
        ]
        heapq.heapify(heap)
        below: dict[int, list[int]] | None = None
        orphans: set[int] = set()
        while heap:
            slot = heapq.heappop(heap)[-1]
            if slot in seen:
                continue
            seen.add(slot)
            if not table.flags_at[slot] & RESIDENT or not evictable(table.key(slot)):
                continue
            yield slot
            if below is None:
                below = self._children_of(residents)
            lost = [slot]
            while lost:
                for child in below.pop(lost.pop(), ()):
                    lost.append(child)
                    orphans.add(child)
                    if child not in seen:
                        heapq.heappush(
                            heap, (table.children_at[child] > gone.get(child, 0), FINISHED_SCORE, child, child)
                        )
            parent = table.parent_at[slot]
            if parent != NONE and table.flags_at[parent] & RESIDENT:
                gone[parent] = gone.get(parent, 0) + 1
                if gone[parent] == table.children_at[parent] and parent not in seen:
                    score = FINISHED_SCORE if parent in orphans else self._score_one(parent)
                    heapq.heappush(heap, (False, score, -parent, parent))

    def _children_of(self, slots: Slots) -> dict[int, list[int]]:
        below: dict[int, list[int]] = {}
        for slot, parent in zip(slots.tolist(), self._table.parent[slots].tolist(), strict=True):
            below.setdefault(parent, []).append(slot)
        return below
