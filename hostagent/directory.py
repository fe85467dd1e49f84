"""The local replica of the directory: who holds what. Pure; fed by the controller's deltas, asked by fetches.

A replica outlives the controller: with nobody to refresh it, it goes on answering with what was last known. A
controller that starts anew knows nothing until all agents have announced themselves again, so its first snapshot is
not the whole truth: what was known before stays beside it as *stale* until `forget_stale`. A stale holder that has
lost the chunk says so by itself (NAK, ABSENT).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
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
    disk_holders: tuple[int, ...] = ()
    """Nodes that have it on disk: slower to begin, as good afterwards."""


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
        self._stale: _Content | None = None
        self._controller: int | None = None
        self._keep_stale = False
        self.sequence = 0
        self._sequence_known = False

    @property
    def chunks_count(self) -> int:
        return len(self._current.chunks)

    @property
    def has_stale(self) -> bool:
        """Whether something is known only from before the controller's restart."""
        return self._stale is not None

    def restart(self, controller: int) -> None:
        """A stream to a controller (its incarnation) is open: a snapshot follows; till then the old content answers."""
        self._keep_stale = self._controller is not None and controller != self._controller
        self._controller = controller
        self._staged = None
        self._sequence_known = False

    def forget_stale(self) -> Applied:
        """Everybody has had time to announce itself to the new controller: only what it says is true now."""
        stale, self._stale = self._stale, None
        return Applied(tuple(sorted(stale.chunks)) if stale is not None else ())

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
        if self._stale is not None:
            for key in delta.chunks_gone:
                self._stale.chunks.pop(key, None)
        return Applied((*(chunk.key for chunk in delta.chunks), *delta.chunks_gone), lost)

    def find(self, key: ChunkKey) -> ChunkEntry | None:
        """What is known of a chunk."""
        entry = self._current.chunks.get(key)
        if entry is None and self._stale is not None:
            entry = self._stale.chunks.get(key)
        return entry

    def node(self, node: int) -> NodeEntry | None:
        """What is known of a node."""
        return self._current.nodes.get(node)

    def node_named(self, name: str) -> NodeEntry | None:
        """The node of this name."""
        return next((node for node in self._nodes() if node.name == name), None)

    def node_at(self, address: Address) -> NodeEntry | None:
        """The node with this address on the data network."""
        return next((node for node in self._nodes() if node.address == address), None)

    def holders(self, key: ChunkKey) -> list[NodeEntry]:
        """Nodes that hold a chunk in DRAM, stale ones and those that are leaving last."""
        return self._nodes_of(key, lambda entry: entry.holders)

    def disk_holders(self, key: ChunkKey) -> list[NodeEntry]:
        """Nodes that hold a chunk on disk, in the same order."""
        return self._nodes_of(key, lambda entry: entry.disk_holders)

    def _nodes_of(self, key: ChunkKey, numbers: Callable[[ChunkEntry], tuple[int, ...]]) -> list[NodeEntry]:
        found: dict[str, NodeEntry] = {}
        for content in (self._current, self._stale):
            entry = content.chunks.get(key) if content is not None else None
            if content is None or entry is None:
                continue
            for number in numbers(entry):
                node = content.nodes.get(number)
                if node is not None:
                    found.setdefault(node.name, node)
        return sorted(found.values(), key=lambda node: node.draining)

    def _nodes(self) -> Iterator[NodeEntry]:
        yield from self._current.nodes.values()
        if self._stale is not None:
            yield from self._stale.nodes.values()

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
        if self._keep_stale:
            self._stale = before
            self._keep_stale = False
        self.sequence = delta.sequence
        self._sequence_known = True
        after = self._current.chunks
        changed = {key for key, entry in after.items() if before.chunks.get(key) != entry}
        changed |= before.chunks.keys() - after.keys()
        names = {node.name for node in self._current.nodes.values()}
        lost = tuple(node.name for node in before.nodes.values() if node.name not in names)
        if self._stale is not None:
            lost = ()
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
