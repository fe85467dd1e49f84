"""`kvcast-controller`: clock, streams, the switch's session and exit around `Core`. Owns nothing else.

Everything runs in one event loop, so the core needs no locks: `handle` gives it each event, carries out the effects,
and sets the timer for the time that the core names.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import replace
from typing import Any

import grpc

from controlplane.config import Config, SwitchConfig, load
from controlplane.core import views
from controlplane.core.core import Core
from controlplane.core.effects import (
    Answer,
    CloseSession,
    Effect,
    Inform,
    JobProgress,
    ReadTheSwitch,
    RequestRefused,
    SendTo,
    Warn,
    WriteTheSwitch,
)
from controlplane.core.election import Hold
from controlplane.core.events import (
    Deposed,
    Elected,
    ElectionEvent,
    Event,
    ExpulsionsChanged,
    HelloReceived,
    MessageReceived,
    OperatorEvent,
    StateFound,
    StreamEnded,
    SwitchRead,
    SwitchWritten,
    TimerFired,
)
from controlplane.core.examination.observations import Surroundings
from controlplane.core.ids import JobId, Mark
from controlplane.core.leadership import LAPSED_WORDS
from controlplane.core.limits import NODE_NAME_BYTES_MAX
from controlplane.core.live import Tables
from controlplane.core.live.live import Live
from controlplane.core.operations import OperatorError
from controlplane.core.options import CoreOptions
from controlplane.core.read_access import ExpulsionError, checked
from controlplane.core.switch.entries import SwitchContents
from controlplane.core.switch.target import (
    Down,
    Standby,
    SwitchCounters,
    SwitchEvent,
    SwitchTarget,
    SwitchUnavailableError,
    Up,
)
from controlplane.election.choice import SwitchElection, election_of, state_place_of
from controlplane.election.lease_election import LeaseElection
from controlplane.index_service import index_answer, index_question
from controlplane.kept_state import ExpelledFile, KeptState
from controlplane.metrics import metrics_registry
from controlplane.p4runtime.p4runtime_target import P4RuntimeTarget
from controlplane.page import live_page
from controlplane.rpc.event_feed import EventFeed
from controlplane.rpc.live_feed import LiveFeed
from controlplane.rpc.peers import Peer
from controlplane.rpc.server import serve
from controlplane.rpc.streams import AgentStream, Closing
from kvchunk.ids import ChunkKey
from kvdaemon.checks import host_port
from kvdaemon.errors import CannotRunError
from kvdaemon.health import Health, health_pages
from kvdaemon.http import HttpServer, Question, json_service, metrics_page
from kvdaemon.identity import Role
from kvdaemon.log import change_level_by_signals, log_to_stderr
from kvdaemon.notify import ready
from kvdaemon.process import run_daemon
from kvdaemon.seals import Seals
from kvdaemon.tls import Certificates, expired_words
from kvpolicy.tiers.cost_question import QuestionError, TooManyQuestionsError, answer_to, question_of
from kvproto import __version__
from kvproto.rpc import control_pb2 as rpc
from p4switch.doorkeeper import LOOK_S, Doorkeeper

NAME = "kvcast-controller"
LOG = logging.getLogger(__name__)

COUNTERS_S = 2.0
CERTIFICATES_S = 10.0
EXPELLED_S = 1.0
READ_AGAIN_S = 0.25
"""After a read that failed."""
_STOP_GRACE_S = 0.5
_MEANS = {
    "connecting": "it is not connected",
    "degraded": "it did not answer when it was read back",
    "programming": "it is not programmed yet",
}
"""States of the switch in which the controller is not ready."""


class Controller:
    """The daemon. `start`, then `stop`; in between everything happens by itself."""

    def __init__(self, config: Config, target: SwitchTarget | None = None) -> None:
        """`target` stands in for the one that the configuration names (tests). Raises TlsError."""
        self._config = config
        self._target = target or _target(config.switch)
        self._election = election_of(config.election, with_switch=self._target is not None)
        self._certificates = Certificates(config.tls, Role.CONTROLLER) if config.tls is not None else None
        seals = Seals(self._certificates, Role.CONTROLLER) if self._certificates is not None else None
        self.core = Core(_options(config, seals, with_switch=self._target is not None))
        self._news = Live(self.core)
        self.live = LiveFeed(self._look, self.core.options.incarnation)
        self.grpc_address = ""
        self.metrics_address = ""
        self._expelled = ExpelledFile(config.expelled) if config.expelled is not None else None
        self._streams: dict[int, AgentStream] = {}
        self._next_session = 1
        self._jobs: dict[JobId, asyncio.Queue[tuple[rpc.Progress, bool]]] = {}
        self._background: set[asyncio.Task[None]] = set()
        self._counters: SwitchCounters | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._server: grpc.aio.Server | None = None
        registry = metrics_registry(self.core, lambda: self._counters, self._certificate_ends)
        self._http = HttpServer(
            {
                "/": live_page(),
                "/metrics": metrics_page(registry, "controller"),
                **health_pages(self.health),
            },
            streams={"/live": self.live.events, "/v1/events": EventFeed(self.core, self.standby_words).events},
            services={
                path: json_service(answer, QuestionError, TooManyQuestionsError)
                for path, answer in (("/v1/cost", self._cost), ("/query", self._query))
            },
            private=_private_pages(config),
        )
        self._stopping = False
        self._complaint = ""
        self._changed = asyncio.Event()
        self._kept = KeptState(
            config.state, state_place_of(config.election), self.core.operator_state.message, self._hold
        )
        self._led_epoch: int | None = None
        """Of the leadership for which it was read what operators had set; None: for none yet."""
        self._switch_run: asyncio.Task[None] | None = None
        self._switch_epoch: int | None = None
        """Under which the session with the switch runs; None: under the configured id, or there is none."""
        self._switch_session = 0
        """Counts starts and ends of sessions with the switch: a request of one session is not answered in another."""
        self.failed = asyncio.Event()
        """Set when a part ended that never should: the daemon then stops with status 1."""

    # -- life

    async def start(self) -> None:
        """Bind and begin. Raises CannotRunError."""
        if self._expelled is not None:
            try:
                self._expelled.read()
            except ExpulsionError as error:
                raise CannotRunError(f"expelled: {error}") from error
            self._spawn(self._watch_expelled(self._expelled))
        if (filed := self._kept.filed()) is not None:
            self.handle(StateFound(filed, f"file {self._config.state}"))
        self._spawn(self._kept.run())
        self._spawn(self._election.run(self._election_event))
        await asyncio.sleep(0)  # from its first word on agents and operators may come
        self._server, self.grpc_address, door = await serve(self._config.listen, self, self, self._certificates)
        self._spawn(_watch_door(door))
        try:
            await self._start_http()
        except CannotRunError:
            await self.stop()
            raise
        self.handle(TimerFired())
        if self._certificates is not None:
            self._spawn(self._watch_certificates(self._certificates))
        self._spawn(self.live.run())
        if self._target is not None:
            if isinstance(self._election, SwitchElection):
                self._switch_run = self._spawn(self._target.run(self._switch_event))
            self._spawn(self._poll_counters())

    async def stop(self) -> None:
        """End everything; agents notice at once and go on with what they know."""
        self._stopping = True
        if self._timer is not None:
            self._timer.cancel()
        for task in list(self._background):
            task.cancel()
        await asyncio.gather(*self._background, return_exceptions=True)
        await self._kept.close()
        await self._election.resign()
        for stream in self._streams.values():
            stream.close(Closing("UNAVAILABLE", "the controller stops"))
        if self._server is not None:
            await self._server.stop(_STOP_GRACE_S)
        await self._http.close()

    # -- desk of agents and operators

    def standby_words(self) -> str:
        """Why agents and operators are refused now; empty if they are not."""
        return self.core.leadership.standby_words

    def leader_epoch(self) -> int:
        """Of this controller's leadership; 0: it does not lead."""
        return self.core.leadership.epoch if self._leads() else 0

    def _leads(self) -> bool:
        until_ns = self.core.leadership.until_ns
        return not self.standby_words() and (until_ns is None or self.now_ns() < until_ns)

    def open_stream(self, peer: Peer) -> AgentStream:
        """A stream of an agent begins."""
        stream = AgentStream(self._next_session, peer)
        self._next_session += 1
        self._streams[stream.session] = stream
        return stream

    def take(self, stream: AgentStream, message: rpc.FromAgent) -> None:
        """A message came on an agent's stream; the first one must be Hello."""
        if stream.ready:
            self.handle(MessageReceived(stream.session, message))
        elif message.WhichOneof("message") == "hello":
            self._take_hello(stream, message.hello)
        else:
            stream.close(Closing("INVALID_ARGUMENT", "the first message of a stream is Hello"))

    def _take_hello(self, stream: AgentStream, hello: rpc.Hello) -> None:
        if self._certificates is not None:
            domain = self._certificates.trust_domain
            if not stream.peer.has(Role.AGENT, domain, hello.node):
                reason = f"{stream.peer} does not speak for node {hello.node[:NODE_NAME_BYTES_MAX]!r}"
                LOG.warning("%s: refused", reason)
                stream.close(Closing("PERMISSION_DENIED", reason))
                return
        stream.ready = True
        self.handle(HelloReceived(stream.session, hello, stream.peer.speaker(hello.node)))

    def close_stream(self, stream: AgentStream) -> None:
        """An agent's stream ended."""
        self._streams.pop(stream.session, None)
        if not self._stopping:
            self.handle(StreamEnded(stream.session))

    def now_ns(self) -> int:
        """The monotonic clock, in nanoseconds."""
        return time.monotonic_ns()

    def watch(self, job: JobId) -> asyncio.Queue[tuple[rpc.Progress, bool]]:
        """Progress of a job, and whether it is the last."""
        return self._jobs.setdefault(job, asyncio.Queue())

    def unwatch(self, job: JobId) -> None:
        """Nobody wants to know of the job any more."""
        self._jobs.pop(job, None)

    def status(self) -> rpc.StatusReply:
        """Nodes, switch and counts."""
        status = views.status(self.core, self._config.switch.target, self._switch_address, self.now_ns())
        status.security = self._config.security
        return status

    def expel(self, request: rpc.ExpelRequest, mark: Mark) -> rpc.ExpelReply:
        """Put a node out, or take it in again. Raises ExpulsionError, OperatorError."""
        core = self.core
        if request.node and not self._leads():
            raise OperatorError("UNAVAILABLE", core.leadership.refusal or LAPSED_WORDS)
        node = core.nodes.named(request.node)
        attached = node is not None and node.attached
        if request.node:
            before = core.expelled
            names = before - {request.node} if request.cancel else checked(before | {request.node})
            # First what counts at once, whatever becomes of the file.
            self.handle(ExpulsionsChanged(names, mark))
            if names != before:
                LOG.info("%s: expel %s%s", mark.by, request.node, " no longer" if request.cancel else "")
            if self._expelled is not None:
                self._expelled.write(names)
        return rpc.ExpelReply(
            expelled=sorted(core.expelled),
            lasting=self._expelled is not None or self._kept.lasts,
            was_attached=attached,
        )

    def surroundings(self) -> Surroundings:
        """What an examination wants to know of this daemon."""
        return Surroundings(
            time.time_ns(),
            __version__,
            self.grpc_address,
            self._switch_address,
            self._config.security,
            self._certificates.ends_s() if self._certificates is not None else 0.0,
        )

    async def wait_for_change(self) -> None:
        """Return when the core has been called again."""
        await self._changed.wait()

    def _look(self) -> tuple[Tables, rpc.StatusReply]:
        """How things are now, for those who watch."""
        now_ns = self.now_ns()
        if self._counters is not None:
            self._news.switch_drops = self._counters.drops
        status = views.summary(self.core, self._config.switch.target, self._switch_address, now_ns)
        status.security = self._config.security
        return self._news.tables(now_ns), status

    @property
    def _switch_address(self) -> str:
        return self._target.address if self._target is not None else ""

    # -- the core's loop

    def ask(self, request: OperatorEvent) -> Any:
        """What the core answers to an operator. Raises OperatorError."""
        if self.failed.is_set():
            raise OperatorError("UNAVAILABLE", "the controller stops: see its log")
        for effect in self.handle(request):
            match effect:
                case Answer(reply=reply):
                    return reply
                case RequestRefused(code=code, reason=reason):
                    raise OperatorError(code, reason)
        raise AssertionError(f"the core does not answer {request}")

    def handle(self, event: Event) -> Sequence[Effect]:
        """Give the core an event, and carry out what follows from it."""
        if self.failed.is_set():
            return []
        now_ns = self.now_ns()
        late_ns = now_ns - self.core.next_timeout_ns()
        if self.core.started_ns is not None and late_ns > self.core.options.graces.heartbeat_ns:
            LOG.warning("the controller stood still for %.1f s: no node is suspect for that", late_ns / 1e9)
            self.core.stood_still(late_ns)
        effects = self.core.handle(event, now_ns)
        for effect in effects:
            self._carry_out(effect)
        self._kept.look(self.core.operator_state.revision)
        self._changed.set()
        self._changed = asyncio.Event()
        if not self._stopping:
            self._set_timer()
        return effects

    def _set_timer(self) -> None:
        due_s = self.core.next_timeout_ns() / 1e9
        if self._timer is None or self._timer.when() > due_s:
            if self._timer is not None:
                self._timer.cancel()
            self._timer = asyncio.get_running_loop().call_at(due_s, self._timer_fired)

    def _timer_fired(self) -> None:
        self._timer = None
        self._spawn(self._look_at_time())

    async def _look_at_time(self) -> None:
        self.handle(TimerFired())

    def _carry_out(self, effect: Effect) -> None:
        match effect:
            case SendTo(session=session, message=message):
                if session in self._streams:
                    self._streams[session].send(message)
            case CloseSession(session=session, code=code, reason=reason):
                if session in self._streams:
                    LOG.debug("session %d ends: %s", session, reason)
                    self._streams[session].close(Closing(code, reason))
            case ReadTheSwitch():
                self._spawn(self._read_switch())
            case WriteTheSwitch():
                self._spawn(self._write_switch(effect))
            case Inform(text=text):
                LOG.info("%s", text)
            case Warn(text=text):
                LOG.warning("%s", text)
            case JobProgress(job=job, progress=progress, last=last):
                self.watch(job).put_nowait((progress, last))

    # -- the switch

    def _switch_event(self, event: SwitchEvent) -> None:
        if isinstance(event, Up | Down | Standby):
            self._switch_session += 1
        if isinstance(self._election, SwitchElection):
            self._election.switch_event(event)
        elif isinstance(event, Standby):
            self._complain("another controller is the switch's primary: it has a higher election id, and no election")
        if not isinstance(event, Standby):
            self.handle(event)

    def _election_event(self, event: ElectionEvent) -> None:
        self.handle(event)
        if isinstance(event, Elected) and event.epoch != self._led_epoch:
            self._led_epoch = event.epoch
            self._spawn(self._restore(event.epoch))
        follows = self._target is not None and not isinstance(self._election, SwitchElection)
        match event:
            case Elected(epoch=epoch) if follows and epoch != self._switch_epoch:
                # Writes carry the epoch: the switch takes those of the latest leader only.
                self._end_switch_session()
                self._switch_epoch = epoch
                self._switch_run = self._spawn(self._run_switch(epoch))
            case Deposed():
                if follows:
                    self._end_switch_session()
                for stream in self._streams.values():
                    stream.close(Closing("UNAVAILABLE", self.standby_words()))

    async def _restore(self, epoch: int) -> None:
        """This controller has come to lead: it takes up what operators had set, and what the file of expelled nodes
        has besides."""
        state, place = await self._kept.restored(epoch)
        if state is not None:
            self.handle(StateFound(state, place))
        if self._expelled is not None:
            self._expel_as_filed(self.core.expelled | self._expelled.names)

    def _hold(self) -> Hold | None:
        return self._election.hold if isinstance(self._election, LeaseElection) else None

    async def _run_switch(self, epoch: int) -> None:
        if self._target is None:
            raise AssertionError("no switch to program")
        await self._target.run(self._switch_event, epoch)

    def _end_switch_session(self) -> None:
        if self._switch_run is not None:
            self._switch_run.cancel()
        self._switch_run, self._switch_epoch = None, None

    async def _read_switch(self) -> None:
        if self._target is None:
            raise AssertionError("the core reads no switch where there is none")
        session = self._switch_session
        try:
            found: SwitchContents | None = await self._target.read()
        except SwitchUnavailableError as error:
            self._complain(f"cannot read back: {error}")
            await asyncio.sleep(READ_AGAIN_S)
            found = None
        if session != self._switch_session:
            return  # The core has forgotten that it asked.
        self.handle(SwitchRead(found))

    async def _write_switch(self, write: WriteTheSwitch) -> None:
        if self._target is None:
            raise AssertionError("the core writes no switch where there is none")
        session = self._switch_session
        refused: dict[int, str] | None = None
        try:
            refused = await self._target.write(write.updates)
        except SwitchUnavailableError as error:
            self._complain(f"cannot write: {error}")
        for index, reason in (refused or {}).items():
            update = write.updates[index]
            LOG.warning("the switch refused to %s %s: %s", update.operation.value, update.entry, reason)
        if session == self._switch_session:
            self.handle(SwitchWritten(refused))

    def _complain(self, problem: str) -> None:
        """Warn once about what goes on."""
        if problem != self._complaint:
            LOG.warning("%s", problem)
            self._complaint = problem

    async def _poll_counters(self) -> None:
        if self._target is None:
            raise AssertionError("no switch to poll")
        while True:
            await asyncio.sleep(COUNTERS_S)
            try:
                self._counters = await self._target.counters()
            except SwitchUnavailableError as error:
                LOG.debug("no counters: %s", error)

    # -- inside

    def _certificate_ends(self) -> float | None:
        return None if self._certificates is None else self._certificates.ends_s()

    async def _watch_certificates(self, certificates: Certificates) -> None:
        """Have replacements in use, and in the metrics, before anybody connects."""
        while True:
            await asyncio.sleep(CERTIFICATES_S)
            certificates.look()

    async def _watch_expelled(self, file: ExpelledFile) -> None:
        """Follow what operators write; a malformed list is logged, and the list before stays."""
        while True:
            await asyncio.sleep(EXPELLED_S)
            if file.changed():
                try:
                    before = file.names
                    found = file.read()
                    # What somebody wrote into it or took out of it; what `kvcast expel` said elsewhere stays.
                    self._expel_as_filed((self.core.expelled - (before - found)) | found)
                except ExpulsionError as error:
                    LOG.warning("expelled: %s; the list of expelled nodes stays as it is", error)

    def _expel_as_filed(self, names: frozenset[str]) -> None:
        if self._expelled is not None:
            self.handle(ExpulsionsChanged(names, Mark(f"file {self._expelled.path}", time.time_ns() // 1_000_000)))

    def _spawn(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._background.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._background.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            LOG.critical("a part of the controller failed", exc_info=error)
            self.failed.set()

    async def _start_http(self) -> None:
        if self._config.metrics:
            host, port = host_port(self._config.metrics)
            _, port = await self._http.listen(host, port, 'change metrics, or set it to "" for none')
            self.metrics_address = f"{host}:{port}"

    def _cost(self, asked: Question) -> Mapping[str, object]:
        """For routers: what it would take each node to have the chunks of a prefix."""
        if reason := self.standby_words():
            raise QuestionError(reason)
        question = question_of(asked.query, asked.body)
        quotes = self.core.quotes.of(question, self.now_ns())
        return {**answer_to(question, quotes), **self._elsewhere(question.keys)}

    def _elsewhere(self, keys: Sequence[ChunkKey]) -> Mapping[str, object]:
        """Whom to ask of a prefix that belongs to another cell, as part of an answer."""
        cell = self.core.quotes.elsewhere(keys)
        return {} if cell is None else {"elsewhere": {"cell": cell.name, "controllers": list(cell.controllers)}}

    def _query(self, asked: Question) -> Mapping[str, object]:
        """For routers that ask indexers: how much of a prompt each node has."""
        if reason := self.standby_words():
            raise QuestionError(reason)
        question = index_question(asked.body, self._config.models)
        answer = index_answer(question, self.core.quotes.matches(question.keys, self.now_ns()))
        return {**answer, **self._elsewhere(question.keys)}

    def health(self) -> Health:
        """Ready: this controller leads, and the switch that it is configured for answers and is programmed."""
        core = self.core
        state = core.link.state
        missing = []
        if self.failed.is_set():
            missing.append("a part of the controller failed: see its log")
        if self._certificates is not None and (words := expired_words(self._certificates.current.ends)):
            missing.append(words)
        refusal = core.leadership.refusal
        if refusal:
            missing.append(refusal)
        elif state not in ("absent", "ready"):
            missing.append(f"switch {self._target.address if self._target else ''}: {_MEANS[state]}")
        status = "standby" if core.leadership.standby_words else "degraded" if missing else "ok"
        facts = {
            "status": status,
            "nodes": sum(node.attached for node in core.nodes),
            "switch": "none" if state == "absent" else state,
            "chunks": len(core.directory),
            "security": self._config.security,
            "version": __version__,
        }
        return Health(missing, facts)


async def _watch_door(door: Doorkeeper) -> None:
    ended = 0
    while True:
        await asyncio.sleep(LOOK_S)
        before, ended = ended, await asyncio.to_thread(door.look)
        if ended and not before:
            LOG.warning("%d silent connections to the control channel were too many and are ended", ended)


def _private_pages(config: Config) -> Mapping[str, str]:
    """Pages that name chunks of all tenants, or say where chunks are."""
    if config.insecure:
        return {}
    pages = dict.fromkeys(("/", "/live"), "open it through a tunnel (ssh -L), or use kvcast top")
    for_routers = dict.fromkeys(("/v1/cost", "/v1/events", "/query"), "set remote_cost: true")
    return pages if config.remote_cost else {**pages, **for_routers}


def _target(switch: SwitchConfig) -> SwitchTarget | None:
    return None if switch.reach is None or switch.codec is None else P4RuntimeTarget(switch.reach, switch.codec)


def _options(config: Config, seals: Seals | None, *, with_switch: bool) -> CoreOptions:
    incarnation, secret = time.time_ns(), secrets.token_bytes(32)
    return replace(config.core, incarnation=incarnation, secret=secret, seals=seals, with_switch=with_switch)


async def _run(config: Config, stop: asyncio.Event) -> None:
    log_to_stderr(config.log_level, form=config.log_format)
    change_level_by_signals(asyncio.get_running_loop(), config.log_level)
    # finsy logs every broken connection at length; the target says the same in one line.
    logging.getLogger("finsy").setLevel(logging.DEBUG if config.log_level == "debug" else logging.CRITICAL + 1)
    controller = Controller(config)
    if config.security == "insecure":
        LOG.warning("insecure: true: any process that reaches %s or the switch can do everything", config.listen)
    await controller.start()
    try:
        facts = {"grpc": controller.grpc_address, "metrics": controller.metrics_address}
        with ready(NAME, facts, config.ready_file):
            waits = [asyncio.create_task(stop.wait()), asyncio.create_task(controller.failed.wait())]
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            for wait in waits:
                wait.cancel()
    finally:
        await controller.stop()
    if controller.failed.is_set():
        raise CannotRunError("stopped by a failure of its own: see the log")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the controller; returns the exit status (see `run_daemon`)."""
    return run_daemon(NAME, "The control plane of kvcast.", load, _run, argv)
