"""What agents learn of the directory: a snapshot when they attach, numbered changes afterwards. Pure.

Owns the sequence and the changes not yet published, claims among them. All agents get the same changes, so each message
is made once.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from controlplane.claims import ClaimTable
from controlplane.directory import Chunk, Directory
from controlplane.effects import SendTo
from controlplane.ids import ChunkKey, NodeIndex
from controlplane.limits import DELTA_RECORDS_MAX, LOAD_MESSAGES_PER_S, LOADS_PUBLISH_S
from controlplane.nodes import Node, NodeFacts, NodeRegistry
from controlplane.settling import Settling
from controlplane.value import ClusterValues
from kvproto.rpc import control_pb2 as rpc

_SCORE_STEP = 1.0
"""A chunk's value is published again when it has doubled."""


class Publication:
    """One stream of changes for all agents."""

    def __init__(
        self,
        directory: Directory,
        values: ClusterValues,
        nodes: NodeRegistry,
        settling: Settling,
        claims: ClaimTable,
        incarnation: int,
        with_switch: bool,
    ) -> None:
        self._directory = directory
        self._values = values
        self._nodes = nodes
        self._settling = settling
        self._claims = claims
        self._incarnation = incarnation
        self._with_switch = with_switch
        self._sequence = 0
        self._nodes_changed: set[NodeIndex] = set()
        self._nodes_gone: set[NodeIndex] = set()
        self._loads_changed: set[NodeIndex] = set()
        self._loads_due_ns = 0

    # -- what changed

    def node_changed(self, node: NodeIndex) -> None:
        """A node came, or is different."""
        self._nodes_changed.add(node)
        self._nodes_gone.discard(node)

    def node_gone(self, node: NodeIndex) -> None:
        """A node was forgotten."""
        self._nodes_changed.discard(node)
        self._loads_changed.discard(node)
        self._nodes_gone.add(node)

    def load_changed(self, node: NodeIndex) -> None:
        """A node has more or less queued for its readers than all were told."""
        self._loads_changed.add(node)

    @property
    def loads_wait(self) -> bool:
        """Whether what nodes have queued is kept back until `publish` may tell it."""
        return bool(self._loads_changed)

    def value_changed(self, key: ChunkKey) -> None:
        """Publish the chunk again if its value differs much from the published one."""
        chunk = self._directory.get(key)
        if chunk is not None:
            score = self._values.score(key, chunk.facts.size_bytes)
            if abs(score - chunk.score_told) >= _SCORE_STEP:
                self._directory.touch(key)

    def announced(self, node: NodeIndex) -> None:
        """A node has named all it holds."""
        self._settling.announced(node)

    # -- who gets it

    def attach(self, session: int, facts: NodeFacts) -> list[SendTo]:
        """A snapshot, unless the agent had better keep what it has for the moment."""
        if self._settling.must_wait(session, facts.replica_of, facts.replica_nodes, self._incarnation):
            return []
        return self._snapshot([session])

    def left(self, session: int) -> None:
        """A stream ended: no snapshot for it."""
        self._settling.left(session)

    def due_snapshots(self, now_ns: int) -> list[SendTo]:
        """Snapshots for those who waited, once the controller knows enough."""
        return self._snapshot(self._settling.take_settled(now_ns))

    def publish(self, sessions: Collection[int], now_ns: int) -> list[SendTo]:
        """What changed since the last call, for these sessions."""
        changed, gone = self._directory.take_changes()
        nodes = [node for index in sorted(self._nodes_changed) if (node := self._nodes.get(index)) is not None]
        nodes_gone = sorted(self._nodes_gone)
        self._nodes_changed.clear()
        self._nodes_gone.clear()
        loads, claims = self._take_loads(len(sessions), now_ns), self._claims.take_news()
        if not (changed or gone or nodes or nodes_gone or loads or claims):
            return []
        told = [session for session in sessions if not self._settling.is_waiting(session)]
        effects = []
        first = True
        while first or changed or gone:
            self._sequence += 1
            delta = rpc.DirectoryDelta(sequence=self._sequence)
            if first:
                delta.nodes.extend(self._node_entry(node) for node in nodes)
                delta.nodes_gone.extend(nodes_gone)
                delta.loads.extend(loads)
                delta.claims.extend(claims)
            delta.chunks.extend(self._chunk_entries(changed[:DELTA_RECORDS_MAX]))
            delta.chunks_gone.extend(gone[:DELTA_RECORDS_MAX])
            changed, gone, first = changed[DELTA_RECORDS_MAX:], gone[DELTA_RECORDS_MAX:], False
            message = rpc.ToAgent(directory=delta)
            effects += [SendTo(session, message) for session in told]
        return effects

    # -- inside

    def _take_loads(self, sessions: int, now_ns: int) -> list[rpc.HolderLoad]:
        if not self._loads_changed or now_ns < self._loads_due_ns:
            return []
        self._loads_due_ns = now_ns + int(max(LOADS_PUBLISH_S, sessions / LOAD_MESSAGES_PER_S) * 1e9)
        nodes = [node for index in sorted(self._loads_changed) if (node := self._nodes.get(index)) is not None]
        self._loads_changed.clear()
        return [_load_entry(node) for node in nodes]

    def _snapshot(self, sessions: Sequence[int]) -> list[SendTo]:
        if not sessions:
            return []
        chunks = list(self._directory)
        parts: list[rpc.ToAgent] = []
        while True:
            delta = rpc.DirectoryDelta(sequence=self._sequence, snapshot=True)
            if not parts:
                delta.nodes.extend(self._node_entry(node) for node in self._nodes)
                delta.loads.extend(_load_entry(node) for node in self._nodes if node.load.queued_bytes)
            delta.chunks.extend(self._chunk_entries(chunks[:DELTA_RECORDS_MAX]))
            chunks = chunks[DELTA_RECORDS_MAX:]
            delta.snapshot_end = not chunks
            parts.append(rpc.ToAgent(directory=delta))
            if not chunks:
                return [SendTo(session, part) for session in sessions for part in parts]

    def _chunk_entries(self, chunks: Sequence[Chunk]) -> list[rpc.ChunkEntry]:
        entries = []
        for chunk in chunks:
            facts = chunk.facts
            chunk.score_told = self._values.score(facts.key, facts.size_bytes)
            entries.append(
                rpc.ChunkEntry(
                    key=facts.key,
                    parent=facts.parent or b"",
                    size_bytes=facts.size_bytes,
                    digest=facts.digest,
                    position=facts.position,
                    holders=sorted(chunk.holders),
                    served=chunk.served,
                    pinned=chunk.pinned,
                    value=chunk.score_told,
                    disk_holders=sorted(chunk.disk_holders),
                )
            )
        return entries

    def _node_entry(self, node: Node) -> rpc.Node:
        entry = rpc.Node(
            node=node.index,
            name=node.facts.name,
            data_ip=node.facts.data_ip,
            data_mac=node.facts.data_mac,
            read_endpoint=node.facts.read_endpoint,
            control_port=node.facts.control_port,
            draining=node.draining,
        )
        if node.member is not None and self._with_switch:
            entry.member = node.member
        return entry


def _load_entry(node: Node) -> rpc.HolderLoad:
    return rpc.HolderLoad(node=node.index, queued_bytes=node.load.queued_bytes, readers=node.load.readers)
