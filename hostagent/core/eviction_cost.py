"""What evicting its own copy costs a node: how much longer the next reader here waits. The same for DRAM and disk.

The costs are those that the gate learns and uses; the directory's replica says who else has a chunk.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from hostagent.core.directory import DirectoryReplica
from kvpolicy.value import SourceCosts, Tier, Touch
from kvproto.ids import ChunkKey


class EvictionCost:
    """One node's; asked for every chunk of every fetch. Seconds, above 0, for each of some chunks."""

    def __init__(self, costs: SourceCosts, directory: DirectoryReplica) -> None:
        self._costs = costs
        self._directory = directory

    def of_dram(self, chunks: Sequence[Touch], here_too: Callable[[ChunkKey], Sequence[Tier]]) -> list[float]:
        """The copies in the pool go; `here_too(key)`: those on this node's disk and in the cold store stay."""
        return self._of(Tier.LOCAL_DRAM, chunks, here_too)

    def of_disk(self, chunks: Sequence[Touch]) -> list[float]:
        """The same for the copies on disk, once those in the pool are gone."""
        return self._of(Tier.LOCAL_DISK, chunks, None)

    def _of(
        self, here: Tier, chunks: Sequence[Touch], here_too: Callable[[ChunkKey], Sequence[Tier]] | None
    ) -> list[float]:
        """Chunks of one prefix have mostly one size and lie in the same places: each case is worked out once."""
        costs_s: list[float] = []
        known: dict[tuple[int, tuple[Tier, ...]], float] = {}
        for chunk in chunks:
            others = tuple(self._directory.tiers_elsewhere(chunk.key))
            if here_too is not None:
                others += tuple(here_too(chunk.key))
            case = chunk.size_bytes, others
            cost_s = known.get(case)
            if cost_s is None:
                cost_s = known[case] = self._costs.eviction_cost_s(chunk.size_bytes, here, others)
            costs_s.append(cost_s)
        return costs_s
