"""What evicting its own copy costs a node: how much longer the next reader here waits. The same for DRAM and disk.

The costs are those that the gate learns and uses; the directory's replica says who else has a chunk.
"""

from __future__ import annotations

from hostagent.core.directory import DirectoryReplica
from kvpolicy.value import SourceCosts, Tier
from kvproto.ids import ChunkKey


class EvictionCost:
    """One node's; asked for every chunk of every fetch."""

    def __init__(self, costs: SourceCosts, directory: DirectoryReplica) -> None:
        self._costs = costs
        self._directory = directory

    def of_dram(self, key: ChunkKey, size_bytes: int, *, on_disk: bool, in_cold: bool = False) -> float:
        """Seconds, above 0: the copy in the pool goes; `on_disk`: the one on this node's disk stays; `in_cold`: the one
        in the cold store."""
        others = self._directory.tiers_elsewhere(key)
        if on_disk:
            others.append(Tier.LOCAL_DISK)
        if in_cold:
            others.append(Tier.COLD)
        return self._costs.eviction_cost_s(size_bytes, Tier.LOCAL_DRAM, others)

    def of_disk(self, key: ChunkKey, size_bytes: int) -> float:
        """The same for the copy on disk, once the one in the pool is gone."""
        return self._costs.eviction_cost_s(size_bytes, Tier.LOCAL_DISK, self._directory.tiers_elsewhere(key))
