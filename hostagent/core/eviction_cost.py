"""What evicting its own copy costs a node: how much longer the next reader here waits. The same for DRAM and disk.

The costs are those that the gate learns and uses; the directory's replica says who else has a chunk.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from hostagent.core.directory import DirectoryReplica
from kvchunk.ids import ChunkKey
from kvpolicy.value import SourceCosts, Tier, Touch


class EvictionCost:
    """One node's; asked for every chunk of every fetch. Seconds, above 0, for each of some chunks."""

    def __init__(self, costs: SourceCosts, directory: DirectoryReplica) -> None:
        self._costs = costs
        self._directory = directory

    def of_dram(self, chunks: Sequence[Touch], here_too: Callable[[ChunkKey], Sequence[Tier]]) -> list[float]:
        """The copies in the pool go; `here_too(key)`: those on this node's disk and in the cold store stay."""
        others = [(*self._directory.tiers_elsewhere(chunk.key), *here_too(chunk.key)) for chunk in chunks]
        return self._of(Tier.LOCAL_DRAM, chunks, others)

    def of_disk(self, chunks: Sequence[Touch]) -> list[float]:
        """The same for the copies on disk, once those in the pool are gone."""
        others = [tuple(self._directory.tiers_elsewhere(chunk.key)) for chunk in chunks]
        return self._of(Tier.LOCAL_DISK, chunks, others)

    def _of(self, here: Tier, chunks: Sequence[Touch], others: Sequence[tuple[Tier, ...]]) -> list[float]:
        """Chunks of one prefix have mostly one size and lie in the same places: each case is worked out once."""
        cases = [(chunk.size_bytes, tiers) for chunk, tiers in zip(chunks, others, strict=True)]
        costs_s = {case: self._costs.eviction_cost_s(case[0], here, case[1]) for case in set(cases)}
        return [costs_s[case] for case in cases]
