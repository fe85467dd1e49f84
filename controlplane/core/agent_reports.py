"""What agents report, taken into directory, values and accounts: copies, use, hints, copies that are bad. Pure."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from controlplane.core import parse
from controlplane.core.claims import ClaimTable
from controlplane.core.cluster import Cluster
from controlplane.core.directory import AddOutcome
from controlplane.core.ids import ChunkKey, NodeIndex
from controlplane.core.nodes import Node
from controlplane.core.publication import Publication
from controlplane.core.pushes import Pushes
from controlplane.core.refusals import Refusals
from controlplane.core.switch_cache.cache import SwitchCache
from controlplane.core.tasks import Housekeeping
from controlplane.core.warmups import Warmups
from kvchunk.sources import PEERS
from kvproto.chunk_columns import ON_DISK, PINNED, Columns
from kvproto.grants import Grant
from kvproto.records import RecordError, chunk_key
from kvproto.rpc import control_pb2 as rpc

BAD_COPY_WORDS: Final = 2
"""Nodes that have to say so before the switch's copy of a chunk goes."""
DOUBT_NS: Final = 60_000_000_000
"""For so long a doubt is remembered, and the same holder is not asked again to compare the same chunk."""
DOUBTS_MAX: Final = 10_000


@dataclass(slots=True)
class _Doubt:
    since_ns: int
    nodes: set[NodeIndex] = field(default_factory=set)


class Doubts:
    """Owns who has said lately that which copy is bad. A word is no proof: each node counts once, and
    words are forgotten. At most DOUBTS_MAX are remembered; the oldest go first."""

    def __init__(self) -> None:
        self._doubts: OrderedDict[tuple[ChunkKey, NodeIndex | None], _Doubt] = OrderedDict()

    def add(self, key: ChunkKey, holder: NodeIndex | None, node: NodeIndex, now_ns: int) -> int:
        """`node` says that the copy at `holder` (None: in the switch) is bad. How many say so now, if this is news;
        0 if this node has said it already."""
        doubt = self._doubts.get((key, holder))
        if doubt is None or now_ns - doubt.since_ns >= DOUBT_NS:
            self._doubts.pop((key, holder), None)
            doubt = self._doubts[key, holder] = _Doubt(now_ns)
            while len(self._doubts) > DOUBTS_MAX:
                del self._doubts[next(iter(self._doubts))]
        if node in doubt.nodes:
            return 0
        doubt.nodes.add(node)
        return len(doubt.nodes)


_REFUSED = {AddOutcome.CONFLICT: "conflicting_copy", AddOutcome.CYCLE: "cyclic_copy"}
"""Copies that nobody is offered, as they are counted. A conflict says nothing against the copy that comes second, so
its sender is not told."""


class AgentReports:
    """One method for each message of an agent about chunks; all raise RecordError where they take nothing of it. Owns
    the doubts about copies, and the copies that holders are still to pin."""

    def __init__(
        self,
        cluster: Cluster,
        switch_cache: SwitchCache,
        publication: Publication,
        pushes: Pushes,
        warmups: Warmups,
        claims: ClaimTable,
    ) -> None:
        self._cluster = cluster
        self.refusals = Refusals(cluster)
        self._directory = cluster.directory
        self._values = cluster.values
        self._switch_cache = switch_cache
        self._publication = publication
        self._pushes = pushes
        self._warmups = warmups
        self._claims = claims
        self._doubts = Doubts()
        self._to_pin: dict[NodeIndex, list[ChunkKey]] = {}

    def copies_announced(self, node: Node, announce: rpc.Announce) -> None:
        """Copies that a node has or no longer has."""
        index, directory, claimed = node.index, self._directory, self._claims.of(node.index)
        grant = self._cluster.namespace_rules.grant(node.facts.name)
        copies, columns = parse.announced(announce, self.refusals, self._cluster.options.fabric.integrity)
        taken: list[ChunkKey] = []
        counts = directory.count_held_by(index), directory.count_on_disk_of(index)
        may_be_too_many = max(counts) + len(copies) + len(columns.keys) > self._cluster.options.copies_max
        if columns.keys:
            if not may_be_too_many:
                columns = self._take_up(index, columns, grant, taken)
            copies += columns.records()
        allowed = {namespace: grant.allows(namespace) for namespace in {copy.namespace for copy in copies}}
        for copy in copies:
            key, on_disk = copy.key, bool(copy.flags & ON_DISK)
            if not allowed[copy.namespace]:
                self._cluster.decisions["foreign_copy"] += 1
                self.refusals.add("copy", key, "the node may not have chunks of this namespace")
                continue
            if may_be_too_many and self._is_full(node, key, on_disk=on_disk):
                self._cluster.decisions["too_many_copies"] += 1
                self.refusals.add("copy", key, f"a node has {self._cluster.options.copies_max} copies at most")
                continue
            outcome = (directory.add_disk_copy if on_disk else directory.add_copy)(index, copy)
            if outcome in _REFUSED:
                self._cluster.decisions[_REFUSED[outcome]] += 1
                if outcome is AddOutcome.CYCLE:
                    self.refusals.add("copy", key, "its parents lead back to it")
                continue
            taken.append(key)
            if on_disk:
                continue
            if key in claimed:
                self._claims.chunk_announced(index, key)
                claimed = self._claims.of(index)
            if copy.flags & PINNED:
                directory.set_pinned([key], True)
            elif outcome is not AddOutcome.KNOWN and directory.is_pinned(key):
                self._to_pin.setdefault(index, []).append(key)
        for key in parse.keys(announce.removed, "removed", self.refusals):
            self._directory.remove_copy(node.index, key)
        for key in parse.keys(announce.removed_from_disk, "removed_from_disk", self.refusals):
            self._directory.remove_disk_copy(node.index, key)
        if node.facts.follows:
            self._publication.following.follow(node.session, taken)
        if announce.snapshot_end:
            self._directory.end_snapshot(node.index)
            self._publication.settling.announced.add(node.index)
            self._pushes.node_announced(node)

    def _take_up(self, index: NodeIndex, said: Columns, grant: Grant, taken: list[ChunkKey]) -> Columns:
        """What can be taken up of many copies together, `taken`; the others are to be looked at one by one."""
        is_allowed = np.array([grant.allows(name) for name in said.names], np.bool_)[said.indexes]
        rest = np.ones(len(said.keys), np.bool_)
        for on_disk in (False, True):
            places = np.flatnonzero(is_allowed & (said.flags == ON_DISK * on_disk))
            if not len(places):
                continue
            some = said if len(places) == len(said.keys) else said.take(places)
            rest[places] = False
            rest[places[self._directory.add_copies(index, some, on_disk=on_disk)]] = True
            kept = some.keys if not rest.any() else [said.keys[at] for at in places.tolist() if not rest[at]]
            taken += kept
            claimed = () if on_disk else self._claims.of(index)
            for key in [key for key in kept if key in claimed] if claimed else ():
                self._claims.chunk_announced(index, key)
        return said.take(np.flatnonzero(rest))

    def _is_full(self, node: Node, key: ChunkKey, *, on_disk: bool) -> bool:
        """Whether this would be one copy more than a node can have."""
        directory = self._directory
        count = directory.count_on_disk_of if on_disk else directory.count_held_by
        if count(node.index) < self._cluster.options.copies_max:
            return False
        return node.index not in directory.hosts(key)[on_disk]

    def chunks_looked_up(self, node: Node, message: rpc.LookUp) -> None:
        """What a node's engines ask for, where the node is not told of everything."""
        if not node.facts.follows:
            raise RecordError("a look-up of a node that is told of everything")
        keys, released, root = parse.look_up(message)
        self._publication.look_up(node.session, keys, message.number, released, root)

    def chunks_claimed(self, node: Node, message: rpc.Claims) -> None:
        """What a node's engines compute, and what of that they do not compute any more."""
        runs, withdrawn = parse.claims(message, self.refusals)
        for run in runs:
            try:
                self._claims.add(node.index, run, node.facts.pool_bytes, self._cluster.now_ns)
            except RecordError as error:
                for key in run.keys:
                    self.refusals.add("claim", key, str(error))
        self._claims.withdraw(node.index, withdrawn)

    def usage_reported(self, node: Node, usage: rpc.Usage) -> None:
        """Fetches of a node's engines, before this controller led and now, their hints about the future, and the
        measured times of sources."""
        now_ns = self._cluster.now_ns
        for measurement in parse.measurements(usage):
            self._values.costs.measured(measurement.source, measurement.size_bytes, measurement.seconds)
        if past := parse.past_fetches(usage, self.refusals):
            self._values.remember(past, now_ns)
            for key in past:
                self._publication.value_changed(key)
        fetches = parse.fetches(usage, self.refusals)
        self._values.fetched([ChunkKey(fetch.key) for fetch in fetches], now_ns)
        for fetch in fetches:
            self._chunk_fetched(node, fetch)
        self.refusals.taken("hint", usage.hints, self._hint_given)
        self._warmups.warm_wished(node.index, parse.warm_wishes(usage, self.refusals))

    def bad_copy_reported(self, node: Node, report: rpc.BadCopy) -> None:
        """A reader says that a copy does not match its digest. Nobody's word drops another's copy: the holder is told
        to compare its bytes. The switch cannot; its copy goes when two nodes say so and a host has the chunk, too."""
        key = chunk_key(report.key)
        chunk = self._directory.get(key)
        if chunk is None or report.expected != chunk.facts.digest:
            self._cluster.decisions["bad_copy_report_outdated"] += 1
            return
        if report.from_switch:
            words = self._doubts.add(key, None, node.index, self._cluster.now_ns)
            if words >= BAD_COPY_WORDS and (chunk.holders or chunk.disk_holders):
                self._switch_cache.drop_bad(key)
            return
        holder = NodeIndex(report.holder)
        if holder not in chunk.holders and holder not in chunk.disk_holders:
            return
        if self._doubts.add(key, holder, node.index, self._cluster.now_ns) == 1:
            self._cluster.decisions["bad_copy_rechecked"] += 1
            self._cluster.tasks.add(holder, Housekeeping("recheck a copy"), rpc.Task(recheck=rpc.Recheck(keys=[key])))

    def give_out_pins(self) -> None:
        """Have new holders of pinned chunks pin them, too."""
        for node, keys in self._to_pin.items():
            self._cluster.tasks.add_for_each(node, "pin", keys, lambda some: rpc.Task(pin=rpc.PinChunks(keys=some)))
        self._to_pin.clear()

    # -- inside

    def _chunk_fetched(self, node: Node, fetch: rpc.FetchEvent) -> None:
        key, now_ns = ChunkKey(fetch.key), self._cluster.now_ns
        at_ns = now_ns - fetch.age_ms * 1_000_000
        rode_along = self._cluster.accounting.fetch(key, fetch.source, fetch.bytes, fetch.waited_us, at_ns)
        self._cluster.observer.fetched(node, fetch, at_ns, rode_along=rode_along)
        self._publication.value_changed(key)
        if fetch.source in PEERS:
            self._switch_cache.price.fetched(NodeIndex(fetch.holder), now_ns)
        elif fetch.source == rpc.SOURCE_SWITCH:
            self._switch_cache.price.served()
        chunk = self._directory.get(key)
        if chunk is None:
            return
        # A twin that was read stands for its chunk, which the node has now.
        parent = chunk.facts.parent
        whole = self._directory.get(parent) if parent is not None and chunk.facts.is_twin else chunk
        if whole is not None:
            self._pushes.chunk_fetched(node, whole, fetch)
        if fetch.source in PEERS and self._values.cache.touched_again(key, now_ns):
            self._switch_cache.heat_reported(key, 1)

    def _hint_given(self, hint: rpc.ReuseHint) -> None:
        key, now_ns = chunk_key(hint.key), self._cluster.now_ns
        if hint.kind == rpc.ReuseHint.SESSION_ENDED and key in self._directory:
            ended = list(self._directory.subtree(key))
            self._values.finished(ended, now_ns)
            for below in ended:
                self._publication.value_changed(below)
        elif hint.kind == rpc.ReuseHint.EXPECTED:
            self._values.expect(key, now_ns, hint.within_ms / 1000)
            self._publication.value_changed(key)
