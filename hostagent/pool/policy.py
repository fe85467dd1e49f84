"""The order of eviction. Owns nothing but order: whether a chunk may go at all is asked of the manager.

`LeavesFirst` is the local fallback and the tie-breaker of the controller's values: a chunk goes before its parent
(a chunk whose ancestors are gone is worth nothing), cheaper before dearer, and among equals the one not touched for
longest.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

from kvproto.ids import ChunkKey

HEAP_SLACK = 4
"""Stale heap entries tolerated per live one before the heap is rebuilt."""


class EvictionPolicy(Protocol):
    """What the pool asks of an order."""

    def add(self, key: ChunkKey, parent: ChunkKey | None) -> None: ...
    def touch(self, key: ChunkKey) -> None: ...
    def remove(self, key: ChunkKey) -> None: ...
    def set_value(self, key: ChunkKey, value: float) -> None: ...
    def value(self, key: ChunkKey) -> float | None: ...
    def trust_values(self, trusted: bool) -> None: ...
    def victims(self, evictable: Callable[[ChunkKey], bool]) -> Iterator[ChunkKey]: ...


@dataclass(slots=True)
class _Entry:
    parent: ChunkKey | None
    tick: int
    value: float


class LeavesFirst:
    """Leaves first; among leaves by the controller's value while it is trusted, then least recently used."""

    def __init__(self) -> None:
        self._entries: dict[ChunkKey, _Entry] = {}
        self._children: dict[ChunkKey, int] = {}
        self._heap: list[tuple[float, int, ChunkKey]] = []
        self._tick = 0
        self._trusted = False

    def add(self, key: ChunkKey, parent: ChunkKey | None) -> None:
        """A chunk arrived; it counts as just touched. Raises ValueError when it is known already."""
        if key in self._entries:
            raise ValueError(f"chunk {key.hex()} is in the order already")
        self._tick += 1
        # A chunk that the controller has not valued yet is the newest there is: it gets the benefit of the doubt.
        self._entries[key] = _Entry(parent, self._tick, math.inf)
        if parent is not None:
            self._children[parent] = self._children.get(parent, 0) + 1
        self._push(key)

    def touch(self, key: ChunkKey) -> None:
        """The chunk was used."""
        entry = self._entries[key]
        self._tick += 1
        entry.tick = self._tick
        self._push(key)

    def remove(self, key: ChunkKey) -> None:
        """The chunk is gone."""
        entry = self._entries.pop(key)
        if entry.parent is not None:
            left = self._children[entry.parent] - 1
            if left:
                self._children[entry.parent] = left
            else:
                del self._children[entry.parent]
                if entry.parent in self._entries:
                    self._push(entry.parent)

    def set_value(self, key: ChunkKey, value: float) -> None:
        """The controller's value of the chunk; only its order among chunks means anything."""
        entry = self._entries.get(key)
        if entry is not None and entry.value != value:
            entry.value = value
            self._push(key)

    def value(self, key: ChunkKey) -> float | None:
        """The controller's value of a chunk in the order; None while it is not known or not fresh."""
        entry = self._entries.get(key)
        return entry.value if entry is not None and self._trusted and entry.value != math.inf else None

    def trust_values(self, trusted: bool) -> None:
        """Whether the controller's values are fresh; without them the order is by use alone."""
        if trusted != self._trusted:
            self._trusted = trusted
            self._rebuild()

    def victims(self, evictable: Callable[[ChunkKey], bool]) -> Iterator[ChunkKey]:
        """Keys in the order they should go, each assumed gone before the next. Changes nothing by itself.

        Chunks that have children here come last, for the case that all leaves are in use.
        """
        seen: list[tuple[float, int, ChunkKey]] = []
        planned: set[ChunkKey] = set()
        children_left: dict[ChunkKey, int] = {}
        parents: list[tuple[float, int, ChunkKey]] = []
        try:
            while self._heap or parents:
                from_parents = bool(parents) and (not self._heap or parents[0] < self._heap[0])
                item = heapq.heappop(parents if from_parents else self._heap)
                key = item[2]
                if not from_parents:
                    if not self._is_current(item):
                        continue
                    seen.append(item)
                if key in planned or not evictable(key):
                    continue
                planned.add(key)
                yield key
                parent = self._entries[key].parent if key in self._entries else None
                if parent is not None and parent in self._entries:
                    left = children_left.get(parent, self._children.get(parent, 0)) - 1
                    children_left[parent] = left
                    if left == 0:
                        heapq.heappush(parents, self._order(parent))
            rest = sorted(self._order(key) for key in self._entries if key not in planned and evictable(key))
            for item in rest:
                yield item[2]
        finally:
            for item in seen:
                if self._is_current(item):
                    heapq.heappush(self._heap, item)

    def _order(self, key: ChunkKey) -> tuple[float, int, ChunkKey]:
        entry = self._entries[key]
        return (entry.value if self._trusted else 0.0, entry.tick, key)

    def _is_current(self, item: tuple[float, int, ChunkKey]) -> bool:
        key = item[2]
        return key in self._entries and key not in self._children and item == self._order(key)

    def _push(self, key: ChunkKey) -> None:
        if key in self._children:
            return
        if len(self._heap) > HEAP_SLACK * len(self._entries) + HEAP_SLACK:
            self._rebuild()
        heapq.heappush(self._heap, self._order(key))

    def _rebuild(self) -> None:
        self._heap = [self._order(key) for key in self._entries if key not in self._children]
        heapq.heapify(self._heap)
