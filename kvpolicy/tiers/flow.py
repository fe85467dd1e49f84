"""Which chunks move next between a node's DRAM and its disk. Pure: plans that the node carries out in the background.

Chunks are copied to disk ahead of their eviction, so that making room in DRAM never waits for a disk and a crash loses
little. While there is room in DRAM the oldest go first; under pressure, those that would be evicted first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Final

from kvchunk.ids import ChunkKey

PRESSURE_FREE_SHARE: Final = 0.1
"""Of the pool; with less than this free, evictions are near."""
PROMOTE_FREE_SHARE: Final = 0.5
"""Promotions leave this share of the pool free for what engines put and fetch."""
VICTIMS_LOOKED_AT: Final = 64


@dataclass(frozen=True, slots=True)
class Stored:
    """A chunk as a disk tier has it."""

    parent: ChunkKey | None
    size_bytes: int


def plan_demotions(
    unsaved: Mapping[ChunkKey, object], victims: Callable[[int], Iterable[ChunkKey]], free_share: float, limit: int
) -> list[ChunkKey]:
    """Keys to copy to disk, the most urgent first.

    `unsaved`: chunks in DRAM without a copy on disk, oldest first. `victims(count)`: what DRAM would evict first;
    asked under pressure only. `limit`: at most this many keys.
    """
    plan: dict[ChunkKey, None] = {}
    if free_share < PRESSURE_FREE_SHARE:
        plan = {key: None for key in victims(VICTIMS_LOOKED_AT) if key in unsaved}
    plan.update(dict.fromkeys(islice(unsaved, limit)))
    return list(islice(plan, limit))


def plan_promotions(
    dearest: Iterable[ChunkKey],
    stored: Callable[[ChunkKey], Stored | None],
    in_dram: Callable[[ChunkKey], bool],
    room_bytes: int,
    limit: int,
) -> list[ChunkKey]:
    """Keys to bring from disk into free DRAM, ancestors before descendants.

    `dearest`: chunks on disk, worth most first. One whose ancestors are neither in DRAM nor on this disk is of no use
    here and stays. No more than `room_bytes` and `limit` chunks.
    """
    plan: dict[ChunkKey, None] = {}
    for key in dearest:
        if len(plan) >= limit or room_bytes <= 0:
            break
        chain = _missing_chain(key, stored, lambda one: in_dram(one) or one in plan)
        if chain is None:
            continue
        size_bytes = sum(size for _, size in chain)
        if size_bytes > room_bytes or len(plan) + len(chain) > limit:
            continue
        room_bytes -= size_bytes
        plan.update({one: None for one, _ in reversed(chain)})
    return list(plan)


def _missing_chain(
    key: ChunkKey, stored: Callable[[ChunkKey], Stored | None], here: Callable[[ChunkKey], bool]
) -> list[tuple[ChunkKey, int]] | None:
    """(key, size) from `key` up to the first ancestor that is here; None when one of them is nowhere."""
    chain: list[tuple[ChunkKey, int]] = []
    at: ChunkKey | None = key
    while at is not None and not here(at):
        found = stored(at)
        if found is None:
            return None
        chain.append((at, found.size_bytes))
        at = found.parent
    return chain
