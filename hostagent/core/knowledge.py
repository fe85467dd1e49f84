"""What a node's policies know of the world."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hostagent import limits
from hostagent.core.clock import Clock
from hostagent.core.directory import DirectoryReplica
from hostagent.pool.chunks import ChunkPool
from kvpolicy.value import Touch
from kvpolicy.value.costs import SourceCost, SourceCosts, Tier


class Knowledge:
    """What a node's policies know of the world: the time, the directory, and what it costs to get chunks."""

    def __init__(self, node: str, priors: Mapping[Tier, SourceCost]) -> None:
        """`priors`: assumed costs of sources, until they have been measured."""
        self.node = node
        self.clock = Clock()
        self.directory = DirectoryReplica(node)
        self.costs = SourceCosts(priors)

    def disk_pool(self, size_bytes: int) -> ChunkPool:
        """The index of a disk's slab, with its order of eviction."""
        return ChunkPool(size_bytes, limits.EXTENT_ALIGN_BYTES, self.clock.read, self._costs_of_disk)

    def _costs_of_disk(self, chunks: Sequence[Touch]) -> list[float]:
        """What evicting copies on the disk costs, once those in the pool are gone."""
        return self.costs.eviction_costs_s(chunks, Tier.LOCAL_DISK, self.directory.tiers_elsewhere)
