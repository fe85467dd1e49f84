"""What agents learn of the directory: a snapshot when they attach, numbered changes afterwards. Pure.

Owns the sequence and the changes not yet published, claims among them. Agents with the same view (`visibility`) get the
same changes, so each message is made once for each view.

Which chunks changed, publication by publication, as far back as it goes. Pure.

It keeps keys, not what became of them: whoever catches up is told how things are, once a chunk.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Final, TypeAlias

from controlplane.core.audience import Audience, Group
from controlplane.core.claims import ClaimTable
from controlplane.core.cluster import Cluster
from controlplane.core.directory import tell
from controlplane.core.directory.following import Following, Heard
from controlplane.core.ids import ChunkKey, NodeIndex
from controlplane.core.limits import DELTA_RECORDS_MAX, LOAD_MESSAGES_PER_S, LOADS_PUBLISH_S, MESSAGES_AT_ONCE
from controlplane.core.nodes import Node, NodeFacts
from controlplane.core.visibility import View
from kvchunk.ids import KEY_BYTES
from kvproto.rpc import control_pb2 as rpc

CHANGES_MAX: Final = 65_536
"""1 MB; a router that was away for longer reads everything anew."""


class Journal:
    """Owns the numbers of what was published, which begin anew with each start of a controller."""

    def __init__(self) -> None:
        self._changes: deque[tuple[int, bytes]] = deque()
        """Numbers, each with keys one behind the other: a key for itself takes ten times as much."""
        self._count = 0
        self._forgotten = 0
        """The last number of which something is forgotten."""
        self.sequence = 0

    def note(self, keys: Iterable[ChunkKey]) -> None:
        """These changed, or went."""
        self.sequence += 1
        changed = b"".join(keys)
        self._changes.append((self.sequence, changed))
        self._count += len(changed) // KEY_BYTES
        while self._count > CHANGES_MAX:
            self._forgotten, changed = self._changes.popleft()
            self._count -= len(changed) // KEY_BYTES

    def since(self, sequence: int) -> list[ChunkKey] | None:
        """What changed after a publication, in the order of its last change; None: nobody can say any more."""
        if not self._forgotten <= sequence <= self.sequence:
            return None
        found: dict[ChunkKey, None] = {}
        for number, changed in reversed(self._changes):
            if number <= sequence:
                break
            for at in range(len(changed) - KEY_BYTES, -1, -KEY_BYTES):
                found.setdefault(ChunkKey(changed[at : at + KEY_BYTES]))
        return list(reversed(found))


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

    def must_wait(self, session: int, facts: NodeFacts, incarnation: int) -> bool:
        """An agent attaches. True: its snapshot comes with `take_settled`. A follower's is empty, and never waits."""
        if self._over or facts.replica_of in (0, incarnation):
            return False
        self._expected = max(self._expected, facts.replica_nodes)
        if not facts.follows:
            self._waiting.add(session)
        return not facts.follows

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
SNAPSHOT_ROWS = 5000
"""Of one part of a snapshot: 3 ms. Between two parts the controller does other work."""
_SCORE_STEP = 1.0
"""A chunk's value is published again when it has doubled."""


_Ear: TypeAlias = tuple[View, bool]
"""What somebody is told of, and whether in columns."""


@dataclass(slots=True)
class _Snapshot:
    """A snapshot that is being told, part by part."""

    view: View
    columns: bool
    sessions: set[int]
    row: int = 0
    """All rows before this one were told."""
    missed: dict[ChunkKey, set[str]] = field(default_factory=dict)
    """What changed meanwhile, of any row: told last, as it is then."""
    is_over: bool = False


class Publication:
    """Owns the sequence of changes, who still waits for a snapshot, and what is not published yet."""

    def __init__(self, cluster: Cluster, claims: ClaimTable) -> None:
        self._cluster = cluster
        self._directory = cluster.directory
        self._values = cluster.values
        self._nodes = cluster.nodes
        self._visibility = cluster.visibility
        self.settling = Settling(cluster.options.settle_ns)
        self.journal = Journal()
        self._claims = claims
        self._resnapshot_due_ns = 0
        self._speakers: dict[NodeIndex, View] = {}
        """What nodes are told of, or were when they went."""
        self._sequence = 0
        self._messages = 0
        """Of the last publication."""
        self._rests_until_ns = 0
        """After a publication of many messages what changes waits for more."""
        self._nodes_changed: set[NodeIndex] = set()
        self._nodes_gone: set[NodeIndex] = set()
        self._take_columns: set[int] = set()
        self.following = Following(cluster.directory)
        self._told_sequence: dict[int, int] = {}
        """What agents were told last."""
        self._audience = Audience(cluster.directory)
        """Those who are told of all that they may see."""
        self._followers: dict[int, Group] = {}
        self._is_assembled = False
        """Nobody came, went or began to see something else since the groups were made."""
        self._snapshots: list[_Snapshot] = []
        """Those of which parts are still to be told."""
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
        if self._directory.changes_count > DELTA_RECORDS_MAX:
            return soon_ns
        soon_ns = max(soon_ns, self._rests_until_ns)
        if self._directory.changes_count or self._nodes_changed or self._nodes_gone or claims:
            return soon_ns
        return max(soon_ns, self._loads_due_ns) if self.loads_changed else None

    def value_changed(self, key: ChunkKey) -> None:
        """Publish the chunk again if its value differs much from the published one."""
        chunk = self._directory.get(key)
        if chunk is not None:
            self._directory.touch(key, self._values.score(key, chunk.facts.size_bytes), _SCORE_STEP)

    # -- who gets it

    def stream_attached(self, session: int, facts: NodeFacts) -> None:
        """Send a snapshot (`visibility` knows the stream), unless the agent had better keep what it has for now."""
        incarnation, self._is_assembled = self._cluster.options.incarnation, False
        if facts.takes_columns:
            self._take_columns.add(session)
        if facts.follows:
            self.following.sessions.add(session)
        if not self.settling.must_wait(session, facts, incarnation):
            self._snapshot([session])

    def stream_ended(self, session: int) -> None:
        """A stream ended: no snapshot for it."""
        self._is_assembled = False
        self.settling.stream_ended(session)
        self._visibility.stream_ended(session)
        self._take_columns.discard(session)
        self._told_sequence.pop(session, None)
        self.following.stream_ended(session)
        for snapshot in self._snapshots:
            snapshot.sessions.discard(session)
        self._snapshots = [one for one in self._snapshots if one.sessions]

    def send_snapshots(self) -> None:
        """The next part of each snapshot that is under way; and first those for agents that waited, once the controller
        knows enough, and for agents whose engines use other namespaces than before."""
        now_ns = self._cluster.now_ns
        due = self.settling.take_settled(now_ns)
        if now_ns >= self._resnapshot_due_ns and (changed := self._visibility.take_changed(self._is_waiting)):
            self._resnapshot_due_ns = now_ns + RESNAPSHOT_NS
            due = sorted({*due, *changed})
        self._snapshot(due)
        self.following.advance()
        for snapshot in list(self._snapshots):
            self._send_part(snapshot, snapshot.sessions)
            if snapshot.is_over:
                self._snapshots.remove(snapshot)

    def publish(self, sessions: Collection[int]) -> None:
        """What changed since the last call, for these sessions; of very many chunks the first ones."""
        rows, gone = self._directory.take_rows(DELTA_RECORDS_MAX)
        common, claims = self._take_common(len(sessions)), self._claims.take_news()
        news = bool(common.ByteSize() or claims)
        if not (len(rows) or gone or news):
            return
        keys = self._directory.told(rows, self._values.scores)
        changed = [*keys, *gone]
        if changed:
            self.journal.note(changed)
        left = self._directory.take_left(changed)
        self._sequence += 1
        common.sequence, self._messages = self._sequence, 0
        for snapshot in self._snapshots:
            for one in changed:
                snapshot.missed.setdefault(one, set()).update(left.get(one, ()))
        if not self._is_assembled:
            self._assemble(sessions)
        shown, lost = self._audience.shown(rows), self._audience.lost(left)
        for number, group in enumerate(self._audience.groups):
            # Without columns an agent expects each change.
            if news or number in shown or number in lost or not group.columns:
                delta = self._for_view(common, claims, group.view)
                tell(delta, self._directory, shown.get(number, ()), group.view.shows, columns=group.columns)
                delta.chunks_gone.extend(lost.get(number, ()))
                if not (group.columns and _is_empty(delta)):
                    self._send_change(group.sessions, delta)
        if self.following.sessions:
            heard = self.following.listeners(rows, gone)
            self._tell_followers(heard, left, lambda view: self._for_view(common, claims, view), news=news)
        for index in common.nodes_gone:
            self._speakers.pop(NodeIndex(index), None)
        rests_ns = self._cluster.options.publish_ns * self._messages // MESSAGES_AT_ONCE
        self._rests_until_ns = self._cluster.now_ns + rests_ns

    def _tell_followers(
        self,
        heard: Heard,
        left: Mapping[ChunkKey, set[str]],
        begin: Callable[[View], rpc.DirectoryDelta],
        *,
        news: bool,
    ) -> None:
        """Those who follow hear of what they follow, and (`news`) of what all hear."""
        parts, hears = list(heard.values()), dict[int, list[int]]()
        for number, followers in enumerate(heard):
            for session in followers:
                hears.setdefault(session, []).append(number)
        alike: dict[tuple[Group, tuple[int, ...]], list[int]] = {}
        for session in list(self._followers) if news else sorted(self._followers.keys() & hears.keys()):
            alike.setdefault((self._followers[session], tuple(hears.get(session, ()))), []).append(session)
        for (group, numbers), hearers in alike.items():
            delta, shows = begin(group.view), group.view.shows
            rows = [row for number in numbers for row in parts[number][0]]
            unseen = tell(delta, self._directory, rows, shows, columns=group.columns)
            gone = [*(key for number in numbers for key in parts[number][1]), *unseen]
            delta.chunks_gone.extend(key for key in gone if any(map(shows, left.get(key, ()))))
            if not _is_empty(delta):
                self._send_change(hearers, delta)

    def look_up(
        self,
        session: int,
        keys: Sequence[ChunkKey],
        number: int = 0,
        released: Sequence[ChunkKey] = (),
        root: ChunkKey | None = None,
    ) -> None:
        """An agent asks for chunks, and lets others go; or (number 0) it is to know of some before it asks. What is
        found is told as it is now, with what readers may ask for in its place: later changes follow. And whom to ask,
        where another cell is home to the prefix of `root`."""
        self.following.release(session, released)
        answer = rpc.LookedUp(number=number)
        if root is not None and (home := self._cluster.options.cells.elsewhere(root)) is not None:
            answer.elsewhere.CopyFrom(rpc.Elsewhere(cell=home.name, controllers=home.controllers))
        keys = [*dict.fromkeys(keys), *(twin for key in keys for twin in self._directory.twins(key))]
        if self.following.has_room(session, keys):
            self.following.follow(session, keys)
            view, columns = self._ear(session)
            rows = self._directory.rows_of(keys)
            self._directory.told(self._directory.untold(rows), self._values.scores)
            tell(answer.found, self._directory, rows, view.shows, columns=columns)
        else:
            answer.refused = True
        self._send([session], rpc.ToAgent(looked_up=answer))

    # -- inside

    def _assemble(self, sessions: Iterable[int]) -> None:
        """Who listens now."""
        ears: dict[_Ear, list[int]] = {}
        for session in sessions:
            if not self._is_waiting(session):
                ears.setdefault(self._ear(session), []).append(session)
        groups = [Group(view, columns, tuple(some)) for (view, columns), some in ears.items()]
        follow = self.following.sessions
        self._followers = {one: group for group in groups for one in sorted(follow.intersection(group.sessions))}
        self._audience.assemble(
            replace(group, sessions=some)
            for group in groups
            if (some := tuple(one for one in group.sessions if one not in follow))
        )
        self._speakers |= {
            node.index: self._visibility.of(node.session) for node in self._nodes if node.session in sessions
        }
        self._is_assembled = True

    def _for_view(self, common: rpc.DirectoryDelta, claims: Sequence[rpc.NodeClaims], view: View) -> rpc.DirectoryDelta:
        """What all are told, and the claims that somebody with this view may hear of."""
        delta = rpc.DirectoryDelta()
        delta.CopyFrom(common)
        delta.claims.extend(one for one in claims if _may_hear(view, self._speakers.get(NodeIndex(one.node))))
        return delta

    def _send_change(self, sessions: Collection[int], delta: rpc.DirectoryDelta) -> None:
        """To these, each of which may have missed what did not concern it."""
        known: dict[int, list[int]] = {}
        self._messages += len(sessions)
        for session in sessions:
            known.setdefault(self._told_sequence[session], []).append(session)
            self._told_sequence[session] = self._sequence
        for after, some in known.items():
            message = rpc.ToAgent(directory=delta)
            if after != self._sequence - 1:
                message.directory.after = after
            self._send(some, message)

    def _ear(self, session: int) -> _Ear:
        return self._visibility.of(session), session in self._take_columns

    def _is_waiting(self, session: int) -> bool:
        """Its snapshot is still to come, or coming: deltas are not for it."""
        return self.settling.is_waiting(session) or any(session in one.sessions for one in self._snapshots)

    @property
    def is_behind(self) -> bool:
        """Whether the next part of a snapshot can be told at once."""
        return bool(self._snapshots) or self.following.is_behind

    def _send(self, sessions: Iterable[int], message: rpc.ToAgent) -> None:
        for session in sessions:
            self._cluster.send(session, message)

    def _take_loads(self, sessions: int) -> list[rpc.HolderLoad]:
        now_ns = self._cluster.now_ns
        if not self.loads_changed or now_ns < self._loads_due_ns:
            return []
        self._loads_due_ns = now_ns + int(max(LOADS_PUBLISH_S, sessions / LOAD_MESSAGES_PER_S) * 1e9)
        nodes = [node for index in sorted(self.loads_changed) if (node := self._nodes.get(index)) is not None]
        self.loads_changed.clear()
        return [_load_entry(node) for node in nodes]

    def _take_common(self, sessions: int) -> rpc.DirectoryDelta:
        """What is new of nodes: for all."""
        nodes = [node for index in sorted(self._nodes_changed) if (node := self._nodes.get(index)) is not None]
        common = rpc.DirectoryDelta(nodes_gone=sorted(self._nodes_gone), loads=self._take_loads(sessions))
        common.nodes.extend(map(self._node_entry, nodes))
        self._nodes_changed.clear()
        self._nodes_gone.clear()
        return common

    def _send_part(self, snapshot: _Snapshot, sessions: Collection[int]) -> None:
        self._send(sessions, self._next_part(snapshot))
        self._told_sequence |= dict.fromkeys(sessions, self._sequence)
        if snapshot.is_over:
            self._is_assembled = False

    def _snapshot(self, sessions: Sequence[int]) -> None:
        if sessions:
            self._is_assembled = False
        views: dict[_Ear, list[int]] = {}
        for session in sessions:
            if session in self.following.sessions:
                self._told_sequence[session] = self._sequence
                self._send([session], self._empty_snapshot())
            else:
                views.setdefault(self._ear(session), []).append(session)
        for (view, columns), told in views.items():
            snapshot = _Snapshot(view, columns, set(told))
            self._send_part(snapshot, told)
            if not snapshot.is_over:
                self._snapshots.append(snapshot)

    def _next_part(self, snapshot: _Snapshot) -> rpc.ToAgent:
        """Rows in their order; then what changed of rows that were told already."""
        directory, first = self._directory, snapshot.row
        delta = rpc.DirectoryDelta(sequence=self._sequence, snapshot=True)
        gone: list[ChunkKey] = []
        spaces: dict[ChunkKey, set[str]] = {}
        if first < len(directory.table) or not snapshot.missed:
            rows = directory.some_rows(first, SNAPSHOT_ROWS)
            snapshot.row += SNAPSHOT_ROWS
        else:
            spaces = {key: snapshot.missed.pop(key) for key in list(islice(snapshot.missed, SNAPSHOT_ROWS))}
            rows, gone = directory.rows_of(spaces), [key for key in spaces if key not in directory]
        directory.told(directory.untold(rows), self._values.scores)
        gone += tell(delta, directory, rows, snapshot.view.shows, columns=snapshot.columns)
        # What it was never shown is not named to it either.
        delta.chunks_gone.extend(key for key in gone if any(map(snapshot.view.shows, spaces.get(key, ()))))
        snapshot.is_over = snapshot.row >= len(directory.table) and not snapshot.missed
        if snapshot.is_over:
            delta.MergeFrom(self._empty_snapshot().directory)
        return rpc.ToAgent(directory=delta)

    def _empty_snapshot(self) -> rpc.ToAgent:
        """The end of a snapshot: all nodes."""
        delta = rpc.DirectoryDelta(sequence=self._sequence, snapshot=True, snapshot_end=True)
        delta.nodes.extend(map(self._node_entry, self._nodes))
        delta.loads.extend(_load_entry(node) for node in self._nodes if node.load.queued_bytes)
        return rpc.ToAgent(directory=delta)

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
            rail_endpoints=node.facts.rail_endpoints,
            rack=node.facts.rack,
        )
        if node.member is not None and self._cluster.options.has_members:
            entry.member = node.member
        return entry


def _is_empty(delta: rpc.DirectoryDelta) -> bool:
    """Whether it tells of nothing."""
    told = delta.chunks, delta.columns.keys, delta.chunks_gone, delta.nodes, delta.nodes_gone, delta.loads, delta.claims
    return not any(told)


def _may_hear(view: View, speaker: View | None) -> bool:
    """Whether a claim, which names no namespace, may be told: the claimant is told of nothing more."""
    return speaker is not None and view.covers(speaker)


def _load_entry(node: Node) -> rpc.HolderLoad:
    return rpc.HolderLoad(node=node.index, queued_bytes=node.load.queued_bytes, readers=node.load.readers)
