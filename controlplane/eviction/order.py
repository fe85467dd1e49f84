"""What a pool loses with each chunk: the order in which chunks leave it, leaves before their ancestors.

One rule for every pool (switch slots, host DRAM). A pool is described by its residents; what a chunk is worth comes
from the value function, through the caller.
"""

from __future__ import annotations

from collections.abc import Mapping
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


def losses(residents: Mapping[ChunkKey, Resident]) -> dict[ChunkKey, float]:
    """What is lost with each resident: its value and that of all residents below it, in fetches per second.

    Whoever evicts by the smallest loss lets leaves go before their ancestors.
    """
    worth = worths(residents)
    loss = {key: worth[key] * resident.size_bytes for key, resident in residents.items()}
    for resident in sorted(residents.values(), key=lambda one: one.position, reverse=True):
        if resident.parent in loss:
            loss[resident.parent] += loss[resident.key]
    return loss
