"""What a node loses with a copy of its own: how much longer the next reader here waits. One truth for DRAM and disk.

The costs are those that the gate learns and decides with; who else has a chunk, the directory's replica says.
"""

from __future__ import annotations

from collections.abc import Callable

from hostagent.directory import DirectoryReplica
from kvproto.ids import ChunkKey
from kvproto.value import Source, SourceCosts


class Losses:
    """One node's; asked for every chunk of every fetch."""

    def __init__(self, costs: SourceCosts, directory: DirectoryReplica, node_name: str) -> None:
        self._costs = costs
        self._directory = directory
        self._node_name = node_name
        self.is_stored: Callable[[ChunkKey], object] = lambda _: None
        """Whether this node's disk has a chunk; set where there is one."""

    def of_dram(self, key: ChunkKey, size_bytes: int) -> float:
        """Seconds, above 0: the copy in the pool goes, the one on this node's disk stays."""
        others = self._elsewhere(key)
        if self.is_stored(key):
            others.append(Source.LOCAL_DISK)
        return self._costs.loss_s(size_bytes, Source.LOCAL_DRAM, others)

    def of_disk(self, key: ChunkKey, size_bytes: int) -> float:
        """The same of the copy on disk, for the time when the one in the pool is gone already."""
        return self._costs.loss_s(size_bytes, Source.LOCAL_DISK, self._elsewhere(key))

    def _elsewhere(self, key: ChunkKey) -> list[Source]:
        entry = self._directory.find(key)
        if entry is None:
            return []
        others = [Source.SWITCH] if entry.served else []
        if self._any_other(entry.holders):
            others.append(Source.REMOTE_DRAM)
        elif self._any_other(entry.disk_holders):
            others.append(Source.REMOTE_DISK)
        return others

    def _any_other(self, nodes: tuple[int, ...]) -> bool:
        node_of = self._directory.node
        return any((node := node_of(number)) is not None and node.name != self._node_name for number in nodes)
