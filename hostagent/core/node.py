"""What every part of one node's core stands on. Values, and what is learned: whatever decides something is a part."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from hostagent import limits
from hostagent.core.clock import Alarms, Clock, Windows
from hostagent.core.directory import DirectoryReplica
from hostagent.core.disk_index import DiskIndex
from hostagent.core.effects import Effect
from hostagent.core.options import CoreOptions
from hostagent.pool.chunks import ChunkPool
from kvpolicy.value import SourceCosts, Touch
from kvpolicy.value.costs import SourceCost, Tier
from kvproto.ids import Address
from kvproto.integrity import Integrity


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
        elsewhere = [self.directory.tiers_elsewhere(chunk.key) for chunk in chunks]
        return self.costs.eviction_costs_s(chunks, Tier.LOCAL_DISK, elsewhere)


@dataclass(slots=True)
class FabricState:
    """What the controller has said last of the fabric. `Membership` alone writes it."""

    pool_address: Address | None
    """Where the switch takes FILL; None: there is no switch, or nobody has said where."""
    segment_bytes: int
    integrity: Integrity = Integrity.BLAKE3
    """How the fabric digests chunks."""
    connected: bool = False
    """A controller listens."""


class Foreground(Protocol):
    """What engines wait for: background work lets it go first."""

    @property
    def busy(self) -> bool:
        """An engine waits for something."""


@dataclass(frozen=True, slots=True)
class Node:
    """One node, as all parts of its core share it."""

    options: CoreOptions
    alarms: Alarms
    emit: Callable[[Effect], None]
    """Adds an effect to those of the event that is being handled."""
    pool: ChunkPool
    """The chunks in DRAM."""
    disk: DiskIndex | None
    """None: the node has no disk."""
    knowledge: Knowledge
    fabric: FabricState
    windows: Windows
    """Where work on many chunks goes."""

    @property
    def clock(self) -> Clock:
        """The time of the event that is being handled."""
        return self.knowledge.clock

    @property
    def directory(self) -> DirectoryReplica:
        """What other nodes hold, as this node has heard."""
        return self.knowledge.directory

    @property
    def costs(self) -> SourceCosts:
        """What it costs to get chunks, by source, as measured so far."""
        return self.knowledge.costs
