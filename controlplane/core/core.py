"""The control plane without its daemon: events and time in, effects out. Pure.

Everything that affects the state of the control plane happens here or in what is called from here. `Cluster` has what
all parts share: who is there, who has what, what it is worth, who may hear of it. Around it stand `Attachments` and
`AgentReports` (agents), `SwitchLink`, `Places` and `SwitchCache` (the switch), `Pushes`, `Warmups` and
`LastCopyReplication` (work for agents), `Operations` and `Examinations` (operators) and `Publication` (what agents
get). The shell owns clock, streams and the switch's session. It hands each event to `handle`, carries out the effects,
and fires the timer at `next_timeout_ns`.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from controlplane.core import events, parse
from controlplane.core.agent_reports import AgentReports
from controlplane.core.attachments import Attachments, expelled_words
from controlplane.core.claims import ClaimTable
from controlplane.core.cluster import Cluster
from controlplane.core.effects import Answer, Effect, ReadTheSwitch, RequestRefused, WriteTheSwitch
from controlplane.core.examination.examinations import Examinations
from controlplane.core.ids import ChunkKey, NodeIndex, TaskId
from controlplane.core.last_copies import LastCopyReplication
from controlplane.core.leadership import Leadership
from controlplane.core.limits import NODES_MAX
from controlplane.core.nodes import Node, NodeState, RefusedNodeError
from controlplane.core.observer import Observer
from controlplane.core.operations import Operations, OperatorError, words_of
from controlplane.core.operator_state import OperatorState, StateCopies
from controlplane.core.options import CoreOptions
from controlplane.core.places import Places, place_words
from controlplane.core.publication import Publication
from controlplane.core.pushes import Pushes
from controlplane.core.quotes import Quotes
from controlplane.core.reachability import Reachability
from controlplane.core.switch.programmer import ReadSwitch, WriteSwitch
from controlplane.core.switch.target import Down, HeatReport, LostReport, Sighting, Up
from controlplane.core.switch_cache.cache import SwitchCache
from controlplane.core.switch_link import SwitchLink
from controlplane.core.tasks import (
    FillFor,
    Housekeeping,
    JobPart,
    PendingTask,
    ProbeStep,
    PushTo,
    RecoveryOf,
    ReplicationOf,
)
from controlplane.core.values import Hottest
from controlplane.core.visibility import keys_of
from controlplane.core.warmups import Warmups
from controlplane.core.ways import Ways
from kvpolicy.tiers.holder_load import HolderLoad
from kvproto.fanout import Fanout
from kvproto.ids import members_of
from kvproto.records import RecordError
from kvproto.rpc import control_pb2 as rpc

_SPEAKERS_NAMED = 3
_SWEEP_NS = 20_000_000
_NEXT_SLICE_NS = 1_000_000
"""Between two slices of long work, for what others want."""

_Event = TypeVar("_Event")


class Core:
    """Owns the parts, says which of them hears of an event, and when there is something to do without one."""

    def __init__(self, options: CoreOptions) -> None:
        self._cluster = cluster = Cluster(options)
        self.options = options
        self.nodes = cluster.nodes
        self.directory = cluster.directory
        self.values = cluster.values
        self.tasks = cluster.tasks
        self.accounting = cluster.accounting
        self.hottest = Hottest(cluster.directory, cluster.values)
        self.link = SwitchLink(cluster)
        self.programmer = self.link.programmer
        self.last_copies = LastCopyReplication(cluster)
        self.switch_cache = SwitchCache(cluster, self.programmer, self.last_copies)
        self.claims = ClaimTable()
        self.publication = Publication(cluster, self.claims)
        self.pushes = Pushes(cluster, self.last_copies)
        self.warmups = Warmups(cluster, self.hottest)
        self.reports = AgentReports(
            cluster, self.switch_cache, self.publication, self.pushes, self.warmups, self.claims
        )
        self.leadership = Leadership(cluster)
        self.attachments = Attachments(cluster, self.link, self.leadership)
        self.reachability = Reachability(cluster.nodes)
        self.places = Places(cluster, self.link, self.switch_cache, self.publication)
        self.quotes = Quotes(cluster)
        self.operator_state = OperatorState()
        self._state_copies = StateCopies(cluster, self.operator_state)
        cache = self.switch_cache if options.with_switch else None
        self.operations = Operations(cluster, cache, self.publication, self.operator_state)
        self.examinations = Examinations(cluster, cache, self.link)
        self.ways = Ways(cluster, self.examinations, self.leadership)
        self.started_ns: int | None = None
        self._swept_ns = -_SWEEP_NS
        self._silent: deque[NodeIndex] = deque()
        """Suspects whose claims are still to be given up."""
        self._look_ns = 0
        """When the core looks again what is due."""
        self._publish_ns: int | None = None
        """When changes of the directory are published; None: there are none."""
        self._handlers = self._handlers_of_events()
        self._message_handlers = self._handlers_of_messages()

    def _handlers_of_events(self) -> dict[type, Callable[[Any], None]]:
        return {
            events.HelloReceived: self._hello_received,
            events.MessageReceived: self._message_received,
            events.StreamEnded: lambda event: self._stream_ended(event.session),
            events.ExpulsionsChanged: self._expulsions_changed,
            events.StateFound: self._state_found,
            Up: self._switch_up,
            Down: self._switch_down,
            events.Elected: self.leadership.elected,
            events.Deposed: self._deposed,
            events.LeadershipDoubted: lambda _: self.leadership.doubted(),
            Sighting: self._node_sighted,
            HeatReport: self._heat_reported,
            LostReport: self._segment_lost,
            events.SwitchRead: self._switch_read,
            events.SwitchWritten: self._switch_written,
            events.Requested: self._answering(self._operate),
            events.JobCancelled: lambda event: self.operations.cancel(event.job),
            events.ExaminationRequested: self._answering(lambda event: self.examinations.begin(event.surroundings)),
            events.ExaminationEnded: lambda event: self.examinations.end(event.number),
        }

    def _handlers_of_messages(self) -> dict[str | None, Callable[[Node, Any], None]]:
        return {
            "announce": self.reports.copies_announced,
            "usage": self.reports.usage_reported,
            "heartbeat": self._heartbeat_received,
            "load": self._load_reported,
            "task_result": self._task_result_received,
            "task_progress": self._task_progress_received,
            "interests": lambda node, said: self._cluster.visibility.interests_changed(node.session, said),
            "look_up": self.reports.chunks_looked_up,
            "claims": self.reports.chunks_claimed,
            "bad_copy": self.reports.bad_copy_reported,
            "leaving": self._node_leaving,
            "paths": self._paths_reported,
        }

    # ------------------------------------------------------------------ the shell's side

    def handle(self, event: events.Event, now_ns: int) -> list[Effect]:
        """What follows from an event."""
        self._cluster.now_ns = now_ns
        self.started_ns = now_ns if self.started_ns is None else self.started_ns
        if not isinstance(event, events.TimerFired):
            self._handlers[type(event)](event)
            self._look()
        elif now_ns >= self._look_ns:
            self._look()
        if self._publish_ns is not None and now_ns >= self._publish_ns:
            self.publication.publish(self.attachments.sessions)
            self._publish_ns = None
        due_ns = self.publication.due_ns()
        if due_ns is not None:
            self._publish_ns = due_ns if self._publish_ns is None else min(due_ns, self._publish_ns)
        return self._cluster.take_effects()

    def next_timeout_ns(self) -> int:
        """When TimerFired should come. May change with every event."""
        return self._look_ns if self._publish_ns is None else min(self._look_ns, self._publish_ns)

    def stood_still(self, gap_ns: int) -> None:
        """The shell was stopped, or busy, for so long: what nodes said meanwhile is still to come."""
        self.nodes.stood_still(gap_ns)

    def watch(self, observer: Observer) -> None:
        """`observer` hears of everything from now on, and decides nothing."""
        self._cluster.observer = observer

    @property
    def now_ns(self) -> int:
        """When the last event happened."""
        return self._cluster.now_ns

    @property
    def way(self) -> tuple[Fanout, str]:
        """How the fabric fans out now, and what was found of the network."""
        return self._cluster.way, self._cluster.way_why

    @property
    def decisions(self) -> Counter[str]:
        """Number of decisions and events, by name."""
        return self.accounting.decisions + self.switch_cache.decisions

    @property
    def expelled(self) -> frozenset[str]:
        """Nodes that are put out."""
        return self.attachments.tokens.expelled

    # ------------------------------------------------------------------ agents' streams

    def _hello_received(self, event: events.HelloReceived) -> None:
        session, hello = event.session, event.hello
        self.accounting.message("in", hello.ByteSize())
        try:
            node = self.attachments.admit(session, hello, event.speaker)
        except RecordError as error:
            self.attachments.close(session, "INVALID_ARGUMENT", str(error))
            return
        except RefusedNodeError as refusal:
            self.attachments.close(session, refusal.code, str(refusal))
            return
        self._cluster.inform(f"node {node.facts.name} is attached: {place_words(node)}")
        self.attachments.warn_of_rdma(node.facts)
        for old in self.attachments.take_older_streams(node):
            # With its stream an agent gives up the tasks that came on it.
            self._end_tasks(self.tasks.node_left(node.index))
            self._state_copies.stream_ended(old)
            self.claims.node_left(node.index)
        self.attachments.sessions[session] = node.index
        self.reachability.forget(node.index)
        node.unreached = False
        self._wishes_repeated(session, hello.operator_state, node.facts.name)
        node.draining = node.facts.name in self.operator_state.drained
        self.directory.begin_snapshot(node.index)
        self.publication.node_changed(node.index)
        self.places.give_key(node)
        self.attachments.welcome(node, self.places.switch_state(node))
        interests = hello.interests if hello.HasField("interests") else None
        self._cluster.visibility.stream_attached(session, node.facts.name, interests)
        self.publication.stream_attached(session, node.facts)
        self._take_up_places()
        self._program_members()
        self.switch_cache.sources_changed()

    def _wishes_repeated(self, session: int, said: rpc.OperatorState, name: str) -> None:
        """A predecessor's agents say what operators had set."""
        genuine = self._state_copies.is_genuine(said)
        self._state_copies.stream_attached(session, said.revision if genuine else 0)
        if not genuine:
            self.accounting.decisions["operator_state_unsigned"] += 1
            self._cluster.warn(
                f"node {name} repeats wishes of operators that no controller has signed: they are not taken"
            )
            return
        if self.operator_state.take_repeated(said):
            self._state_taken(f"agent {name}")

    def _state_found(self, event: events.StateFound) -> None:
        if self.operator_state.take_repeated(event.state):
            self._state_taken(event.place)

    def _state_taken(self, place: str) -> None:
        state = self.operator_state
        self._cluster.inform(
            f"operators had set, says {place}: {len(state.drained)} nodes drained, {len(state.expelled)} put out,"
            f" {len(state.switch_pins)} chunks in the switch"
        )
        for node in self.nodes:
            if node.draining != (node.facts.name in state.drained):
                node.draining = not node.draining
                self.publication.node_changed(node.index)
        if self.options.with_switch:
            self.switch_cache.pin_exactly(state.switch_pins)
        self._expel()

    def _message_received(self, event: events.MessageReceived) -> None:
        self.accounting.message("in", event.message.ByteSize())
        node = self.attachments.node_of(event.session)
        if node is None:
            return
        was = node.state
        self.nodes.message_received(node, self.now_ns)
        if node.state is not was:
            self._cluster.inform(f"node {node.facts.name} is heard again")
            self.switch_cache.sources_changed()
        try:
            self._dispatch(node, event.message)
        except RecordError as error:
            self.reports.refusals.add("message", b"", str(error))
        self.reports.refusals.tell(node)

    def _dispatch(self, node: Node, message: rpc.FromAgent) -> None:
        kind = message.WhichOneof("message")
        handler = self._message_handlers.get(kind)
        if kind is None or handler is None:
            raise RecordError("a second Hello on one stream" if kind == "hello" else "an empty message")
        handler(node, getattr(message, kind))

    def _heartbeat_received(self, node: Node, heartbeat: rpc.Heartbeat) -> None:
        node.pool_used_bytes = heartbeat.pool_used_bytes
        node.sent_bytes = heartbeat.sent_bytes
        node.received_bytes = heartbeat.received_bytes
        node.disk_used_bytes = heartbeat.disk_used_bytes
        node.next_victims = parse.next_victims(heartbeat, self.reports.refusals)
        self._cluster.observer.heartbeat_received(node, heartbeat, self.now_ns)
        if self.options.rules.spill:
            self.last_copies.consider(node)

    def _paths_reported(self, node: Node, paths: rpc.Paths) -> None:
        if len(paths.nodes) > NODES_MAX:
            raise RecordError(f"paths to more than {NODES_MAX} nodes")
        for index in paths.nodes:
            self.reachability.told(node, NodeIndex(index), self.now_ns, reached=paths.reached)

    def _look_at_paths(self) -> None:
        for node in self.reachability.look(self.now_ns):
            self.publication.node_changed(node.index)
            if node.unreached:
                who = ", ".join(self.reachability.speakers(node)[:_SPEAKERS_NAMED])
                self._cluster.warn(
                    f"node {node.facts.name} cannot be reached on the data network, say {who}: nobody is told to read"
                    " from it until it can be: kvcast doctor cluster"
                )
                self.accounting.decisions["node_unreached"] += 1
            else:
                self._cluster.inform(f"node {node.facts.name} can be reached on the data network again")

    def _load_reported(self, node: Node, load: rpc.HolderLoad) -> None:
        node.load = HolderLoad(load.queued_bytes, load.readers)
        self.switch_cache.price.load_reported(node.index, node.load, self.now_ns)
        self.switch_cache.holder_load_changed()
        self.publication.loads_changed.add(node.index)

    def _task_result_received(self, node: Node, result: rpc.TaskResult) -> None:
        task = self.tasks.get(TaskId(result.task))
        if task is not None and task.node == node.index:
            self.tasks.finish(task.id)
            self._task_ended(task, result)

    def _task_progress_received(self, node: Node, progress: rpc.TaskProgress) -> None:
        task = self.tasks.get(TaskId(progress.task))
        if task is not None and task.node == node.index and isinstance(task.purpose, JobPart):
            self.operations.part_progressed(task, progress)

    def _node_leaving(self, node: Node, _: rpc.Leaving) -> None:
        self.directory.remove_node(node.index)
        self._stream_ended(node.session)
        self.attachments.close(node.session, "OK", "goodbye")

    def _stream_ended(self, session: int) -> None:
        self.attachments.sessions.pop(session, None)
        self._state_copies.stream_ended(session)
        self.publication.stream_ended(session)
        node = self.nodes.stream_ended(session, self.now_ns)
        if node is not None:
            self.claims.node_left(node.index)
            self._cluster.inform(f"node {node.facts.name} is gone: its stream ended")
            self._end_tasks(self.tasks.node_left(node.index))
            self._program_members()

    def _deposed(self, event: events.Deposed) -> None:
        self.leadership.deposed(event)
        self.operator_state.deposed()

    def _expulsions_changed(self, event: events.ExpulsionsChanged) -> None:
        self.operator_state.set_expelled(event.names, event.mark)
        self._expel()

    def _expel(self) -> None:
        names = self.operator_state.expelled
        if names == self.expelled:
            return
        for name in sorted(self.expelled - names):
            self._cluster.inform(f"node {name} may come back: it is not expelled any more")
        for name in sorted(names):
            node = self.nodes.named(name)
            if node is not None:
                self._put_out(node)
        self.attachments.expel(names)

    def _put_out(self, node: Node) -> None:
        self._cluster.warn(
            f"node {node.facts.name} is expelled: its copies are forgotten, its member and port are free"
        )
        session = node.session
        if session in self.attachments.sessions:
            self._stream_ended(session)
            self.attachments.close(session, "PERMISSION_DENIED", expelled_words(node.facts.name))
        self.nodes.put_out(node)
        self._forget_node(node.index)
        self._take_up_places()
        self._program_members()

    def _forget_node(self, index: NodeIndex) -> None:
        self.reachability.forget(index)
        self.directory.remove_node(index)
        self.switch_cache.price.node_forgotten(index)
        self.publication.node_forgotten(index)
        self.switch_cache.port_lost(index)

    # ------------------------------------------------------------------ work for agents

    def _end_tasks(self, tasks: Sequence[PendingTask]) -> None:
        """Tasks that no agent will answer."""
        for task in tasks:
            failed = rpc.TaskResult(task=task.id, status=rpc.TaskResult.FAILED, detail="no answer from the node")
            self._task_ended(task, failed)

    def _task_ended(self, task: PendingTask, result: rpc.TaskResult) -> None:
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
                self.last_copies.replication_ended(done)
            case PushTo():
                self.pushes.push_ended(task.node, result)
            case JobPart():
                self.operations.part_ended(task, result)
            case ProbeStep():
                self.examinations.step_ended(task.purpose, result)
            case Housekeeping(what=what):
                self.accounting.decisions[f"{what.replace(' ', '_')}_{'done' if done else 'failed'}"] += 1

    def _why(self, task: PendingTask, result: rpc.TaskResult) -> str:
        """What became of a task, for a person."""
        node = self.nodes.get(task.node)
        name = node.facts.name if node is not None else f"node {task.node}"
        return f"{name}: {result.detail or rpc.TaskResult.Status.Name(result.status).lower()}"

    def _give_out_tasks(self) -> None:
        if not self.leadership.leads:
            return
        for index, task_id in self.tasks.take_cancelled():
            self._cluster.send_to_node(index, rpc.ToAgent(cancel=rpc.CancelTask(task=task_id)))
        for task in self.tasks.take_ready(self.now_ns):
            node = self.nodes.get(task.node)
            may_know = self._cluster.visibility.may_know
            if node is None or not node.attached or not may_know(node, keys_of(task.message)):
                self.tasks.finish(task.id)
                self._end_tasks([task])
                continue
            if node.facts.follows and (keys := [ChunkKey(key) for key in keys_of(task.message)]):
                self.publication.look_up(node.session, keys)
            task.message.epoch = self.leadership.epoch
            self._cluster.send(node.session, rpc.ToAgent(task=task.message))

    # ------------------------------------------------------------------ operators

    def _operate(self, event: events.Requested) -> Any:
        answer = getattr(self.operations, event.verb)(event.request, event.mark)
        self._cluster.inform(f"{event.mark.by or 'an operator'}: {words_of(event.verb, event.request)}")
        return answer

    def _answering(self, work: Callable[[_Event], Any]) -> Callable[[_Event], None]:
        """A handler that gives an operator what `work` returns, or says why it cannot be."""

        def handler(event: _Event) -> None:
            if reason := self.leadership.refusal:
                self._cluster.emit(RequestRefused("UNAVAILABLE", reason))
                return
            try:
                self._cluster.emit(Answer(work(event)))
            except OperatorError as error:
                self._cluster.emit(RequestRefused(error.code, str(error)))

        return handler

    # ------------------------------------------------------------------ the switch

    def _switch_up(self, event: Up) -> None:
        segments_changed = self.link.up(event.facts)
        self.switch_cache.switch_up(event.facts)
        if segments_changed:
            self.attachments.close_all("ABORTED", "the size of segments changed: attach again")

    def _switch_down(self, event: Down) -> None:
        self.link.down()
        self._cluster.inform(f"the session with the switch ended: {event.reason}")

    def _node_sighted(self, event: Sighting) -> None:
        if self.places.node_sighted(event):
            self._take_up_places()
            self._program_members()

    def _heat_reported(self, event: HeatReport) -> None:
        self.accounting.decisions["heat_reports"] += 1
        self.switch_cache.heat_reported(event.key, event.members.bit_count())
        self.link.members_used(event.members)
        self._cluster.observer.wanted_together(event.key, frozenset(members_of(event.members)), self.now_ns)

    def _segment_lost(self, event: LostReport) -> None:
        self.accounting.decisions["segments_lost"] += 1
        self.switch_cache.segment_lost(event.key)

    def _switch_read(self, event: events.SwitchRead) -> None:
        self.accounting.switch_reads += 1
        actual = event.contents
        if actual is None:
            self.programmer.read_failed()
            if self.programmer.missed_reads == 1:
                self._cluster.inform("the switch is degraded: it did not answer when it was read back")
            return
        if self.programmer.missed_reads:
            self._cluster.inform("the switch answers again")
        restarts_count = self.link.restarts_count
        trusted = self.link.contents_read(actual)
        if trusted is None:
            return
        if self.link.restarts_count != restarts_count:
            self.accounting.decisions["switch_restarted"] += 1
            self._cluster.warn(f"the switch lost its state: programming it again, epoch {self.link.epoch}")
        self.switch_cache.switch_read(actual, trusted)
        self._take_up_places()
        self._program_members()

    def _switch_written(self, event: events.SwitchWritten) -> None:
        if event.refused is None:
            self.programmer.write_failed()
            return
        problems = self.programmer.write_done(event.refused, self.now_ns)
        self.accounting.decisions["updates_refused"] += len(problems)
        self.switch_cache.updates_refused(problems)

    def _take_up_places(self) -> None:
        """Tell everybody concerned where nodes were found to be."""
        for index in self.nodes.take_displaced():
            self._forget_node(index)
        self.places.take_up_changes()

    def _program_members(self) -> None:
        if self.options.with_switch:
            self.link.members_changed()

    # ------------------------------------------------------------------ time

    def _look(self) -> None:
        """Do all that is due: after each event, and often enough in between for the times that are configured."""
        self.directory.advance()
        if self.now_ns - self._swept_ns >= _SWEEP_NS:
            self._swept_ns = self.now_ns
            self._sweep()
        self.publication.send_snapshots()
        self.examinations.advance()
        self.ways.look()
        self.leadership.look(self.attachments.sessions)
        if self.options.with_switch and self.leadership.leads:
            self._advance_switch()
        self.reports.give_out_pins()
        self._state_copies.send()
        self.pushes.flush()
        self.warmups.give_out()
        self._give_out_tasks()
        is_behind = self.directory.is_behind or self.publication.is_behind
        self._look_ns = self.now_ns + (_NEXT_SLICE_NS if is_behind else self.options.look_ns)

    def _sweep(self) -> None:
        """Handle what the passing of time alone brings about; runs now and then, not at every event."""
        now_ns = self.now_ns
        names = {node.index: node.facts.name for node in self.nodes}
        expiry = self.nodes.expire(now_ns)
        self.claims.expire(now_ns)
        self._silent.extend(expiry.suspects)
        # One at a time: all that a node claims goes in 20 ms.
        node = self.nodes.get(self._silent.popleft()) if self._silent else None
        if node is not None and node.state is not NodeState.ATTACHED:
            self.claims.node_left(node.index)
        for index in expiry.suspects:
            self._cluster.inform(f"node {names[index]} is suspect: it has not been heard for a while")
        for index in expiry.copies:
            self.directory.remove_node(index)
        for index in expiry.nodes:
            self._cluster.inform(f"node {names[index]} is forgotten: its member and port are free")
            self._forget_node(index)
        self._look_at_paths()
        self.places.look_for_unseen()
        self._take_up_places()
        if expiry.nodes or expiry.reservations:
            self._program_members()
        self._end_tasks(self.tasks.expire(now_ns))
        if self.attachments.tokens_are_due:
            self.attachments.send_tokens()
            self._state_copies.renew()

    def _advance_switch(self) -> None:
        self.switch_cache.advance()
        self.link.change_salt()
        request = self.programmer.next(self.now_ns)
        if isinstance(request, ReadSwitch):
            self._cluster.emit(ReadTheSwitch())
        elif isinstance(request, WriteSwitch):
            self.accounting.switch_updates += len(request.updates)
            self._cluster.emit(WriteTheSwitch(request.updates))
        self.places.tell_members()
        if self.link.check_present():
            self._cluster.inform(f"the switch is programmed: epoch {self.link.epoch}")
            self.places.switch_programmed()
