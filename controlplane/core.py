"""The control plane without its daemon: messages, switch events and time in, effects out. Pure.

Everything that affects the state of the control plane happens here or in what is called from here: `NodeRegistry`
(who), `Directory` (what), `ClusterValues` (worth), `SwitchPool` and `SwitchProgrammer` (the switch), `TaskTable`
(work given away), `Operations` (operators). The daemon owns clock, streams and the switch's session, calls one method
per event and carries out `take_effects()`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from controlplane import parse
from controlplane.accounting import Accounting
from controlplane.directory import AddOutcome, Directory
from controlplane.effects import CloseSession, Effect, ReadTheSwitch, SendTo, SendToAll, Warn, WriteTheSwitch
from controlplane.ids import ChunkKey, Member, NodeIndex, SwitchPort, TaskId
from controlplane.limits import BITMAP_GROUPS_MAX, TASK_KEYS_MAX
from controlplane.newcomers import Source
from controlplane.nodes import ASCENDING, Graces, Node, NodeFacts, NodeRegistry, NodeState, RefusedNodeError
from controlplane.operations import Operations
from controlplane.pool import FillUnwanted, FillWanted, PoolRules, RecoveryWanted, SwitchPool
from controlplane.publication import Publication
from controlplane.purposes import FillFor, Housekeeping, JobPart, Purpose, PushTo, RecoveryOf, RescueOf
from controlplane.pushes import Pushes
from controlplane.rescues import Rescues
from controlplane.settling import Settling
from controlplane.spill import Host
from controlplane.switch import dialects
from controlplane.switch.entries import (
    NEXT_SEGMENT_SESSION,
    AddressEntry,
    CloneSessionEntry,
    EgressMemberEntry,
    Entry,
    FabricEntry,
    GroupEntry,
    PortMemberEntry,
    SwitchContents,
)
from controlplane.switch.groups import Change
from controlplane.switch.programmer import ReadSwitch, SwitchProgrammer, WriteSwitch
from controlplane.switch.target import Down, HeatReport, LostReport, Standby, SwitchEvent, SwitchFacts, Up
from controlplane.tasks import PendingTask, TaskTable
from controlplane.value import ClusterValues
from kvproto.rpc import control_pb2 as rpc
from kvproto.tiers.push import PushParameters
from kvproto.value import ValueParameters
from kvproto.wire.rdma import rdma_segment_bytes_max

_MEMBER_KINDS = frozenset(
    {"port_member", "egress_member", "dmac", "replicate", "replicate_default", "group", "clone_session"}
)
_DIGEST_KINDS = frozenset({"digest"})
_SWEEP_NS = 20_000_000


@dataclass(frozen=True, slots=True)
class FabricParameters:
    """What every agent and the switch must agree on."""

    entry: FabricEntry
    qkey: int
    data_port: int = 4791
    control_port: int = 4793
    segment_bytes: int = 4096
    """Until a switch says otherwise."""


@dataclass(frozen=True, slots=True)
class CoreOptions:
    fabric: FabricParameters
    graces: Graces
    incarnation: int
    """Larger on each start of the controller."""
    with_switch: bool
    values: ValueParameters = field(default_factory=ValueParameters)
    rules: PoolRules = field(default_factory=PoolRules)
    pushes: PushParameters = field(default_factory=PushParameters)
    ports: Mapping[str, SwitchPort] = field(default_factory=dict)
    flood_ports: tuple[SwitchPort, ...] = ()
    """Ports of the group of all ports; empty: what the switch has, and the ports of nodes."""
    switch_floods: bool = False
    """The switch floods to all its ports by itself until somebody writes the group: leave it so."""
    member_order: tuple[Member, ...] = ASCENDING
    """Members in the order in which ports get them."""
    bitmap_groups_max: int = BITMAP_GROUPS_MAX
    check_switch_ns: int = 2_000_000_000
    fill_timeout_ms: int = 10_000
    transfer_timeout_ms: int = 60_000
    settle_ns: int = 3_000_000_000
    """So long after its start a controller lets agents keep the directory of its predecessor."""


class Core:
    """One controller."""

    def __init__(self, options: CoreOptions) -> None:
        self.options = options
        self.nodes = NodeRegistry(options.graces, options.ports, options.member_order)
        self.directory = Directory()
        self.values = ClusterValues(self.directory, options.values)
        self.programmer = SwitchProgrammer(options.check_switch_ns)
        self.pool = SwitchPool(
            self.directory, self.values, self.programmer, options.rules, self._fill_sources, self._recovery_hosts
        )
        self.publication = Publication(
            self.directory,
            self.values,
            self.nodes,
            Settling(options.settle_ns),
            incarnation=options.incarnation,
            with_switch=options.with_switch,
        )
        self.tasks: TaskTable[Purpose] = TaskTable(options.incarnation)
        self.accounting = Accounting()
        self.segment_bytes = options.fabric.segment_bytes
        self.switch_present = False
        self.switch_standby = False
        self.epoch = 0
        self._switch_seen = False
        self.started_ns: int | None = None
        self.now_ns = 0
        """Of the last `advance`."""
        self._swept_ns = -_SWEEP_NS
        self._dialect = dialects.V1MODEL
        self._groups = self._dialect.groups()
        self._found_addresses: dict[bytes, SwitchPort] = {}
        """What a switch already knew of nodes that have not attached yet."""
        self._effects: list[Effect] = []
        self._sessions: dict[int, NodeIndex] = {}
        self._rdma_problems: dict[str, str] = {}
        """What was said of nodes' NICs, by name."""
        self._to_pin: dict[NodeIndex, list[ChunkKey]] = {}
        self.operations = Operations(self)
        self.pushes = Pushes(self, options.pushes)
        self.rescues = Rescues(self)

    def take_effects(self) -> list[Effect]:
        effects, self._effects = self._effects, []
        return effects

    def emit(self, effect: Effect) -> None:
        self._effects.append(effect)

    # -- agents

    def hello(self, session: int, hello: rpc.Hello, now_ns: int) -> None:
        """The first message of a stream."""
        try:
            facts = parse.node_facts(hello)
            if facts.segment_bytes and self.segment_bytes not in facts.segment_bytes:
                raise RefusedNodeError(
                    "FAILED_PRECONDITION",
                    f"the fabric's segments have {self.segment_bytes} bytes, which this agent lacks",
                )
            node = self.nodes.hello(session, facts, now_ns)
        except parse.MalformedError as error:
            self.emit(CloseSession(session, "INVALID_ARGUMENT", str(error)))
            return
        except RefusedNodeError as refusal:
            self.emit(CloseSession(session, refusal.code, str(refusal)))
            return
        self._look_at_rdma(facts)
        for old, index in list(self._sessions.items()):
            if index == node.index:
                # With its stream an agent gives up the tasks that came on it.
                self._end_tasks(self.tasks.node_gone(index))
                del self._sessions[old]
                self.emit(CloseSession(old, "ABORTED", "this node attached again on another stream"))
        for index in self.nodes.take_displaced():
            self._forget_node(index)
        self._sessions[session] = node.index
        self.directory.begin_snapshot(node.index)
        self.publication.node_changed(node.index)
        self.emit(SendTo(session, self._welcome(node)))
        for effect in self.publication.attach(session, facts):
            self.emit(effect)
        self._program_members()
        self.pool.sources_changed()

    def message(self, session: int, message: rpc.FromAgent, now_ns: int) -> None:
        """Any later message of a stream."""
        index = self._sessions.get(session)
        node = None if index is None else self.nodes.get(index)
        if node is None:
            return
        was = node.state
        self.nodes.heard(node, now_ns)
        if node.state is not was:
            self.pool.sources_changed()
        try:
            self._dispatch(node, message, now_ns)
        except parse.MalformedError as error:
            self.emit(CloseSession(session, "INVALID_ARGUMENT", str(error)))

    def closed(self, session: int, now_ns: int) -> None:
        """A stream ended, whoever ended it."""
        self._sessions.pop(session, None)
        self.publication.left(session)
        node = self.nodes.closed(session, now_ns)
        if node is not None:
            self._end_tasks(self.tasks.node_gone(node.index))

    def _dispatch(self, node: Node, message: rpc.FromAgent, now_ns: int) -> None:
        match message.WhichOneof("message"):
            case "announce":
                self._announce(node, message.announce, now_ns)
            case "usage":
                self._usage(node, message.usage, now_ns)
            case "heartbeat":
                node.pool_used_bytes = message.heartbeat.pool_used_bytes
                node.sent_bytes = message.heartbeat.sent_bytes
                node.received_bytes = message.heartbeat.received_bytes
                node.disk_used_bytes = message.heartbeat.disk_used_bytes
                node.next_victims = parse.next_victims(message.heartbeat)
                if self.options.rules.spill:
                    self.rescues.consider(node, now_ns)
            case "task_result":
                task = self.tasks.get(TaskId(message.task_result.task))
                if task is not None and task.node == node.index:
                    self.tasks.finish(task.id)
                    self._task_ended(task, message.task_result)
            case "task_progress":
                task = self.tasks.get(TaskId(message.task_progress.task))
                if task is not None and task.node == node.index and isinstance(task.purpose, JobPart):
                    self.operations.part_progress(task, message.task_progress)
            case "bad_copy":
                self._bad_copy(message.bad_copy)
            case "leaving":
                self._forget_copies(node.index)
                self.closed(node.session, now_ns)
                self.emit(CloseSession(node.session, "OK", "goodbye"))
            case "hello":
                raise parse.MalformedError("a second Hello on one stream")
            case _:
                raise parse.MalformedError("an empty message")

    def _announce(self, node: Node, announce: rpc.Announce, now_ns: int) -> None:
        for copy in parse.announced(announce):
            facts = copy.facts
            add = self.directory.add_disk_copy if copy.on_disk else self.directory.add_copy
            outcome = add(node.index, facts)
            if outcome is AddOutcome.CONFLICT:
                self.accounting.decisions["conflicting_copy"] += 1
                continue
            if copy.on_disk:
                continue
            if copy.pinned:
                self.directory.set_pinned([facts.key], True)
            elif outcome is not AddOutcome.KNOWN and self._is_pinned(facts.key):
                self._to_pin.setdefault(node.index, []).append(facts.key)
        for raw in announce.removed:
            self.directory.remove_copy(node.index, parse.chunk_key(raw, "removed"))
        for raw in announce.removed_from_disk:
            self.directory.remove_disk_copy(node.index, parse.chunk_key(raw, "removed_from_disk"))
        if announce.snapshot_end:
            self.directory.end_snapshot(node.index)
            self.publication.announced(node.index)
            self.pushes.joined(node, now_ns)

    def _is_pinned(self, key: ChunkKey) -> bool:
        chunk = self.directory.get(key)
        return chunk is not None and chunk.pinned

    def _usage(self, node: Node, usage: rpc.Usage, now_ns: int) -> None:
        for measurement in parse.measurements(usage):
            self.values.costs.measured(measurement.source, measurement.size_bytes, measurement.seconds)
        self.values.fetched([parse.chunk_key(fetch.key) for fetch in usage.fetches], now_ns)
        for fetch in usage.fetches:
            key = parse.chunk_key(fetch.key)
            at_ns = now_ns - fetch.age_ms * 1_000_000
            self.accounting.fetch(key, fetch.source, fetch.bytes, fetch.waited_us, at_ns)
            self.publication.value_changed(key)
            chunk = self.directory.get(key)
            remote = fetch.source in (rpc.SOURCE_HOLDER, rpc.SOURCE_CAST)
            if chunk is not None:
                self.pushes.fetched(node, chunk, fetch, now_ns)
            if remote and chunk is not None and self.values.touched_again(key, now_ns):
                self.pool.report(key, 1, now_ns)
        for hint in usage.hints:
            key = parse.chunk_key(hint.key)
            if hint.kind == rpc.ReuseHint.SESSION_ENDED and key in self.directory:
                ended = list(self.directory.subtree(key))
                self.values.finished(ended, now_ns)
                for below in ended:
                    self.publication.value_changed(below)
            elif hint.kind == rpc.ReuseHint.EXPECTED:
                self.values.expect(key, now_ns, hint.within_ms / 1000)
                self.publication.value_changed(key)

    def _bad_copy(self, report: rpc.BadCopy) -> None:
        key = parse.chunk_key(report.key)
        chunk = self.directory.get(key)
        if chunk is None or report.expected != chunk.facts.checksum:
            self.accounting.decisions["bad_copy_report_outdated"] += 1
            return
        if report.from_switch:
            self.pool.drop_bad(key)
            return
        holder = NodeIndex(report.holder)
        # What is on its disk was written from these bytes, or they were read from it: neither is to be trusted.
        if self.directory.remove_copy(holder, key) | self.directory.remove_disk_copy(holder, key):
            self.accounting.decisions["bad_copy_dropped"] += 1
            work = rpc.Task(drop=rpc.Drop(keys=[key]))
            self.give(holder, Housekeeping("drop a bad copy"), work)

    def _forget_copies(self, index: NodeIndex) -> None:
        self.directory.remove_node(index)

    def _forget_node(self, index: NodeIndex) -> None:
        self.directory.remove_node(index)
        self.publication.node_gone(index)
        self.pool.port_gone(index)

    # -- work for agents

    def give(self, node: NodeIndex, purpose: Purpose, work: rpc.Task, timeout_ms: int | None = None) -> None:
        """A task for a node; it goes out with the next `advance`."""
        self.tasks.add(node, purpose, work, timeout_ms or self.options.transfer_timeout_ms)

    def cancel(self, task: PendingTask[Purpose]) -> None:
        """Take a task back; its end is not reported any more."""
        if self.tasks.finish(task.id) is None or not task.deadline_ns:
            return
        node = self.nodes.get(task.node)
        if node is not None and node.attached:
            self.emit(SendTo(node.session, rpc.ToAgent(cancel=rpc.CancelTask(task=task.id))))

    def _end_tasks(self, tasks: Sequence[PendingTask[Purpose]]) -> None:
        """Tasks that no agent will answer."""
        for task in tasks:
            failed = rpc.TaskResult(task=task.id, status=rpc.TaskResult.FAILED, detail="no answer from the node")
            self._task_ended(task, failed)

    def _task_ended(self, task: PendingTask[Purpose], result: rpc.TaskResult) -> None:
        done = result.status == rpc.TaskResult.DONE
        match task.purpose:
            case FillFor(key=key):
                (self.pool.filled if done else self.pool.fill_failed)(key)
            case RecoveryOf(key=key):
                (self.pool.recovered if done else self.pool.recovery_failed)(key)
            case RescueOf():
                self.rescues.ended(done)
            case PushTo():
                self.pushes.ended(task.node, result)
            case JobPart():
                self.operations.part_ended(task, result)
            case Housekeeping(what=what):
                self.accounting.decisions[f"{what.replace(' ', '_')}_{'done' if done else 'failed'}"] += 1

    def _look_at_rdma(self, facts: NodeFacts) -> None:
        """Say once, while it stays so, that a node's NIC cannot carry the fabric's casts."""
        fits_bytes = rdma_segment_bytes_max(facts.rdma_mtu_bytes) if facts.rdma_mtu_bytes else self.segment_bytes
        problem = ""
        if fits_bytes < self.segment_bytes:
            problem = (
                f"{facts.name}: its RDMA MTU of {facts.rdma_mtu_bytes} bytes takes segments of {fits_bytes} at most,"
                f" the fabric's have {self.segment_bytes}: its casts go over sockets, its reads over RDMA. Build the"
                f" switch program with SEGMENT_BYTES={fits_bytes} or raise the interface's MTU"
            )
        if problem != self._rdma_problems.get(facts.name, ""):
            self._rdma_problems[facts.name] = problem
            if problem:
                self.emit(Warn(problem))

    # -- the switch

    def switch_event(self, event: SwitchEvent, now_ns: int) -> None:
        match event:
            case Up(facts=facts):
                self.switch_standby = False
                self._speak_as(facts)
                self.programmer.up(facts)
                self.pool.switch_up(facts)
                self._program_fabric()
                if facts.segment_bytes != self.segment_bytes:
                    self.segment_bytes = facts.segment_bytes
                    for session in list(self._sessions):
                        self.emit(CloseSession(session, "ABORTED", "the size of segments changed: attach again"))
            case Standby():
                self.switch_standby = True
                self.programmer.down()
            case Down():
                self.programmer.down()
            case HeatReport(key=key, members=members):
                self.accounting.decisions["heat_reports"] += 1
                self.pool.report(key, members.bit_count(), now_ns)
                self._program_groups(self._groups.use(members))
            case LostReport(key=key):
                self.accounting.decisions["segments_lost"] += 1
                self.pool.segment_lost(key, now_ns)

    def _speak_as(self, facts: SwitchFacts) -> None:
        dialect = dialects.dialect_of(facts, self.options.bitmap_groups_max)
        if dialect != self._dialect:
            self._dialect = dialect
            self._groups = dialect.groups()

    def switch_read(self, actual: SwitchContents | None, now_ns: int) -> None:
        """The answer to ReadTheSwitch; None: it failed."""
        self.accounting.switch_reads += 1
        if actual is None:
            self.programmer.read_failed()
            return
        if not self.programmer.read_done(actual, now_ns):
            return
        trusted = actual.get(("fabric", None)) == self.options.fabric.entry
        if not trusted or self.epoch == 0:
            self.epoch = max(self.epoch + 1, self.options.incarnation)
            if self.switch_present:
                self.accounting.decisions["switch_restarted"] += 1
                self.switch_present = False
        if not trusted:
            self._groups.forget()
        elif not self._switch_seen:
            self._take_over_members(actual, now_ns)
        self._switch_seen = True
        self.pool.switch_read(actual, trusted, now_ns)
        self._program_members()

    def switch_written(self, refused: Mapping[int, str] | None, now_ns: int) -> None:
        """The answer to WriteTheSwitch: index of update -> reason; None: nobody knows."""
        if refused is None:
            self.programmer.write_failed()
            return
        problems = self.programmer.write_done(refused, now_ns)
        self.accounting.decisions["updates_refused"] += len(problems)
        self.pool.refused(problems)

    def _take_over_members(self, actual: SwitchContents, now_ns: int) -> None:
        """Keep what a predecessor wrote for nodes that are about to attach here: casts to them are under way."""
        entries = list(actual.values())
        self.nodes.reserve({one.port: one.member for one in entries if isinstance(one, PortMemberEntry)}, now_ns)
        self._found_addresses = {one.mac: one.port for one in entries if isinstance(one, AddressEntry)}
        self._groups.adopt(actual)

    def _program_fabric(self) -> None:
        self.programmer.want(self.options.fabric.entry)
        self.programmer.want_exactly(_DIGEST_KINDS, self._dialect.subscriptions)

    def _program_members(self) -> None:
        if not self.options.with_switch:
            return
        entries: list[Entry] = []
        ports: dict[Member, SwitchPort] = self.nodes.member_ports()
        for member, port in ports.items():
            entries += [PortMemberEntry(port, member), EgressMemberEntry(port, member)]
        reserved = self.nodes.reserved_ports()
        macs: dict[bytes, SwitchPort | None] = {mac: p for mac, p in self._found_addresses.items() if p in reserved}
        macs |= {node.facts.data_mac: node.port for node in self.nodes if node.port is not None}
        entries += [AddressEntry(mac, port) for mac, port in macs.items() if port is not None]
        self._groups.set_members(ports)
        entries += self._groups.entries()
        entries += self._standing_entries(sorted(ports.values()))
        self.programmer.want_exactly(_MEMBER_KINDS, entries)

    def _program_groups(self, change: Change) -> None:
        for identity in change.gone:
            self.programmer.want_not(identity)
        for entry in change.new:
            self.programmer.want(entry)

    def _standing_entries(self, ports: Sequence[SwitchPort]) -> list[Entry]:
        """Flooding reaches what the switch floods to already and every node."""
        flood_group = self._dialect.flood_group
        found = self.programmer.actual.get(("group", flood_group))
        before = found.ports if isinstance(found, GroupEntry) else ()
        flood_ports = tuple(sorted(self.options.flood_ports or {*before, *ports, *self.options.ports.values()}))
        write_flood = bool(flood_ports) and not (
            self.options.switch_floods and not self.options.flood_ports and found is None
        )
        session = self._dialect.session or self._any_session(flood_ports)
        return [GroupEntry(flood_group, flood_ports), session] if write_flood else [session]

    def _any_session(self, ports: Sequence[SwitchPort]) -> CloneSessionEntry:
        """The session that there is, or one to any port."""
        found = self.programmer.actual.get(("clone_session", NEXT_SEGMENT_SESSION))
        if isinstance(found, CloneSessionEntry):
            return found
        return CloneSessionEntry(NEXT_SEGMENT_SESSION, min(ports, default=SwitchPort(1)))

    # -- time

    def advance(self, now_ns: int) -> None:
        """Do all that is due: after each event, and often enough in between for the times that are configured."""
        self.started_ns = now_ns if self.started_ns is None else self.started_ns
        self.now_ns = now_ns
        if now_ns - self._swept_ns >= _SWEEP_NS:
            self._swept_ns = now_ns
            self._sweep(now_ns)
        for effect in self.publication.settle(now_ns):
            self.emit(effect)
        if self.options.with_switch:
            self._advance_switch(now_ns)
        self._flush_pins()
        self.pushes.flush()
        for task in self.tasks.take_ready(now_ns):
            node = self.nodes.get(task.node)
            if node is None or not node.attached:
                self.tasks.finish(task.id)
                self._end_tasks([task])
                continue
            self.emit(SendTo(node.session, rpc.ToAgent(task=task.message)))

    def _sweep(self, now_ns: int) -> None:
        """What time alone brings about; looked at now and then, not at every event."""
        expiry = self.nodes.expire(now_ns)
        for index in expiry.copies:
            self._forget_copies(index)
        for index in expiry.nodes:
            self._forget_node(index)
        if expiry.nodes or expiry.reservations:
            self._program_members()
        self._end_tasks(self.tasks.expire(now_ns))

    def _advance_switch(self, now_ns: int) -> None:
        self.pool.advance(now_ns)
        for effect in self.pool.take_effects():
            match effect:
                case FillWanted(key=key, node=node, segments=segments):
                    work = rpc.Task(fill=rpc.Fill(key=key, segments=segments))
                    self.give(node, FillFor(key), work, self.options.fill_timeout_ms)
                case FillUnwanted(key=key):
                    for task in self.tasks.with_purpose(FillFor(key)):
                        self.cancel(task)
                case RecoveryWanted(key=key, node=node):
                    work = rpc.Task(fetch=rpc.Fetch(keys=[key], reason=rpc.Fetch.SPILL))
                    self.give(node, RecoveryOf(key), work)
        request = self.programmer.next(now_ns)
        if isinstance(request, ReadSwitch):
            self.emit(ReadTheSwitch())
        elif isinstance(request, WriteSwitch):
            self.accounting.switch_updates += len(request.updates)
            self.emit(WriteTheSwitch(request.updates))
        if not self.switch_present and self.programmer.has(self.options.fabric.entry) and self.programmer.settled:
            self.switch_present = True
            self.emit(SendToAll(rpc.ToAgent(switch_state=self.switch_state())))

    def _flush_pins(self) -> None:
        for node, keys in self._to_pin.items():
            for at in range(0, len(keys), TASK_KEYS_MAX):
                work = rpc.Task(pin=rpc.PinChunks(keys=keys[at : at + TASK_KEYS_MAX]))
                self.give(node, Housekeeping("pin"), work)
        self._to_pin.clear()

    # -- what agents are told

    def publish(self) -> None:
        """Tell every agent what changed since the last time."""
        for effect in self.publication.publish(self._sessions):
            self.emit(effect)

    def switch_state(self) -> rpc.SwitchState:
        return rpc.SwitchState(present=self.switch_present, epoch=self.epoch)

    def _welcome(self, node: Node) -> rpc.ToAgent:
        fabric = self.options.fabric
        welcome = rpc.Welcome(
            node=node.index,
            controller=self.options.incarnation,
            heartbeat_ms=self.options.graces.heartbeat_ns // 1_000_000,
            switch_state=self.switch_state(),
            fabric=rpc.Fabric(
                group_ip=fabric.entry.group_ip,
                group_mac=fabric.entry.group_mac,
                pool_ip=fabric.entry.pool_ip,
                qkey=fabric.qkey,
                data_port=fabric.data_port,
                control_port=fabric.control_port,
                segment_bytes=self.segment_bytes,
                from_switch_dscp=fabric.entry.from_switch_dscp,
                interest_ttl_ms=fabric.entry.interest_ttl_us // 1000,
            ),
        )
        if node.member is not None and self.options.with_switch:
            welcome.member = node.member
        return rpc.ToAgent(welcome=welcome)

    # -- asked by the pool

    def _fill_sources(self, key: ChunkKey) -> list[Source]:
        chunk = self.directory.get(key)
        if chunk is None:
            return []
        nodes = [node for index in sorted(chunk.holders) if (node := self.nodes.get(index)) is not None]
        return [
            Source(node.index, node.port)
            for node in nodes
            if node.state is NodeState.ATTACHED and node.port is not None and node.member is not None
        ]

    def _recovery_hosts(self, excluded: NodeIndex | None) -> list[Host]:
        return self.rescues.hosts(excluded, self.now_ns)
