"""The order in which chunks leave a pool: leaves before their ancestors, cheapest first, pins never.

One rule for every pool (switch slots, host DRAM). A pool is described by its residents; what a chunk is worth comes
from the value function, through the caller.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from controlplane.ids import ChunkKey


@dataclass(frozen=True, slots=True)
class Resident:
    """A chunk in a pool."""

    key: ChunkKey
    parent: ChunkKey | None
    size_bytes: int
    position: int
    value: float
    """Per byte, from the value function."""
    movable: bool = True
    """False for what is pinned, in use, or on its way in or out."""


def worths(residents: Mapping[ChunkKey, Resident]) -> dict[ChunkKey, float]:
    """Value per byte of each resident, never below that of a resident that hangs below it: to lose an ancestor is to
    lose its descendants' use too."""
    worth = {key: resident.value for key, resident in residents.items()}
    for resident in sorted(residents.values(), key=lambda one: one.position, reverse=True):
        if resident.parent in worth:
            worth[resident.parent] = max(worth[resident.parent], worth[resident.key])
    return worth


def leaves_first(residents: Iterable[Resident]) -> Iterator[Resident]:
    """Yield movable residents in the order they should leave: always one that has no child left in the pool, the
    cheapest of those, the deepest among equals. What an unmovable chunk hangs on stays too."""
    by_key = {resident.key: resident for resident in residents}
    worth = worths(by_key)
    children: dict[ChunkKey, int] = dict.fromkeys(by_key, 0)
    for resident in by_key.values():
        if resident.parent in children:
            children[resident.parent] += 1

    def rank(resident: Resident) -> tuple[float, int, ChunkKey]:
        return worth[resident.key], -resident.position, resident.key

    ready = [(rank(one), one) for one in by_key.values() if one.movable and children[one.key] == 0]
    heapq.heapify(ready)
    while ready:
        _, resident = heapq.heappop(ready)
        yield resident
        parent = by_key.get(resident.parent) if resident.parent is not None else None
        if parent is not None:
            children[parent.key] -= 1
            if children[parent.key] == 0 and parent.movable:
                heapq.heappush(ready, (rank(parent), parent))
