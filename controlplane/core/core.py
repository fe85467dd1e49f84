"""The control plane without its daemon: messages, switch events and time in, effects out. Pure.

Everything that affects the state of the control plane happens here or in what is called from here: `NodeRegistry`
(who), `Places` (where), `Directory` (what), `ClaimTable` (what is being computed), `ClusterValues` (worth),
`AgentReports` (what agents say of chunks), `SwitchLink`, `SwitchCache` and `SwitchProgrammer` (the switch),
`TaskTable` (work given away), `Pushes`, `Warmups` and `LastCopyReplication` (policies), `Operations` and `Examinations`
(operators), `Publication` (what agents get), `Clearance` (who may hear of what). The daemon owns clock, streams and the
switch's session, calls one method per event and carries out `take_effects()`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from controlplane.core import parse
from controlplane.core.accounting import Accounting
from controlplane.core.admission.admissions import Source
from controlplane.core.admission.fill_price import FillPrice
from controlplane.core.agent_reports import AgentReports
from controlplane.core.claims import ClaimTable
from controlplane.core.clearance import Clearance
from controlplane.core.directory import Directory
from controlplane.core.effects import CloseSession, Effect, Inform, ReadTheSwitch, SendTo, Warn, WriteTheSwitch
from controlplane.core.examination.examinations import Examinations
from controlplane.core.hottest import Hottest
from controlplane.core.ids import ChunkKey, Member, NodeIndex, TaskId
from controlplane.core.last_copies import LastCopyReplication
from controlplane.core.limits import NODE_NAME_BYTES_MAX
from controlplane.core.nodes import Node, NodeRegistry, NodeState, RefusedNodeError
from controlplane.core.observer import Observer
from controlplane.core.operations import Operations
from controlplane.core.operator_state import OperatorState
from controlplane.core.options import CoreOptions
from controlplane.core.places import Places, place_words
from controlplane.core.publication import Publication
from controlplane.core.purposes import (
    FillFor,
    Housekeeping,
    JobPart,
    ProbeStep,
    Purpose,
    PushTo,
    RecoveryOf,
    ReplicationOf,
)
from controlplane.core.pushes import Pushes
from controlplane.core.quotes import Quotes
from controlplane.core.rdma_fits import RdmaFits
from controlplane.core.read_tokens import ReadTokens
from controlplane.core.settling import Settling
from controlplane.core.spill import Host
from controlplane.core.state_copies import StateCopies
from controlplane.core.switch.cache import FillUnwanted, FillWanted, RecoveryWanted, SwitchCache
from controlplane.core.switch.entries import SwitchContents
from controlplane.core.switch.link import SwitchLink
from controlplane.core.switch.programmer import ReadSwitch, SwitchProgrammer, WriteSwitch
from controlplane.core.switch.target import Down, HeatReport, LostReport, Sighting, Standby, SwitchEvent, Up
from controlplane.core.tasks import PendingTask, TaskTable
from controlplane.core.values import ClusterValues
from controlplane.core.visibility import Visibility, keys_of
from controlplane.core.warmups import Warmups
from controlplane.core.welcome import welcome_of
from kvpolicy.tiers.holder_load import HolderLoad
from kvproto import __version__
from kvproto.grants import NamespaceRules
from kvproto.rpc import control_pb2 as rpc
from kvproto.rpc.versions import skew

_SWEEP_NS = 20_000_000


class Core:
    """One controller."""

    def __init__(self, options: CoreOptions, observer: Observer | None = None) -> None:
        """`observer`: hears everything, decides nothing."""
        self.options = options
        self._observer = observer or Observer()
        self.namespace_rules = NamespaceRules(options.namespaces)
        self.nodes = NodeRegistry(options.graces, options.ports, options.with_switch, options.member_order)
        self.directory = Directory(self.namespace_rules.apart)
        self.values = ClusterValues(self.directory, options.values)
        self.hottest = Hottest(self.directory, self.values)
        self.accounting = Accounting()
        self.tasks: TaskTable[Purpose] = TaskTable(options.incarnation, options.transfer_timeout_ms)
        self.programmer = SwitchProgrammer(options.check_switch_ns)
        self.link = SwitchLink(self.programmer, self.nodes, options.link, options.fabric.segment_bytes)
        self.fill_price = FillPrice(self.values, free=not options.rules.price_fills)
        self.switch_cache = SwitchCache(
            self.directory,
            self.values,
            self.programmer,
            options.rules,
            self._fill_sources,
            self._recovery_hosts,
            self._observer,
            price=self.fill_price,
        )
        self.claims = ClaimTable()
        visibility = Visibility(self.namespace_rules)
        self._clearance = Clearance(self.directory, visibility)
        may_have = self._clearance.may_have
        self.publication = Publication(
            self.directory,
            self.values,
            self.nodes,
            Settling(options.settle_ns),
            self.claims,
            visibility,
            incarnation=options.incarnation,
            with_switch=options.with_switch,
        )
        decisions = self.accounting.decisions
        self.last_copies = LastCopyReplication(self.directory, self.nodes, self.tasks, self.values, decisions, may_have)
        cheapest = self.last_copies.cheapest_value
        self.pushes = Pushes(
            self.directory, self.nodes, self.tasks, self.values, cheapest, decisions, options.pushes, may_have
        )
        self.warmups = Warmups(self.directory, self.nodes, self.tasks, self.hottest, decisions, may_have)
        self.reports = AgentReports(
            self.directory,
            self.values,
            self.switch_cache,
            self.publication,
            self.tasks,
            self.pushes,
            self.warmups,
            self.claims,
            self.accounting,
            self._observer,
            self.fill_price,
            options.fabric.integrity,
            self.namespace_rules,
            options.copies_max,
        )
        self.places = Places(
            options, self.nodes, self.link, self.programmer, self.switch_cache, self.publication, decisions, self._emit
        )
        self.quotes = Quotes(self.directory, self.nodes, self.values.costs)
        self.operator_state = OperatorState()
        self._state_copies = StateCopies(self.operator_state, options.seals, self._clearance.may_pin)
        self.read_tokens = ReadTokens(options.secret, options.read_token_ms, self.namespace_rules)
        self._tokens_due_ns = 0
        cache = self.switch_cache if options.with_switch else None
        self.operations = Operations(
            self.directory,
            self.nodes,
            self.tasks,
            cache,
            self.publication,
            self.operator_state,
            decisions,
            may_have,
        )
        self.examinations = Examinations(
            self.directory, self.nodes, self.tasks, cache, lambda: self.link.segment_bytes, options.incarnation
        )
        self.started_ns: int | None = None
        self.now_ns = 0
        """Of the last `advance` or `message`."""
        self._swept_ns = -_SWEEP_NS
        self._effects: list[Effect] = []
        self._sessions: dict[int, NodeIndex] = {}
        self._rdma_fits = RdmaFits()

    def take_effects(self) -> list[Effect]:
        """What the daemon has to do, in order; each effect is returned once."""
        effects, self._effects = self._effects, []
        return [*effects, *self.operations.take_effects()]

    @property
    def decisions(self) -> Counter[str]:
        """Number of decisions and events, by name."""
        return self.accounting.decisions + self.switch_cache.decisions

    # -- agents

    def hello(self, session: int, hello: rpc.Hello, now_ns: int, speaker: str = "") -> None:
        """The first message of a stream. `speaker`: who says it, by its certificate or its host."""
        try:
            name, version = hello.node[:NODE_NAME_BYTES_MAX], hello.version[:NODE_NAME_BYTES_MAX]
            if reason := skew(f"agent {name}", version, hello.protocol, __version__):
                raise RefusedNodeError("FAILED_PRECONDITION", reason)
            facts = parse.node_facts(hello, speaker)
            if facts.name in self.expelled:
                raise RefusedNodeError("PERMISSION_DENIED", _expelled_words(facts.name))
            if facts.segment_bytes and self.link.segment_bytes not in facts.segment_bytes:
                raise RefusedNodeError(
                    "FAILED_PRECONDITION",
                    f"the fabric's segments have {self.link.segment_bytes} bytes, which this agent lacks",
                )
            if self.options.fabric.integrity not in facts.integrities:
                raise RefusedNodeError(
                    "FAILED_PRECONDITION",
                    f"the fabric's chunks are digested by {self.options.fabric.integrity.value}, which agent"
                    f" {facts.name} (kvcast {facts.version or 'of an unknown version'}) lacks: upgrade it",
                )
            state = parse.operator_state(hello)
            node = self.nodes.hello(session, facts, now_ns)
        except parse.MalformedError as error:
            self._emit(CloseSession(session, "INVALID_ARGUMENT", str(error)))
            return
        except RefusedNodeError as refusal:
            self._emit(CloseSession(session, refusal.code, str(refusal)))
            return
        self._emit(Inform(f"node {facts.name} is attached: {place_words(node)}"))
        if problem := self._rdma_fits.news(facts, self.link.segment_bytes):
            self._emit(Warn(problem))
        for old, index in list(self._sessions.items()):
            if index == node.index:
                # With its stream an agent gives up the tasks that came on it.
                self._end_tasks(self.tasks.node_gone(index))
                del self._sessions[old]
                self._state_copies.left(old)
                self.claims.node_gone(index)
                self._emit(CloseSession(old, "ABORTED", "this node attached again on another stream"))
        self._sessions[session] = node.index
        self._take_wishes(session, state, facts.name, now_ns)
        node.draining = facts.name in self.operator_state.drained
        self.directory.begin_snapshot(node.index)
        self.publication.node_changed(node.index)
        self.places.give_key(node)
        welcome = welcome_of(self.options, node, self.link.segment_bytes, self.places.switch_state(node))
        self._emit(SendTo(session, welcome))
        self._emit(SendTo(session, self.read_tokens.access_of(facts, now_ns)))
        interests = hello.interests if hello.HasField("interests") else None
        self.publication.visibility.attached(session, facts.name, interests)
        for effect in self.publication.attach(session, facts):
            self._emit(effect)
        self._take_up_places()
        self._program_members()
        self.switch_cache.sources_changed()

    def message(self, session: int, message: rpc.FromAgent, now_ns: int) -> None:
        """Any later message of a stream."""
        index = self._sessions.get(session)
        node = None if index is None else self.nodes.get(index)
        self.now_ns = now_ns
        if node is None:
            return
        was = node.state
        self.nodes.heard(node, now_ns)
        if node.state is not was:
            self._emit(Inform(f"node {node.facts.name} is heard again"))
            self.switch_cache.sources_changed()
        try:
            self._dispatch(node, message, now_ns)
        except parse.MalformedError as error:
            self._emit(CloseSession(session, "INVALID_ARGUMENT", str(error)))

    @property
    def expelled(self) -> frozenset[str]:
        """Nodes that are put out."""
        return self.read_tokens.expelled

    def expel(self, names: frozenset[str], now_ns: int) -> None:
        """These nodes, and no others, are put out from now on: their streams end, their copies and members go, and
        every holder hears that their tokens are no good."""
        if names == self.expelled:
            return
        self.now_ns = now_ns
        for name in sorted(self.expelled - names):
            self._emit(Inform(f"node {name} may come back: it is not expelled any more"))
        self.read_tokens.expelled = names
        for name in sorted(names):
            node = self.nodes.named(name)
            if node is not None:
                self._put_out(node, now_ns)
        self._send_tokens(now_ns)

    def _put_out(self, node: Node, now_ns: int) -> None:
        self._emit(Warn(f"node {node.facts.name} is expelled: its copies are forgotten, its member and port are free"))
        session = node.session
        if session in self._sessions:
            self.closed(session, now_ns)
            self._emit(CloseSession(session, "PERMISSION_DENIED", _expelled_words(node.facts.name)))
        self.nodes.put_out(node)
        self._forget_node(node.index)
        self._take_up_places()
        self._program_members()

    def closed(self, session: int, now_ns: int) -> None:
        """A stream ended, whoever ended it."""
        self._sessions.pop(session, None)
        self._state_copies.left(session)
        self.publication.left(session)
        node = self.nodes.closed(session, now_ns)
        if node is not None:
            self.claims.node_gone(node.index)
            self._emit(Inform(f"node {node.facts.name} is gone: its stream ended"))
            self._end_tasks(self.tasks.node_gone(node.index))
            self._program_members()

    def _dispatch(self, node: Node, message: rpc.FromAgent, now_ns: int) -> None:
        match message.WhichOneof("message"):
            case "announce":
                self.reports.announced(node, message.announce, now_ns)
            case "usage":
                self.reports.used(node, message.usage, now_ns)
            case "heartbeat":
                node.pool_used_bytes = message.heartbeat.pool_used_bytes
                node.sent_bytes = message.heartbeat.sent_bytes
                node.received_bytes = message.heartbeat.received_bytes
                node.disk_used_bytes = message.heartbeat.disk_used_bytes
                node.next_victims = parse.next_victims(message.heartbeat)
                self._observer.beat(node, message.heartbeat, now_ns)
                if self.options.rules.spill:
                    self.last_copies.consider(node, now_ns)
            case "load":
                node.load = HolderLoad(message.load.queued_bytes, message.load.readers)
                self.fill_price.told(node.index, node.load, now_ns)
                self.switch_cache.holder_told()
                self.publication.load_changed(node.index)
            case "task_result":
                task = self.tasks.get(TaskId(message.task_result.task))
                if task is not None and task.node == node.index:
                    self.tasks.finish(task.id)
                    self._task_ended(task, message.task_result)
            case "task_progress":
                task = self.tasks.get(TaskId(message.task_progress.task))
                if task is not None and task.node == node.index and isinstance(task.purpose, JobPart):
                    self.operations.part_progress(task, message.task_progress)
            case "interests":
                self.publication.visibility.said(node.session, message.interests)
            case "claims":
                self.reports.claimed(node, message.claims, now_ns)
            case "bad_copy":
                self.reports.bad_copy(node, message.bad_copy, self.now_ns)
            case "leaving":
                self._forget_copies(node.index)
                self.closed(node.session, now_ns)
                self._emit(CloseSession(node.session, "OK", "goodbye"))
            case "hello":
                raise parse.MalformedError("a second Hello on one stream")
            case _:
                raise parse.MalformedError("an empty message")

    def _forget_copies(self, index: NodeIndex) -> None:
        self.directory.remove_node(index)

    def _forget_node(self, index: NodeIndex) -> None:
        self.directory.remove_node(index)
        self.fill_price.gone(index)
        self.publication.node_gone(index)
        self.switch_cache.port_gone(index)

    def _emit(self, effect: Effect) -> None:
        self._effects.append(effect)
        if isinstance(effect, Inform | Warn):
            self._observer.happened(effect.text, self.now_ns)

    # -- work for agents

    def _end_tasks(self, tasks: Sequence[PendingTask[Purpose]]) -> None:
        """Tasks that no agent will answer."""
        for task in tasks:
            failed = rpc.TaskResult(task=task.id, status=rpc.TaskResult.FAILED, detail="no answer from the node")
            self._task_ended(task, failed)

    def _task_ended(self, task: PendingTask[Purpose], result: rpc.TaskResult) -> None:
        done = result.status == rpc.TaskResult.DONE
        match task.purpose:
            case FillFor(key=key):
                if done:
                    self.switch_cache.filled(key)
                else:
                    self.switch_cache.fill_failed(key, self._why(task, result))
            case RecoveryOf(key=key):
                (self.switch_cache.recovered if done else self.switch_cache.recovery_failed)(key)
            case ReplicationOf():
                self.last_copies.ended(done)
            case PushTo():
                self.pushes.ended(task.node, result)
            case JobPart():
                self.operations.part_ended(task, result)
            case ProbeStep():
                self.examinations.step_ended(task.purpose, result, self.now_ns)
            case Housekeeping(what=what):
                self.accounting.decisions[f"{what.replace(' ', '_')}_{'done' if done else 'failed'}"] += 1

    def _why(self, task: PendingTask[Purpose], result: rpc.TaskResult) -> str:
        """What became of a task, for a person."""
        node = self.nodes.get(task.node)
        name = node.facts.name if node is not None else f"node {task.node}"
        return f"{name}: {result.detail or rpc.TaskResult.Status.Name(result.status).lower()}"

    def _take_wishes(self, session: int, said: rpc.OperatorState, name: str, now_ns: int) -> None:
        """A predecessor's agents say what operators had set."""
        genuine = self._state_copies.is_genuine(said)
        self._state_copies.attached(session, said.revision if genuine else 0)
        if not genuine:
            self.accounting.decisions["operator_state_unsigned"] += 1
            self._emit(
                Warn(f"node {name} repeats wishes of operators that no controller has signed: they are not taken")
            )
            return
        state = self.operator_state
        if not state.heard(said):
            return
        self._emit(
            Inform(
                f"operators had set: {len(state.drained)} nodes drained, {len(state.switch_pins)} chunks in the switch"
            )
        )
        for node in self.nodes:
            if node.draining != (node.facts.name in state.drained):
                node.draining = not node.draining
                self.publication.node_changed(node.index)
        if self.options.with_switch:
            self.switch_cache.pin_exactly(state.switch_pins, now_ns)

    def _take_up_places(self) -> None:
        """Tell everybody concerned where nodes were found to be."""
        for index in self.nodes.take_displaced():
            self._forget_node(index)
        self.places.take_up_changes()

    # -- the switch

    def switch_event(self, event: SwitchEvent, now_ns: int) -> None:
        """Something happened at the switch or to the session with it."""
        match event:
            case Up(facts=facts):
                segments_changed = self.link.up(facts)
                self._emit(Inform("this controller leads: it is the switch's primary"))
                self.switch_cache.switch_up(facts)
                if segments_changed:
                    for session in list(self._sessions):
                        self._emit(CloseSession(session, "ABORTED", "the size of segments changed: attach again"))
            case Standby():
                self.link.down(standby=True)
                self._emit(Inform("this controller is on standby: another one is the switch's primary"))
            case Down(reason=reason):
                self.link.down(standby=False)
                self._emit(Inform(f"the session with the switch ended: {reason}"))
            case Sighting():
                if self.places.sighted(event):
                    self._take_up_places()
                    self._program_members()
            case HeatReport(key=key, members=members):
                self.accounting.decisions["heat_reports"] += 1
                self.switch_cache.report(key, members.bit_count(), now_ns)
                self.link.members_used(members)
                self._observer.wanted_together(key, _members(members), now_ns)
            case LostReport(key=key):
                self.accounting.decisions["segments_lost"] += 1
                self.switch_cache.segment_lost(key, now_ns)

    def switch_read(self, actual: SwitchContents | None, now_ns: int) -> None:
        """The answer to ReadTheSwitch; None: it failed."""
        self.accounting.switch_reads += 1
        if actual is None:
            self.programmer.read_failed()
            if self.programmer.missed_reads == 1:
                self._emit(Inform("the switch is degraded: it did not answer when it was read back"))
            return
        if self.programmer.missed_reads:
            self._emit(Inform("the switch answers again"))
        restarts_count = self.link.restarts_count
        trusted = self.link.contents_read(actual, now_ns)
        if trusted is None:
            return
        self.accounting.decisions["switch_restarted"] += self.link.restarts_count - restarts_count
        self.switch_cache.switch_read(actual, trusted, now_ns)
        self._take_up_places()
        self._program_members()

    def switch_written(self, refused: Mapping[int, str] | None, now_ns: int) -> None:
        """The answer to WriteTheSwitch: index of update -> reason; None: nobody knows."""
        if refused is None:
            self.programmer.write_failed()
            return
        problems = self.programmer.write_done(refused, now_ns)
        self.accounting.decisions["updates_refused"] += len(problems)
        self.switch_cache.refused(problems)

    def _program_members(self) -> None:
        if self.options.with_switch:
            self.link.members_changed()

    # -- time

    def advance(self, now_ns: int) -> None:
        """Do all that is due: after each event, and often enough in between for the times that are configured."""
        self.started_ns = now_ns if self.started_ns is None else self.started_ns
        self.now_ns = now_ns
        if now_ns - self._swept_ns >= _SWEEP_NS:
            self._swept_ns = now_ns
            self._sweep(now_ns)
        for effect in self.publication.due_snapshots(now_ns):
            self._emit(effect)
        self.examinations.advance(now_ns)
        if self.options.with_switch:
            self._advance_switch(now_ns)
        self.reports.give_out_pins()
        for effect in self._state_copies.due():
            self._emit(effect)
        self.pushes.flush()
        self.warmups.advance(now_ns)
        for index, task_id in self.tasks.take_cancelled():
            node = self.nodes.get(index)
            if node is not None and node.attached:
                self._emit(SendTo(node.session, rpc.ToAgent(cancel=rpc.CancelTask(task=task_id))))
        for task in self.tasks.take_ready(now_ns):
            node = self.nodes.get(task.node)
            if node is None or not node.attached or not self._clearance.may_know(node, keys_of(task.message)):
                self.tasks.finish(task.id)
                self._end_tasks([task])
                continue
            self._emit(SendTo(node.session, rpc.ToAgent(task=task.message)))

    def _sweep(self, now_ns: int) -> None:
        """Handle what the passing of time alone brings about; runs now and then, not at every event."""
        names = {node.index: node.facts.name for node in self.nodes}
        expiry = self.nodes.expire(now_ns)
        self.claims.expire(now_ns)
        for index in expiry.suspects:
            self.claims.node_gone(index)
            self._emit(Inform(f"node {names[index]} is suspect: it has not been heard for a while"))
        for index in expiry.copies:
            self._forget_copies(index)
        for index in expiry.nodes:
            self._emit(Inform(f"node {names[index]} is forgotten: its member and port are free"))
            self._forget_node(index)
        self.places.look_for(now_ns)
        self._take_up_places()
        if expiry.nodes or expiry.reservations:
            self._program_members()
        self._end_tasks(self.tasks.expire(now_ns))
        self._renew_tokens(now_ns)

    def _renew_tokens(self, now_ns: int) -> None:
        """Give every agent a token that is good for longer than its last."""
        if now_ns < self._tokens_due_ns:
            return
        self._send_tokens(now_ns)
        self._state_copies.renew()

    def _send_tokens(self, now_ns: int) -> None:
        self._tokens_due_ns = now_ns + self.read_tokens.renew_ns
        for session, index in self._sessions.items():
            node = self.nodes.get(index)
            if node is not None:
                self._emit(SendTo(session, self.read_tokens.access_of(node.facts, now_ns)))

    def _advance_switch(self, now_ns: int) -> None:
        self.switch_cache.advance(now_ns)
        for effect in self.switch_cache.take_effects():
            match effect:
                case FillWanted(key=key, node=node, segments=segments, cast_too=cast_too, readers=readers):
                    fill = rpc.Fill(key=key, segments=segments, cast_too=cast_too, readers=readers)
                    work = rpc.Task(fill=fill)
                    self.tasks.add(node, FillFor(key), work, self.options.fill_timeout_ms)
                case FillUnwanted(key=key):
                    for task in self.tasks.with_purpose(FillFor(key)):
                        self.tasks.cancel(task)
                case RecoveryWanted(key=key, node=node):
                    work = rpc.Task(fetch=rpc.Fetch(keys=[key], reason=rpc.Fetch.SPILL))
                    self.tasks.add(node, RecoveryOf(key), work)
        self.link.change_salt(now_ns)
        request = self.programmer.next(now_ns)
        if isinstance(request, ReadSwitch):
            self._emit(ReadTheSwitch())
        elif isinstance(request, WriteSwitch):
            self.accounting.switch_updates += len(request.updates)
            self._emit(WriteTheSwitch(request.updates))
        self.places.tell_members()
        if self.link.check_present():
            self._emit(Inform(f"the switch is programmed: epoch {self.link.epoch}"))
            self.places.switch_present(now_ns)

    # -- what agents get to know

    def publish(self) -> None:
        """Send every agent the changes since the last call."""
        for effect in self.publication.publish(self._sessions, self.now_ns):
            self._emit(effect)

    # -- asked by the switch cache

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

    def _recovery_hosts(self, excluded: NodeIndex | None, namespace: str) -> list[Host]:
        return self.last_copies.hosts(excluded, self.now_ns, namespace)


def _expelled_words(name: str) -> str:
    return f"node '{name}' is expelled: an operator has put it out (kvcast expel {name} --cancel takes it in again)"


def _members(bits: int) -> frozenset[Member]:
    """The members in an interest set."""
    return frozenset(Member(bit) for bit in range(bits.bit_length()) if bits >> bit & 1)
