"""What agents report, taken into directory, values and accounts: copies, use, hints, copies that are bad. Pure."""

from __future__ import annotations

from controlplane import parse
from controlplane.accounting import Accounting
from controlplane.claims import ClaimTable
from controlplane.directory import AddOutcome, Directory
from controlplane.doubts import BAD_COPY_WORDS, Doubts
from controlplane.fill_price import FillPrice
from controlplane.ids import ChunkKey, NodeIndex
from controlplane.limits import TASK_KEYS_MAX
from controlplane.nodes import Node
from controlplane.observer import Observer
from controlplane.publication import Publication
from controlplane.purposes import Housekeeping, Purpose
from controlplane.pushes import Pushes
from controlplane.switch_cache import SwitchCache
from controlplane.tasks import TaskTable
from controlplane.value import ClusterValues
from controlplane.warmups import Warmups
from kvchunk.sources import PEERS
from kvproto.grants import NamespaceRules
from kvproto.integrity import Integrity
from kvproto.rpc import control_pb2 as rpc

_REFUSED = {AddOutcome.CONFLICT: "conflicting_copy", AddOutcome.CYCLE: "cyclic_copy"}
"""Copies that nobody is offered, as they are counted."""


class AgentReports:
    """One method for each message of an agent about chunks. All raise MalformedError."""

    def __init__(
        self,
        directory: Directory,
        values: ClusterValues,
        switch_cache: SwitchCache,
        publication: Publication,
        tasks: TaskTable[Purpose],
        pushes: Pushes,
        warmups: Warmups,
        claims: ClaimTable,
        accounting: Accounting,
        observer: Observer,
        price: FillPrice,
        integrity: Integrity,
        rules: NamespaceRules,
        copies_max: int,
    ) -> None:
        """`integrity`: how the fabric's chunks are digested; `rules`: who may have chunks of which namespaces;
        `copies_max`: of each node, in its pool and on its disk, each."""
        self._copies_max = copies_max
        self._rules = rules
        self._integrity = integrity
        self._directory = directory
        self._values = values
        self._switch_cache = switch_cache
        self._publication = publication
        self._tasks = tasks
        self._pushes = pushes
        self._warmups = warmups
        self._claims = claims
        self._accounting = accounting
        self._observer = observer
        self._price = price
        self._doubts = Doubts()
        self._to_pin: dict[NodeIndex, list[ChunkKey]] = {}

    def announced(self, node: Node, announce: rpc.Announce, now_ns: int) -> None:
        """Copies that a node has or no longer has."""
        grant = self._rules.grant(node.facts.name)
        for copy in parse.announced(announce, self._integrity):
            facts = copy.facts
            if not grant.allows(facts.namespace):
                self._accounting.decisions["foreign_copy"] += 1
                continue
            if self._is_full(node, copy):
                self._accounting.decisions["too_many_copies"] += 1
                continue
            add = self._directory.add_disk_copy if copy.on_disk else self._directory.add_copy
            outcome = add(node.index, facts)
            if outcome in _REFUSED:
                self._accounting.decisions[_REFUSED[outcome]] += 1
                continue
            if copy.on_disk:
                continue
            self._claims.kept(node.index, facts.key)
            if copy.pinned:
                self._directory.set_pinned([facts.key], True)
            elif outcome is not AddOutcome.KNOWN and self._is_pinned(facts.key):
                self._to_pin.setdefault(node.index, []).append(facts.key)
        for raw in announce.removed:
            self._directory.remove_copy(node.index, parse.chunk_key(raw, "removed"))
        for raw in announce.removed_from_disk:
            self._directory.remove_disk_copy(node.index, parse.chunk_key(raw, "removed_from_disk"))
        if announce.snapshot_end:
            self._directory.end_snapshot(node.index)
            self._publication.announced(node.index)
            self._pushes.joined(node, now_ns)

    def _is_full(self, node: Node, copy: parse.AnnouncedCopy) -> bool:
        """Whether this would be one copy more than a node can have."""
        directory = self._directory
        count = directory.count_on_disk_of if copy.on_disk else directory.count_held_by
        if count(node.index) < self._copies_max:
            return False
        known = directory.get(copy.facts.key)
        return known is None or node.index not in (known.disk_holders if copy.on_disk else known.holders)

    def claimed(self, node: Node, message: rpc.Claims, now_ns: int) -> None:
        """What a node's engines compute, and what of that they do not compute any more."""
        runs, withdrawn = parse.claims(message)
        for run in runs:
            self._claims.made(node.index, run, now_ns)
        self._claims.withdrawn(node.index, withdrawn)

    def used(self, node: Node, usage: rpc.Usage, now_ns: int) -> None:
        """Fetches of a node's engines, before this controller led and now, their hints about the future, and the
        measured times of sources."""
        for measurement in parse.measurements(usage):
            self._values.costs.measured(measurement.source, measurement.size_bytes, measurement.seconds)
        if past := parse.past_fetches(usage):
            self._values.remember(past, now_ns)
            for key in past:
                self._publication.value_changed(key)
        fetches = parse.fetches(usage)
        self._values.fetched([ChunkKey(fetch.key) for fetch in fetches], now_ns)
        for fetch in fetches:
            self._fetched(node, fetch, now_ns)
        for hint in usage.hints:
            self._hinted(hint, now_ns)
        self._warmups.asked(node.index, parse.warm_wishes(usage), now_ns)

    def bad_copy(self, node: Node, report: rpc.BadCopy, now_ns: int) -> None:
        """A reader says that a copy does not match its digest. Nobody's word drops another's copy: the holder is told
        to compare its bytes. The switch cannot; its copy goes when two nodes say so and a host has the chunk, too."""
        key = parse.chunk_key(report.key)
        chunk = self._directory.get(key)
        if chunk is None or report.expected != chunk.facts.digest:
            self._accounting.decisions["bad_copy_report_outdated"] += 1
            return
        if report.from_switch:
            words = self._doubts.said(key, None, node.index, now_ns)
            if words >= BAD_COPY_WORDS and (chunk.holders or chunk.disk_holders):
                self._switch_cache.drop_bad(key)
            return
        holder = NodeIndex(report.holder)
        if holder not in chunk.holders and holder not in chunk.disk_holders:
            return
        if self._doubts.said(key, holder, node.index, now_ns) == 1:
            self._accounting.decisions["bad_copy_rechecked"] += 1
            self._tasks.add(holder, Housekeeping("recheck a copy"), rpc.Task(recheck=rpc.Recheck(keys=[key])))

    def give_out_pins(self) -> None:
        """Have new holders of pinned chunks pin them, too."""
        for node, keys in self._to_pin.items():
            for at in range(0, len(keys), TASK_KEYS_MAX):
                work = rpc.Task(pin=rpc.PinChunks(keys=keys[at : at + TASK_KEYS_MAX]))
                self._tasks.add(node, Housekeeping("pin"), work)
        self._to_pin.clear()

    # -- inside

    def _fetched(self, node: Node, fetch: rpc.FetchEvent, now_ns: int) -> None:
        key = ChunkKey(fetch.key)
        at_ns = now_ns - fetch.age_ms * 1_000_000
        rode_along = self._accounting.fetch(key, fetch.source, fetch.bytes, fetch.waited_us, at_ns)
        self._observer.fetched(node, fetch, at_ns, rode_along=rode_along)
        self._publication.value_changed(key)
        if fetch.source in PEERS:
            self._price.fetched(NodeIndex(fetch.holder), now_ns)
        elif fetch.source == rpc.SOURCE_SWITCH:
            self._price.served()
        chunk = self._directory.get(key)
        if chunk is None:
            return
        # A twin that was read stands for its chunk, which the node has now.
        parent = chunk.facts.parent
        whole = self._directory.get(parent) if parent is not None and chunk.facts.is_twin else chunk
        if whole is not None:
            self._pushes.fetched(node, whole, fetch, now_ns)
        if fetch.source in PEERS and self._values.touched_again(key, now_ns):
            self._switch_cache.report(key, 1, now_ns)

    def _hinted(self, hint: rpc.ReuseHint, now_ns: int) -> None:
        key = parse.chunk_key(hint.key)
        if hint.kind == rpc.ReuseHint.SESSION_ENDED and key in self._directory:
            ended = list(self._directory.subtree(key))
            self._values.finished(ended, now_ns)
            for below in ended:
                self._publication.value_changed(below)
        elif hint.kind == rpc.ReuseHint.EXPECTED:
            self._values.expect(key, now_ns, hint.within_ms / 1000)
            self._publication.value_changed(key)

    def _is_pinned(self, key: ChunkKey) -> bool:
        chunk = self._directory.get(key)
        return chunk is not None and chunk.pinned
