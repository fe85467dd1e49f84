"""The chunks fetched most, kept as news comes: to show them costs nothing that grows with the pool. Pure.

All rates shrink alike with time, so an order of scores holds until the next fetch of a chunk. What ranks before a
border is kept here; when enough of that has gone, one pass over the directory finds the rest again.
"""

from __future__ import annotations

import heapq
from typing import Final, TypeAlias

from controlplane.core.directory import Directory
from controlplane.core.ids import ChunkKey
from controlplane.core.values import ClusterValues

KEPT: Final = 1024
"""Chunks left after cleaning up; twice as many begin the next."""

_Rank: TypeAlias = tuple[float, ChunkKey]
"""Score, negated, and key: lower comes first, and no two chunks have the same."""


class Hottest:
    """Chunks of the directory by how often they are fetched."""

    def __init__(self, directory: Directory, values: ClusterValues) -> None:
        self._directory = directory
        self._values = values
        self._ranks: dict[ChunkKey, _Rank] = {}
        self._border: _Rank | None = None
        """All chunks up to this rank are in `_ranks`; None: all chunks."""
        directory.watch(lambda key, came_or_went: self._changed(key) if came_or_went else None)
        values.watch(self._changed)

    def first(self, count: int) -> list[ChunkKey]:
        """The `count` chunks fetched most, in that order; fewer if no more were fetched."""
        if len(self._ranks) < count and self._border is not None:
            self._border = None
            ranks = (self._rank(chunk.key) for chunk in self._directory)
            self._ranks = {rank[1]: rank for rank in ranks if rank is not None}
            self._clean_up(max(count, KEPT))
        return [key for _, key in heapq.nsmallest(count, self._ranks.values())]

    def of(self, namespace: str) -> list[ChunkKey]:
        """The chunks of a namespace that were fetched, those fetched most first; no twins. One pass over the
        directory."""
        ranks = (self._rank(chunk.key) for chunk in self._directory if chunk.facts.namespace == namespace)
        keys = [key for _, key in sorted(rank for rank in ranks if rank is not None)]
        return [key for key in keys if (chunk := self._directory.get(key)) is not None and not chunk.facts.is_twin]

    def _changed(self, key: ChunkKey) -> None:
        """A chunk was fetched, came or went, or is not expected any more."""
        rank = self._rank(key) if key in self._directory else None
        if rank is None or (self._border is not None and rank > self._border):
            self._ranks.pop(key, None)
            return
        self._ranks[key] = rank
        self._clean_up(KEPT)

    def _rank(self, key: ChunkKey) -> _Rank | None:
        score = self._values.rate_score(key)
        return None if score is None else (-score, key)

    def _clean_up(self, kept: int) -> None:
        """Keep the first `kept`, where there are twice as many."""
        if len(self._ranks) >= 2 * kept:
            best = heapq.nsmallest(kept, self._ranks.values())
            self._ranks = {rank[1]: rank for rank in best}
            self._border = best[-1]
