"""What every part of one node's core stands on. A value: whatever decides something is a part, and not in here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from hostagent.core.clock import Alarms, Clock
from hostagent.core.directory import DirectoryReplica
from hostagent.core.disk_index import DiskIndex
from hostagent.core.effects import Effect
from hostagent.core.options import CoreOptions
from hostagent.pool.chunks import ChunkPool
from kvpolicy.value import SourceCosts


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
    directory: DirectoryReplica
    """What other nodes hold, as this node has heard."""
    costs: SourceCosts
    """What it costs to get chunks, by source, as measured so far."""

    @property
    def clock(self) -> Clock:
        """The time of the event that is being handled."""
        return self.alarms.clock
