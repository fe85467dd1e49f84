"""What agents are told of the directory: a snapshot when they attach, numbered changes afterwards. Pure.

Owns the sequence and what has not been told yet. Everybody gets the same changes, so each message is made once.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from controlplane.directory import Chunk, Directory
from controlplane.effects import SendTo
from controlplane.ids import ChunkKey, NodeIndex
from controlplane.limits import DELTA_RECORDS_MAX
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
        incarnation: int,
        with_switch: bool,
    ) -> None:
        self._directory = directory
        self._values = values
        self._nodes = nodes
        self._settling = settling
        self._incarnation = incarnation
        self._with_switch = with_switch
        self._sequence = 0
        self._nodes_changed: set[NodeIndex] = set()
        self._nodes_gone: set[NodeIndex] = set()

    # -- what changed

    def node_changed(self, node: NodeIndex) -> None:
        self._nodes_changed.add(node)
        self._nodes_gone.discard(node)

    def node_gone(self, node: NodeIndex) -> None:
        self._nodes_changed.discard(node)
        self._nodes_gone.add(node)

    def value_changed(self, key: ChunkKey) -> None:
        """Publish the chunk again if its value differs much from the one told."""
        chunk = self._directory.get(key)
        if chunk is not None:
            score = self._values.score(key, chunk.facts.size_bytes)
            if abs(score - chunk.score_told) >= _SCORE_STEP:
                self._directory.touch(key)

    def announced(self, node: NodeIndex) -> None:
        """A node has named all it holds."""
        self._settling.announced(node)

    # -- who is told

    def attach(self, session: int, facts: NodeFacts) -> list[SendTo]:
        """A snapshot, unless the agent had better keep what it has for the moment."""
        if self._settling.must_wait(session, facts.replica_of, facts.replica_nodes, self._incarnation):
            return []
        return self._snapshot([session])

    def left(self, session: int) -> None:
        self._settling.left(session)

    def settle(self, now_ns: int) -> list[SendTo]:
        """Snapshots for those who waited, once the controller knows enough."""
        return self._snapshot(self._settling.take_settled(now_ns))

    def publish(self, sessions: Iterable[int]) -> list[SendTo]:
        """What changed since the last call, for these sessions."""
        changed, gone = self._directory.take_changes()
        nodes = [node for index in sorted(self._nodes_changed) if (node := self._nodes.get(index)) is not None]
        nodes_gone = sorted(self._nodes_gone)
        self._nodes_changed.clear()
        self._nodes_gone.clear()
        if not (changed or gone or nodes or nodes_gone):
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
            delta.chunks.extend(self._chunk_entries(changed[:DELTA_RECORDS_MAX]))
            delta.chunks_gone.extend(gone[:DELTA_RECORDS_MAX])
            changed, gone, first = changed[DELTA_RECORDS_MAX:], gone[DELTA_RECORDS_MAX:], False
            message = rpc.ToAgent(directory=delta)
            effects += [SendTo(session, message) for session in told]
        return effects

    # -- inside

    def _snapshot(self, sessions: Sequence[int]) -> list[SendTo]:
        if not sessions:
            return []
        chunks = list(self._directory)
        parts: list[rpc.ToAgent] = []
        while True:
            delta = rpc.DirectoryDelta(sequence=self._sequence, snapshot=True)
            if not parts:
                delta.nodes.extend(self._node_entry(node) for node in self._nodes)
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
                    checksum=facts.checksum,
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
