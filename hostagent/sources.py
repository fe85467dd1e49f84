"""Where chunks that are not in this node's pool can be had: its disk, other nodes, the switch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from hostagent.api.messages import ChunkSource
from hostagent.directory import ChunkEntry, DirectoryReplica
from hostagent.disk.store import LoadOutcome
from hostagent.pool.chunks import Chunk
from kvproto import commands
from kvproto.events import HolderRef
from kvproto.ids import Address, ChunkKey, NodeId
from kvproto.tiers.gate import Offer
from kvproto.value import Source, Touch

TOLD_AS = {
    commands.Source.LOCAL: ChunkSource.LOCAL,
    commands.Source.UNICAST: ChunkSource.HOLDER,
    commands.Source.CAST: ChunkSource.CAST,
    commands.Source.SWITCH: ChunkSource.SWITCH,
    commands.Source.DISK: ChunkSource.DISK,
}
"""What engines and the controller are told of where the reader got a chunk."""
COSTS_AS = {
    commands.Source.UNICAST: Source.REMOTE_DRAM,
    commands.Source.CAST: Source.REMOTE_DRAM,
    commands.Source.SWITCH: Source.SWITCH,
    commands.Source.DISK: Source.LOCAL_DISK,
}
"""Whose costs it teaches."""
SWITCH_NODE = NodeId("@switch")
"""Stands for the switch where it holds the only copy: asked at the pool address, never read from."""
_IN_DRAM = 0.0
_ON_DISK = 1.0
"""Load of a copy on a disk: as good as any once it is in that node's DRAM, asked where there is no other."""


class LocalDisk(Protocol):
    """This node's disk tier."""

    def find(self, key: ChunkKey) -> Chunk | None: ...
    def load(self, key: ChunkKey, into: Chunk, done: Callable[[LoadOutcome, int], None]) -> None: ...
    def fetched(self, touches: Sequence[Touch]) -> None: ...


class Sources:
    """Asks the disk and the directory's replica."""

    def __init__(self, directory: DirectoryReplica, disk: LocalDisk, node_name: str) -> None:
        self._directory = directory
        self._disk = disk
        self._node_name = node_name
        self.pool_address: Address | None = None

    def offer(self, key: ChunkKey, *, from_disk_only: bool = False) -> Offer | None:
        """The sources of a chunk; None: there are none."""
        stored = self._disk.find(key)
        entry = None if from_disk_only else self._directory.find(key)
        if stored is not None and (entry is None or entry.size_bytes != stored.size_bytes):
            return Offer(stored.size_bytes, (Source.LOCAL_DISK,))
        if entry is None:
            return None
        sources = ([] if stored is None else [Source.LOCAL_DISK]) + self._elsewhere(entry)
        return Offer(entry.size_bytes, tuple(sources)) if sources else None

    def entry(self, key: ChunkKey) -> ChunkEntry:
        """What this node's disk or the directory knows of a chunk; where they differ, the disk."""
        entry, stored = self._directory.find(key), self._disk.find(key)
        if stored is not None and (entry is None or entry.size_bytes != stored.size_bytes):
            return ChunkEntry(key, stored.parent, stored.size_bytes, stored.checksum, stored.position, ())
        if entry is None:
            raise LookupError(f"chunk {key.hex()} is nowhere")
        return entry

    def holders(self, entry: ChunkEntry) -> tuple[HolderRef, ...]:
        """Other nodes with a copy, or the switch where it alone has one."""
        in_dram = {node.name: node for node in self._directory.holders(entry.key)}
        nodes = [(node, _IN_DRAM) for node in in_dram.values()]
        nodes += [(node, _ON_DISK) for node in self._directory.disk_holders(entry.key) if node.name not in in_dram]
        refs = tuple(
            HolderRef(NodeId(node.name), node.address, load + node.draining, castable=node.member is not None)
            for node, load in nodes
            if node.name != self._node_name
        )
        if not refs and entry.served and self.pool_address is not None:
            return (HolderRef(SWITCH_NODE, self.pool_address, readable=False),)
        return refs

    def _elsewhere(self, entry: ChunkEntry) -> list[Source]:
        refs = self.holders(entry)
        sources = [Source.SWITCH] if entry.served and refs else []
        if any(ref.node != SWITCH_NODE for ref in refs):
            in_dram = any(node.name != self._node_name for node in self._directory.holders(entry.key))
            sources.append(Source.REMOTE_DRAM if in_dram else Source.REMOTE_DISK)
        return sources
