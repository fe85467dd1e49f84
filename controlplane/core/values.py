"""What a chunk is worth to all nodes together, for the switch's slots, spill, pushes and the operator.

The formula and the rates are `kvpolicy.value`'s; this adds what the directory knows: who else could give the chunk, and
so what a copy saves. Owns the fetch history of the cluster; the directory and time belong to the callers.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, TypeAlias

from controlplane.core.directory import Directory
from controlplane.core.ids import ChunkKey, NodeIndex
from kvpolicy.value import POLICIES, CacheValues, PastFetches, Rule, SourceCosts, Tier, Touch, ValueParameters, value
from kvpolicy.value.table import NONE, mixed

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
        directory.watch(lambda keys, are_new_or_lost: self._came_or_went(keys) if are_new_or_lost else None)
        values.watch(self._changed)

    def first(self, count: int) -> list[ChunkKey]:
        """The `count` chunks fetched most, in that order; fewer if no more were fetched."""
        if len(self._ranks) < count and self._border is not None:
            self._border = None
            ranks = map(self._rank, self._directory.keys())
            self._ranks = {rank[1]: rank for rank in ranks if rank is not None}
            self._clean_up(max(count, KEPT))
        return [key for _, key in heapq.nsmallest(count, self._ranks.values())]

    def of(self, namespace: str) -> list[ChunkKey]:
        """The chunks of a namespace that were fetched, those fetched most first; no twins. One pass over the
        directory."""
        ranks = map(self._rank, self._directory.keys(namespace))
        keys = [key for _, key in sorted(rank for rank in ranks if rank is not None)]
        return [key for key in keys if (chunk := self._directory.get(key)) is not None and not chunk.facts.is_twin]

    def _came_or_went(self, keys: Sequence[ChunkKey]) -> None:
        remembered = self._values.remembered(keys)
        for key in keys if self._ranks or remembered else ():
            if key in self._ranks or key in remembered:
                self._changed(key)

    def _changed(self, key: ChunkKey) -> None:
        """A chunk was fetched, came or went, or is not expected any more."""
        rank = self._rank(key)
        if rank is None or key not in self._directory or (self._border is not None and rank > self._border):
            self._ranks.pop(key, None)
            return
        self._ranks[key] = rank
        self._clean_up(KEPT)

    def _rank(self, key: ChunkKey) -> _Rank | None:
        score = self._values.cache.score(key)
        return None if score is None else (-score, key)

    def _clean_up(self, kept: int) -> None:
        """Keep the first `kept`, where there are twice as many."""
        if len(self._ranks) >= 2 * kept:
            best = heapq.nsmallest(kept, self._ranks.values())
            self._ranks = {rank[1]: rank for rank in best}
            self._border = best[-1]


_RATE_ONLY: Final = tuple(one for one in POLICIES if one.rule is Rule.RATE)
_UNBOUNDED_BYTES: Final = 1 << 62
"""The cluster has no capacity of its own: nothing is evicted from it."""
_SCORE_OF_NEVER: Final = -1e9


class ClusterValues:
    """Watches fetches of all nodes; says what a copy of a chunk is worth at a moment."""

    def __init__(
        self, directory: Directory, parameters: ValueParameters | None = None, costs: SourceCosts | None = None
    ) -> None:
        self._directory = directory
        self.cache = CacheValues(_UNBOUNDED_BYTES, parameters, _RATE_ONLY)
        """Fetches of all nodes."""
        self.costs = costs or SourceCosts()
        """The measured times of sources."""
        self._unit_rate = math.log(2) / self.cache.parameters.half_life_s
        """What one fetch adds to a decayed rate."""
        self._watchers: list[Callable[[ChunkKey], None]] = []

    def watch(self, changed: Callable[[ChunkKey], None]) -> None:
        """Call `changed(key)` whenever a fetch or a hint changes what a chunk is worth."""
        self._watchers.append(changed)

    def fetched(self, keys: Sequence[ChunkKey], now_ns: int) -> None:
        """A node fetched these, in the order reported: runs in which each is the parent of the next are one fetch."""
        run: list[Touch] = []
        for key in keys:
            touch = self._touch(key)
            if run and touch.parent != run[-1].key:
                self.cache.fetched(run, now_ns)
                run = []
            run.append(touch)
        if run:
            self.cache.fetched(run, now_ns)
        self._tell(keys)

    def remember(self, past: Mapping[ChunkKey, PastFetches], now_ns: int) -> None:
        """A node says what it told controllers before this one."""
        self.cache.remember([self._touch(key) for key in past], list(past.values()), now_ns)
        self._tell(past)

    def finished(self, keys: Iterable[ChunkKey], now_ns: int) -> None:
        """Not expected again (the session ended)."""
        keys = tuple(keys)
        self.cache.finished(keys, now_ns)
        self._tell(keys)

    def expect(self, key: ChunkKey, now_ns: int, within_s: float) -> None:
        """The chunk will be fetched in about `within_s`."""
        self.cache.expect([key], within_s, now_ns)
        self._tell([key])

    def value(
        self,
        key: ChunkKey,
        size_bytes: int,
        rooted: bool,
        now_ns: int,
        waiting: int = 0,
        losing: NodeIndex | None = None,
    ) -> float:
        """Seconds saved per byte and second by one more copy; 0 for a chunk whose ancestors are gone.

        `waiting`: nodes known to fetch it at this moment, whose fetches nobody has reported yet. `losing`: the node
        whose copy is at stake, so it does not count as another source.
        """
        rate = self.cache.rate(key, now_ns) + waiting * self._unit_rate
        return value(rate, self.saved_s(key, size_bytes, losing), size_bytes, rooted=rooted)

    def value_moved(self, key: ChunkKey, size_bytes: int, rooted: bool, now_ns: int, losing: NodeIndex) -> float:
        """Seconds saved per byte and second by a copy at another node that takes the place of `losing`'s: nodes that
        ask for it then read it over the network. The cost of moving it over the network does not count:
        that left 3 % of the replications, and fetches took 1.08 instead of 0.99 s.
        """
        saved_s = self.saved_s(key, size_bytes, losing) - self.costs.cost_s(Tier.REMOTE_DRAM, size_bytes)
        return value(self.cache.rate(key, now_ns), saved_s, size_bytes, rooted=rooted)

    def score(self, key: ChunkKey, size_bytes: int) -> float:
        """log2 of the value carried back to time 0: orders chunks at any moment, changes only with a fetch."""
        score = self.cache.score(key)
        if score is None:
            return _SCORE_OF_NEVER
        return score + math.log2(self.saved_s(key, size_bytes) / max(1, size_bytes))

    def remembered(self, keys: Sequence[ChunkKey]) -> set[ChunkKey]:
        """Those of these that were fetched, as far as it is remembered."""
        slots = self.cache.table.find_all(keys, list(map(mixed, keys)))
        return {key for key, slot in zip(keys, slots, strict=True) if slot != NONE}

    def scores(self, keys: Sequence[ChunkKey], sizes: Sequence[int]) -> list[float]:
        """The scores of many chunks, most of which nobody has fetched."""
        remembered = self.remembered(keys)
        return [
            self.score(key, size_bytes) if key in remembered else _SCORE_OF_NEVER
            for key, size_bytes in zip(keys, sizes, strict=True)
        ]

    def saved_s(self, key: ChunkKey, size_bytes: int, losing: NodeIndex | None = None) -> float:
        """What a reader is spared by a copy that costs no holder anything: the next cheaper source.

        Reading from a holder takes the reader's time on its link and as much of the holder's; only the second is
        spared by a copy in the switch, and all of it, or a computation, when no holder is left.
        """
        in_pools, on_disks = self._directory.hosts(key)
        others = [Tier.RECOMPUTE]
        if in_pools - {losing}:
            others.append(Tier.REMOTE_DRAM)
        if on_disks - {losing}:
            others.append(Tier.REMOTE_DISK)
        return min(self.costs.cost_s(source, size_bytes) for source in others)

    def _tell(self, keys: Iterable[ChunkKey]) -> None:
        for watcher in self._watchers:
            for key in keys:
                watcher(key)

    def _touch(self, key: ChunkKey) -> Touch:
        chunk = self._directory.get(key)
        if chunk is None:
            return Touch(key, None, 0, 1)
        facts = chunk.facts
        return Touch(key, facts.parent, facts.position, facts.size_bytes)
