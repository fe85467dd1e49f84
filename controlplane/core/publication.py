"""What agents learn of the directory: a snapshot when they attach, numbered changes afterwards. Pure.

Owns the sequence and the changes not yet published, claims among them. Agents with the same view (`visibility`) get the
same changes, so each message is made once for each view.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from controlplane.core.claims import ClaimTable
from controlplane.core.cluster import Cluster
from controlplane.core.directory import Chunk
from controlplane.core.ids import ChunkKey, NodeIndex
from controlplane.core.limits import DELTA_RECORDS_MAX, LOAD_MESSAGES_PER_S, LOADS_PUBLISH_S
from controlplane.core.nodes import Node, NodeFacts
from controlplane.core.visibility import View
from kvproto.rpc import control_pb2 as rpc


@dataclass(slots=True)
class Settling:
    """Who waits for a snapshot, and for how many nodes."""

    grace_ns: int
    started_ns: int | None = None
    announced: set[NodeIndex] = field(default_factory=set)
    """Nodes that have named all they hold."""
    _expected: int = 0
    _waiting: set[int] = field(default_factory=set)
    _over: bool = False

    def must_wait(self, session: int, replica_of: int, replica_nodes: int, incarnation: int) -> bool:
        """An agent attaches. True: its snapshot comes with `take_settled`."""
        if self._over or replica_of in (0, incarnation):
            return False
        self._expected = max(self._expected, replica_nodes)
        self._waiting.add(session)
        return True

    def stream_ended(self, session: int) -> None:
        """An agent went away: it waits for nothing."""
        self._waiting.discard(session)

    def is_waiting(self, session: int) -> bool:
        """Its snapshot is still to come, so deltas are not for it."""
        return session in self._waiting

    def take_settled(self, now_ns: int) -> list[int]:
        """Sessions whose snapshot is to be sent now."""
        if self.started_ns is None:
            self.started_ns = now_ns
        complete = bool(self._waiting) and len(self.announced) >= self._expected
        if not complete and now_ns - self.started_ns < self.grace_ns:
            return []
        self._over = True
        waiting, self._waiting = sorted(self._waiting), set()
        return waiting


RESNAPSHOT_NS = 200_000_000
"""Engines that begin to use a namespace wait so long at most; whoever changes its mind all the time costs no more."""
VARIANTS_MAX = 4
"""Other bytes of a key that are offered."""
_SCORE_STEP = 1.0
"""A chunk's value is published again when it has doubled."""


class Publication:
    """Owns the sequence of changes, who still waits for a snapshot, and what is not published yet."""

    def __init__(self, cluster: Cluster, claims: ClaimTable) -> None:
        self._cluster = cluster
        self._directory = cluster.directory
        self._values = cluster.values
        self._nodes = cluster.nodes
        self._visibility = cluster.visibility
        self.settling = Settling(cluster.options.settle_ns)
        self._claims = claims
        self._resnapshot_due_ns = 0
        self._speakers: dict[NodeIndex, View] = {}
        """What nodes are told of, or were when they went."""
        self._sequence = 0
        self._nodes_changed: set[NodeIndex] = set()
        self._nodes_gone: set[NodeIndex] = set()
        self.loads_changed: set[NodeIndex] = set()
        """Have more or less queued for their readers than all were told."""
        self._loads_due_ns = 0

    # -- what changed

    def node_changed(self, node: NodeIndex) -> None:
        """A node came, or is different."""
        self._nodes_changed.add(node)
        self._nodes_gone.discard(node)

    def node_forgotten(self, node: NodeIndex) -> None:
        """A node was forgotten."""
        self._nodes_changed.discard(node)
        self.loads_changed.discard(node)
        self._nodes_gone.add(node)

    def due_ns(self) -> int | None:
        """When `publish` has something to tell; None: nothing waits."""
        claims = self._claims.news_wait
        soon_ns = self._cluster.now_ns + self._cluster.options.publish_ns
        if self._directory.changes_wait or self._nodes_changed or self._nodes_gone or claims:
            return soon_ns
        return max(soon_ns, self._loads_due_ns) if self.loads_changed else None

    def value_changed(self, key: ChunkKey) -> None:
        """Publish the chunk again if its value differs much from the published one."""
        chunk = self._directory.get(key)
        if chunk is not None:
            score = self._values.score(key, chunk.facts.size_bytes)
            if abs(score - chunk.score_told) >= _SCORE_STEP:
                self._directory.touch(key)

    # -- who gets it

    def stream_attached(self, session: int, facts: NodeFacts) -> None:
        """Send a snapshot (`visibility` knows the stream), unless the agent had better keep what it has for now."""
        incarnation = self._cluster.options.incarnation
        if not self.settling.must_wait(session, facts.replica_of, facts.replica_nodes, incarnation):
            self._snapshot([session])

    def stream_ended(self, session: int) -> None:
        """A stream ended: no snapshot for it."""
        self.settling.stream_ended(session)
        self._visibility.stream_ended(session)

    def send_snapshots(self) -> None:
        """Snapshots for those who waited, once the controller knows enough, and for those whose engines use other
        namespaces than before."""
        now_ns = self._cluster.now_ns
        due = self.settling.take_settled(now_ns)
        if now_ns >= self._resnapshot_due_ns and (changed := self._visibility.take_changed()):
            self._resnapshot_due_ns = now_ns + RESNAPSHOT_NS
            due = sorted({*due, *(session for session in changed if not self.settling.is_waiting(session))})
        self._snapshot(due)

    def publish(self, sessions: Collection[int]) -> None:
        """What changed since the last call, for these sessions."""
        changed, gone = self._directory.take_changes()
        left = self._directory.take_left()
        nodes = [node for index in sorted(self._nodes_changed) if (node := self._nodes.get(index)) is not None]
        nodes_gone = sorted(self._nodes_gone)
        self._nodes_changed.clear()
        self._nodes_gone.clear()
        loads, claims = self._take_loads(len(sessions)), self._claims.take_news()
        if not (changed or gone or nodes or nodes_gone or loads or claims):
            return
        parts = max(1, -(-max(len(changed), len(gone)) // DELTA_RECORDS_MAX))
        first_sequence = self._sequence + 1
        self._sequence += parts
        views: dict[View, list[int]] = {}
        for session in sessions:
            if not self.settling.is_waiting(session):
                views.setdefault(self._visibility.of(session), []).append(session)
        for chunk in changed:
            chunk.score_told = self._values.score(chunk.key, chunk.facts.size_bytes)
        self._speakers |= {
            node.index: self._visibility.of(node.session) for node in self._nodes if node.session in sessions
        }
        for view, told in views.items():
            deltas = [rpc.DirectoryDelta(sequence=first_sequence + part) for part in range(parts)]
            deltas[0].nodes.extend(self._node_entry(node) for node in nodes)
            deltas[0].nodes_gone.extend(nodes_gone)
            deltas[0].loads.extend(loads)
            deltas[0].claims.extend(one for one in claims if _may_hear(view, self._speakers.get(NodeIndex(one.node))))
            for part, delta in enumerate(deltas):
                some = slice(part * DELTA_RECORDS_MAX, (part + 1) * DELTA_RECORDS_MAX)
                unseen = self._add_entries(delta, changed[some], view)
                delta.chunks_gone.extend(
                    key for key in [*gone[some], *unseen] if any(map(view.shows, left.get(key, ())))
                )
            messages = [rpc.ToAgent(directory=delta) for delta in deltas]
            self._send(told, messages)
        for index in nodes_gone:
            self._speakers.pop(index, None)

    # -- inside

    def _send(self, sessions: Sequence[int], messages: Sequence[rpc.ToAgent]) -> None:
        for session in sessions:
            for message in messages:
                self._cluster.send(session, message)

    def _take_loads(self, sessions: int) -> list[rpc.HolderLoad]:
        now_ns = self._cluster.now_ns
        if not self.loads_changed or now_ns < self._loads_due_ns:
            return []
        self._loads_due_ns = now_ns + int(max(LOADS_PUBLISH_S, sessions / LOAD_MESSAGES_PER_S) * 1e9)
        nodes = [node for index in sorted(self.loads_changed) if (node := self._nodes.get(index)) is not None]
        self.loads_changed.clear()
        return [_load_entry(node) for node in nodes]

    def _snapshot(self, sessions: Sequence[int]) -> None:
        views: dict[View, list[int]] = {}
        for session in sessions:
            views.setdefault(self._visibility.of(session), []).append(session)
        chunks = list(self._directory) if views else []
        for chunk in chunks:
            chunk.score_told = self._values.score(chunk.key, chunk.facts.size_bytes)
        for view, told in views.items():
            self._send(told, self._snapshot_of(view, chunks))

    def _snapshot_of(self, view: View, chunks: Sequence[Chunk]) -> list[rpc.ToAgent]:
        parts: list[rpc.ToAgent] = []
        for at in range(0, max(1, len(chunks)), DELTA_RECORDS_MAX):
            delta = rpc.DirectoryDelta(sequence=self._sequence, snapshot=True)
            if not parts:
                delta.nodes.extend(self._node_entry(node) for node in self._nodes)
                delta.loads.extend(_load_entry(node) for node in self._nodes if node.load.queued_bytes)
            self._add_entries(delta, chunks[at : at + DELTA_RECORDS_MAX], view)
            delta.snapshot_end = at + DELTA_RECORDS_MAX >= len(chunks)
            parts.append(rpc.ToAgent(directory=delta))
        return parts

    def _add_entries(self, delta: rpc.DirectoryDelta, chunks: Sequence[Chunk], view: View) -> list[ChunkKey]:
        """Tell of the chunks that the view shows; returns the keys of the others."""
        namespaces: dict[str, int] = {}
        unseen = []
        for chunk in chunks:
            variants = [one for one in chunk.variants() if view.shows(one.facts.namespace)]
            if not variants:
                unseen.append(chunk.key)
                continue
            first, *others = variants
            facts = first.facts
            delta.chunks.add(
                key=facts.key,
                parent=facts.parent or b"",
                size_bytes=facts.size_bytes,
                digest=facts.digest,
                position=facts.position,
                holders=sorted(first.holders),
                served=first.served,
                pinned=chunk.pinned,
                value=chunk.score_told,
                disk_holders=sorted(first.disk_holders),
                namespace_index=namespaces.setdefault(facts.namespace, len(namespaces)),
                others=[
                    rpc.Variant(digest=one.facts.digest, size_bytes=one.facts.size_bytes, holders=sorted(one.holders))
                    for one in others[:VARIANTS_MAX]
                ],
            )
        delta.namespaces.extend(namespaces)
        return unseen

    def _node_entry(self, node: Node) -> rpc.Node:
        entry = rpc.Node(
            node=node.index,
            name=node.facts.name,
            data_ip=node.facts.data_ip,
            data_mac=node.facts.data_mac,
            read_endpoint=node.facts.read_endpoint,
            control_port=node.facts.control_port,
            draining=node.draining,
            unreached=node.unreached,
        )
        if node.member is not None and self._cluster.options.has_members:
            entry.member = node.member
        return entry


def _may_hear(view: View, speaker: View | None) -> bool:
    """Whether a claim, which names no namespace, may be told: the claimant is told of nothing more."""
    return speaker is not None and view.covers(speaker)


def _load_entry(node: Node) -> rpc.HolderLoad:
    return rpc.HolderLoad(node=node.index, queued_bytes=node.load.queued_bytes, readers=node.load.readers)
