"""`kvcast-controller`: clock, streams, the switch's session and exit around `Core`. Owns nothing else.

Everything runs in one event loop, so the core needs no locks: each event is one call into the core, followed by
`settle`, which carries out what the core wants done.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Coroutine, Mapping, Sequence

import grpc

from controlplane.config import Config, SwitchConfig, load
from controlplane.core import Core, CoreOptions, FabricParameters
from controlplane.effects import (
    CloseSession,
    Effect,
    JobId,
    JobProgress,
    ReadTheSwitch,
    SendTo,
    SendToAll,
    Warn,
    WriteTheSwitch,
)
from controlplane.limits import GRPC_MESSAGE_BYTES_MAX, PUBLISH_S
from controlplane.metrics import metrics_registry
from controlplane.nodes import ASCENDING, Graces
from controlplane.rpc.coordinator import Coordinator
from controlplane.rpc.operator import Operator
from controlplane.rpc.streams import AgentStream, Closing
from controlplane.switch.bitmap_groups import MEMBER_ORDER
from controlplane.switch.entries import SwitchContents
from controlplane.switch.p4runtime import P4RuntimeTarget
from controlplane.switch.target import (
    Down,
    Standby,
    SwitchCounters,
    SwitchEvent,
    SwitchTarget,
    SwitchUnavailableError,
    Up,
)
from kvproto.daemon.checks import host_port
from kvproto.daemon.errors import CannotRunError
from kvproto.daemon.http import HttpServer, json_page, metrics_page
from kvproto.daemon.process import log_to_stderr, run_daemon
from kvproto.daemon.readiness import ready
from kvproto.rpc import control_pb2 as rpc
from kvproto.rpc import control_pb2_grpc

NAME = "kvcast-controller"
LOG = logging.getLogger("controlplane.daemon")  # also where the module is run as __main__

TICK_S = 0.05
COUNTERS_S = 2.0
READ_AGAIN_S = 0.25
"""After a read that failed."""
_STOP_GRACE_S = 0.5


class Controller:
    """The daemon. `start`, then `stop`; in between everything happens by itself."""

    def __init__(self, config: Config, target: SwitchTarget | None = None) -> None:
        """`target` stands in for the one that the configuration names (tests)."""
        self._config = config
        self._target = target or _target(config.switch)
        self.core = Core(_options(config, with_switch=self._target is not None))
        self.grpc_address = ""
        self.metrics_address = ""
        self._streams: dict[int, AgentStream] = {}
        self._next_session = 1
        self._jobs: dict[JobId, asyncio.Queue[tuple[rpc.Progress, bool]]] = {}
        self._background: set[asyncio.Task[None]] = set()
        self._counters: SwitchCounters | None = None
        self._publish_due: asyncio.TimerHandle | None = None
        self._server: grpc.aio.Server | None = None
        self._http = HttpServer(
            {
                "/metrics": metrics_page(metrics_registry(self.core, lambda: self._counters)),
                "/healthz": json_page(self._health),
            }
        )
        self._stopping = False
        self._complaint = ""
        self._happened = asyncio.Event()
        self._switch_session = 0
        """Counts beginnings and ends of sessions with the switch: what was asked in one is not answered in another."""
        self.failed = asyncio.Event()
        """Set when a part ended that never should: the daemon then stops with status 1."""

    # -- life

    async def start(self) -> None:
        """Bind and begin. Raises CannotRunError."""
        await self._start_grpc()
        try:
            await self._start_http()
        except CannotRunError:
            await self.stop()
            raise
        self._spawn(self._tick())
        if self._target is not None:
            self._spawn(self._target.run(self._switch_event))
            self._spawn(self._poll_counters())

    async def stop(self) -> None:
        """End everything; agents notice at once and go on with what they know."""
        self._stopping = True
        if self._publish_due is not None:
            self._publish_due.cancel()
        for task in list(self._background):
            task.cancel()
        await asyncio.gather(*self._background, return_exceptions=True)
        for stream in self._streams.values():
            stream.close(Closing("UNAVAILABLE", "the controller stops"))
        if self._server is not None:
            await self._server.stop(_STOP_GRACE_S)
        await self._http.close()

    # -- desk of agents and operators

    def standby_words(self) -> str:
        return "this controller is on standby: another one is the switch's primary" if self.core.switch_standby else ""

    def open_stream(self) -> AgentStream:
        stream = AgentStream(self._next_session)
        self._next_session += 1
        self._streams[stream.session] = stream
        return stream

    def take(self, stream: AgentStream, message: rpc.FromAgent) -> None:
        self.core.accounting.message("in", message.ByteSize())
        if stream.ready:
            self.core.message(stream.session, message, self.now_ns())
        elif message.WhichOneof("message") == "hello":
            stream.ready = True
            LOG.info("node %s attaches (session %d)", message.hello.node, stream.session)
            self.core.hello(stream.session, message.hello, self.now_ns())
        else:
            stream.close(Closing("INVALID_ARGUMENT", "the first message of a stream is Hello"))
        self.settle()

    def close_stream(self, stream: AgentStream) -> None:
        self._streams.pop(stream.session, None)
        if not self._stopping:
            self.core.closed(stream.session, self.now_ns())
            self.settle()

    def count_sent(self, message: rpc.ToAgent) -> None:
        self.core.accounting.message("out", message.ByteSize())

    def now_ns(self) -> int:
        return time.monotonic_ns()

    def watch(self, job: JobId) -> asyncio.Queue[tuple[rpc.Progress, bool]]:
        return self._jobs.setdefault(job, asyncio.Queue())

    def unwatch(self, job: JobId) -> None:
        self._jobs.pop(job, None)

    def switch_words(self) -> tuple[str, str]:
        return self._config.switch.target, self._target.address if self._target else ""

    async def something_happened(self) -> None:
        await self._happened.wait()

    # -- the core's wishes

    def settle(self) -> None:
        """Let the core do what is due and carry out its effects."""
        if self.failed.is_set():
            return
        self.core.advance(self.now_ns())
        for effect in self.core.take_effects():
            self._carry_out(effect)
        self._happened.set()
        self._happened = asyncio.Event()
        if self._publish_due is None and not self._stopping:
            self._publish_due = asyncio.get_running_loop().call_later(PUBLISH_S, self._publish)

    def _publish(self) -> None:
        self._publish_due = None
        self.core.publish()
        for effect in self.core.take_effects():
            self._carry_out(effect)

    def _carry_out(self, effect: Effect) -> None:
        match effect:
            case SendTo(session=session, message=message):
                if session in self._streams:
                    self._streams[session].send(message)
            case SendToAll(message=message):
                for stream in self._streams.values():
                    if stream.ready:
                        stream.send(message)
            case CloseSession(session=session, code=code, reason=reason):
                if session in self._streams:
                    LOG.info("session %d ends: %s", session, reason)
                    self._streams[session].close(Closing(code, reason))
            case ReadTheSwitch():
                self._spawn(self._read_switch())
            case WriteTheSwitch():
                self._spawn(self._write_switch(effect))
            case Warn(text=text):
                LOG.warning("%s", text)
            case JobProgress(job=job, progress=progress, last=last):
                if job in self._jobs:
                    self._jobs[job].put_nowait((progress, last))

    # -- the switch

    def _switch_event(self, event: SwitchEvent) -> None:
        if isinstance(event, Up | Down | Standby):
            self._switch_session += 1
        self.core.switch_event(event, self.now_ns())
        if self.core.switch_standby:
            for stream in self._streams.values():
                stream.close(Closing("UNAVAILABLE", self.standby_words()))
        self.settle()

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
        if found is None:
            self.core.switch_read(None, self.now_ns())
        else:
            present, epoch = self.core.switch_present, self.core.epoch
            self.core.switch_read(found, self.now_ns())
            if present and epoch != self.core.epoch:
                LOG.warning("the switch lost its state: programming it again, epoch %d", self.core.epoch)
        self.settle()

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
            self.core.switch_written(refused, self.now_ns())
            self.settle()

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

    async def _tick(self) -> None:
        while True:
            self.settle()
            await asyncio.sleep(TICK_S)

    def _spawn(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(work)
        self._background.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._background.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            LOG.critical("a part of the controller failed", exc_info=error)
            self.failed.set()

    async def _start_grpc(self) -> None:
        server = grpc.aio.server(
            options=[
                # Two controllers on one port would each get some of the agents.
                ("grpc.so_reuseport", 0),
                ("grpc.max_receive_message_length", GRPC_MESSAGE_BYTES_MAX),
                ("grpc.max_send_message_length", GRPC_MESSAGE_BYTES_MAX),
                ("grpc.keepalive_time_ms", 10_000),
                ("grpc.keepalive_timeout_ms", 5_000),
                ("grpc.keepalive_permit_without_calls", 1),
                ("grpc.http2.min_ping_interval_without_data_ms", 1_000),
            ]
        )
        control_pb2_grpc.add_CoordinatorServicer_to_server(Coordinator(self), server)
        control_pb2_grpc.add_OperatorServicer_to_server(Operator(self), server)
        try:
            port = server.add_insecure_port(self._config.listen)
        except RuntimeError:
            port = 0
        if port == 0:
            raise CannotRunError(
                f"cannot listen on {self._config.listen}: is another controller running, is it our address?"
            )
        await server.start()
        self._server = server
        self.grpc_address = f"{self._config.listen.rpartition(':')[0]}:{port}"

    async def _start_http(self) -> None:
        if self._config.metrics:
            host, port = host_port(self._config.metrics)
            _, port = await self._http.listen(host, port, 'change metrics, or set it to "" for none')
            self.metrics_address = f"{host}:{port}"

    def _health(self) -> Mapping[str, object]:
        core = self.core
        return {
            "status": "standby" if core.switch_standby else "ok",
            "nodes": sum(node.attached for node in core.nodes),
            "switch": self._config.switch.target if not core.switch_present else "ready",
            "chunks": len(core.directory),
        }


def _target(switch: SwitchConfig) -> SwitchTarget | None:
    return None if switch.reach is None or switch.codec is None else P4RuntimeTarget(switch.reach, switch.codec)


def _options(config: Config, with_switch: bool) -> CoreOptions:
    return CoreOptions(
        fabric=FabricParameters(config.fabric.entry, config.fabric.qkey, segment_bytes=config.fabric.segment_bytes),
        graces=Graces(
            config.membership.heartbeat_ns, config.membership.copies_grace_ns, config.membership.member_grace_ns
        ),
        incarnation=time.time_ns(),
        with_switch=with_switch,
        values=config.values,
        rules=config.rules,
        pushes=config.pushes,
        ports=config.ports,
        flood_ports=config.switch.flood_ports,
        switch_floods=config.switch.target == "p4switch",
        member_order=MEMBER_ORDER if config.switch.target == "tofino" else ASCENDING,
        bitmap_groups_max=config.switch.groups_max,
        check_switch_ns=config.switch.reconcile_ns,
        fill_timeout_ms=config.fill_timeout_ms,
        transfer_timeout_ms=config.transfer_timeout_ms,
        settle_ns=config.membership.settle_ns,
    )


async def _run(config: Config, stop: asyncio.Event) -> None:
    log_to_stderr(config.log_level)
    # finsy tells of every broken connection at length; the target says the same in one line.
    logging.getLogger("finsy").setLevel(logging.DEBUG if config.log_level == "debug" else logging.CRITICAL + 1)
    controller = Controller(config)
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


if __name__ == "__main__":
    raise SystemExit(main())
