"""The local replica of the directory: who holds what. Pure; fed by the controller's deltas, asked by fetches.

A replica outlives the controller: with nobody to refresh it, it goes on answering with what was last known. Between
reconnecting and the end of the new snapshot the old content answers too.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from kvproto.ids import Address, ChunkKey


@dataclass(frozen=True, slots=True)
class NodeEntry:
    """Another agent, as the controller knows it."""

    node: int
    name: str
    address: Address
    read_endpoint: str
    member: int | None
    draining: bool = False


@dataclass(frozen=True, slots=True)
class ChunkEntry:
    """A chunk somewhere in the fabric."""

    key: ChunkKey
    parent: ChunkKey | None
    size_bytes: int
    checksum: int
    position: int
    holders: tuple[int, ...]
    served: bool = False
    pinned: bool = False
    value: float = 0.0


@dataclass(frozen=True, slots=True)
class Delta:
    """One message of changes."""

    sequence: int
    snapshot: bool = False
    snapshot_end: bool = False
    nodes: tuple[NodeEntry, ...] = ()
    nodes_gone: tuple[int, ...] = ()
    chunks: tuple[ChunkEntry, ...] = ()
    chunks_gone: tuple[ChunkKey, ...] = ()


@dataclass(frozen=True, slots=True)
class Applied:
    """What a delta changed."""

    changed: tuple[ChunkKey, ...] = ()
    """Keys whose entry changed or went."""
    nodes_lost: tuple[str, ...] = ()


class SequenceGapError(Exception):
    """A delta is missing: the stream must be opened again."""


@dataclass(slots=True)
class _Content:
    nodes: dict[int, NodeEntry] = field(default_factory=dict)
    chunks: dict[ChunkKey, ChunkEntry] = field(default_factory=dict)


class DirectoryReplica:
    """Lookup by key; every answer is a hint that the network may contradict."""

    def __init__(self) -> None:
        self._current = _Content()
        self._staged: _Content | None = None
        self.sequence = 0
        self._sequence_known = False

    @property
    def chunks_count(self) -> int:
        return len(self._current.chunks)

    def restart(self) -> None:
        """A new stream was opened: sequences start again, the old content answers until the snapshot is whole."""
        self._staged = None
        self._sequence_known = False

    def apply(self, delta: Delta) -> Applied:
        """Take a delta in. Raises SequenceGapError when one before it was lost."""
        if delta.snapshot:
            return self._apply_snapshot(delta)
        if self._staged is not None or (self._sequence_known and delta.sequence != self.sequence + 1):
            raise SequenceGapError(f"delta {delta.sequence} after {self.sequence}")
        self.sequence = delta.sequence
        self._sequence_known = True
        lost = tuple(self._current.nodes[node].name for node in delta.nodes_gone if node in self._current.nodes)
        _merge(self._current, delta)
        return Applied((*(chunk.key for chunk in delta.chunks), *delta.chunks_gone), lost)

    def find(self, key: ChunkKey) -> ChunkEntry | None:
        """What is known of a chunk."""
        return self._current.chunks.get(key)

    def node(self, node: int) -> NodeEntry | None:
        """What is known of a node."""
        return self._current.nodes.get(node)

    def node_named(self, name: str) -> NodeEntry | None:
        """The node of this name."""
        return next((node for node in self._current.nodes.values() if node.name == name), None)

    def node_at(self, address: Address) -> NodeEntry | None:
        """The node with this address on the data network."""
        return next((node for node in self._current.nodes.values() if node.address == address), None)

    def holders(self, entry: ChunkEntry) -> Iterable[NodeEntry]:
        """Nodes that hold a chunk, those that are leaving last."""
        known = [self._current.nodes[node] for node in entry.holders if node in self._current.nodes]
        return sorted(known, key=lambda node: node.draining)

    def entries(self) -> Mapping[ChunkKey, ChunkEntry]:
        """Everything known, for figures and tests."""
        return self._current.chunks

    def _apply_snapshot(self, delta: Delta) -> Applied:
        if self._staged is None:
            self._staged = _Content()
        _merge(self._staged, delta)
        if not delta.snapshot_end:
            return Applied()
        before, self._current, self._staged = self._current, self._staged, None
        self.sequence = delta.sequence
        self._sequence_known = True
        after = self._current.chunks
        changed = {key for key, entry in after.items() if before.chunks.get(key) != entry}
        changed |= before.chunks.keys() - after.keys()
        names = {node.name for node in self._current.nodes.values()}
        lost = tuple(node.name for node in before.nodes.values() if node.name not in names)
        return Applied(tuple(sorted(changed)), lost)


def _merge(content: _Content, delta: Delta) -> None:
    for node in delta.nodes:
        content.nodes[node.node] = node
    for gone in delta.nodes_gone:
        content.nodes.pop(gone, None)
    for chunk in delta.chunks:
        content.chunks[chunk.key] = chunk
    for key in delta.chunks_gone:
        content.chunks.pop(key, None)
