"""The controller's gRPC server: its address, its certificates, who may call what; its services Coordinator, the agents'
streams, and Operator.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, Protocol

import grpc
import grpc.aio

from controlplane.core import parse, views
from controlplane.core.core import Core
from controlplane.core.directory import AmbiguousKeyError, UnknownKeyError
from controlplane.core.effects import Effect
from controlplane.core.events import (
    Event,
    ExaminationEnded,
    ExaminationRequested,
    JobCancelled,
    OperatorEvent,
    Requested,
)
from controlplane.core.examination.observations import Surroundings
from controlplane.core.ids import JobId, Mark
from controlplane.core.limits import GRPC_MESSAGE_BYTES_MAX
from controlplane.core.operations import OperatorError
from controlplane.core.read_access import ExpulsionError
from controlplane.rpc.live_feed import LiveFeed
from controlplane.rpc.peers import Admission, Peer, peer_of
from controlplane.rpc.streams import AgentStream, Closing
from kvdaemon.errors import CannotRunError
from kvdaemon.tls import Certificates
from kvpolicy.tiers.cost_question import QuestionError, TooManyQuestionsError
from kvproto.rpc import control_pb2 as rpc
from kvproto.rpc import control_pb2_grpc
from p4switch.doorkeeper import OPTIONS, Doorkeeper

_WATCH_S = 0.02
_PIN_WAIT_MAX_S = 3600.0
_REST_CHUNKS = 500
"""Chunks listed before other events get their turn."""
_CODES: Final[Mapping[type[Exception], grpc.StatusCode]] = {
    UnknownKeyError: grpc.StatusCode.NOT_FOUND,
    AmbiguousKeyError: grpc.StatusCode.FAILED_PRECONDITION,
    QuestionError: grpc.StatusCode.INVALID_ARGUMENT,
    TooManyQuestionsError: grpc.StatusCode.RESOURCE_EXHAUSTED,
    ExpulsionError: grpc.StatusCode.INVALID_ARGUMENT,
}
"""What a call ends with that raises this."""


class OperatorDesk(Protocol):
    """The part of the daemon that operators talk to."""

    @property
    def core(self) -> Core:
        """What all requests are about."""

    def now_ns(self) -> int:
        """The monotonic clock, in nanoseconds."""

    def handle(self, event: Event) -> Sequence[Effect]:
        """Give the core an event, and carry out what follows from it."""

    def ask(self, request: OperatorEvent) -> Any:
        """What the core answers to a request. Raises OperatorError."""

    async def wait_for_change(self) -> None:
        """Return when the core has been called again."""

    def watch(self, job: JobId) -> asyncio.Queue[tuple[rpc.Progress, bool]]:
        """Progress of a job just started, and whether it is the last."""

    def unwatch(self, job: JobId) -> None:
        """Nobody wants to know of the job any more."""

    def status(self) -> rpc.StatusReply:
        """Nodes, switch and counts."""

    def expel(self, request: rpc.ExpelRequest, mark: Mark) -> rpc.ExpelReply:
        """Put a node out, or take it in again. Raises ExpulsionError, OperatorError."""

    def surroundings(self) -> Surroundings:
        """What an examination wants to know of this daemon."""

    @property
    def live(self) -> LiveFeed:
        """What happens now."""

    def standby_words(self) -> str:
        """Why agents and operators are refused now; empty if they are not."""


def mark_of(context: Any) -> Mark:
    """Who calls, and when."""
    peer = peer_of(context)
    names = ", ".join(map(str, peer.identities))
    return Mark(f"{names} at {peer.address}" if names else peer.address, time.time_ns() // 1_000_000)


class Operator(control_pb2_grpc.OperatorServicer):
    """Each method is one call of the core. A controller on standby reports its status and refuses everything else."""

    def __init__(self, desk: OperatorDesk) -> None:
        self._desk = desk

    async def Status(self, request: rpc.StatusRequest, context: Any) -> rpc.StatusReply:  # noqa: N802
        """Nodes, switch and counts."""
        return self._desk.status()

    async def Watch(self, request: rpc.StatusRequest, context: Any) -> AsyncIterator[rpc.StatusReply]:  # noqa: N802
        """The status at once, and again whenever it has changed."""
        told = None
        while True:
            status = self._desk.status()
            lasting = views.lasting(status)
            if lasting != told:
                told = lasting
                yield status
            # A status is a look at every node and entry of the switch: not at each of a storm of events.
            await asyncio.sleep(_WATCH_S)
            await self._desk.wait_for_change()

    async def List(self, request: rpc.ListRequest, context: Any) -> AsyncIterator[rpc.ChunkView]:  # noqa: N802
        """Chunks that the request selects, in prefix order."""
        core = self._desk.core
        async with self._asking(context):
            if request.node and core.nodes.named(request.node) is None:
                raise OperatorError("NOT_FOUND", f"no node is called '{request.node}'")
            chunks = views.list_chunks(core, request, self._desk.now_ns())
            first = next(chunks, None)  # what is wrong with a request shows here
        count = 0
        while first is not None:
            yield first
            first, count = next(chunks, None), count + 1
            if count % _REST_CHUNKS == 0:
                await asyncio.sleep(0)

    async def Top(self, request: rpc.TopRequest, context: Any) -> rpc.TopReply:  # noqa: N802
        """The chunks fetched most, and the status."""
        chunks = views.top(self._desk.core, request.limit, self._desk.now_ns())
        return rpc.TopReply(chunks=chunks, status=self._desk.status())

    async def Live(self, request: rpc.LiveRequest, context: Any) -> AsyncIterator[rpc.LiveIncrement]:  # noqa: N802
        """What happens now, for as long as the caller reads."""
        async with contextlib.aclosing(self._desk.live.follow()) as increments:
            async for increment in increments:
                yield increment

    async def Pin(self, request: rpc.PinRequest, context: Any) -> rpc.PinReply:  # noqa: N802
        """Keep a prefix."""
        async with self._asking(context):
            reply: rpc.PinReply = self._desk.ask(Requested("pin", request, mark_of(context)))
        if not request.in_switch:
            return reply
        async with self._asking(context):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(min(request.wait_ms / 1000, _PIN_WAIT_MAX_S)):
                    while self._desk.core.operations.pin_progress(request).served_chunks < reply.chunks:
                        await self._desk.wait_for_change()
            return self._desk.core.operations.pin_progress(request)

    async def Unpin(self, request: rpc.PinRequest, context: Any) -> rpc.PinReply:  # noqa: N802
        """Let a prefix go again."""
        async with self._asking(context):
            unpinned: rpc.PinReply = self._desk.ask(Requested("unpin", request, mark_of(context)))
            return unpinned

    async def Evict(self, request: rpc.EvictRequest, context: Any) -> rpc.EvictReply:  # noqa: N802
        """Take a prefix and what hangs on it out."""
        async with self._asking(context):
            evicted: rpc.EvictReply = self._desk.ask(Requested("evict", request, mark_of(context)))
            return evicted

    async def Warm(self, request: rpc.WarmRequest, context: Any) -> AsyncIterator[rpc.Progress]:  # noqa: N802
        """Bring a prefix to nodes; progress until all are through."""
        async for progress in self._follow(Requested("warm", request, mark_of(context)), context):
            yield progress

    async def Drain(self, request: rpc.DrainRequest, context: Any) -> AsyncIterator[rpc.Progress]:  # noqa: N802
        """Empty a node; progress until it is."""
        async for progress in self._follow(Requested("drain", request, mark_of(context)), context):
            yield progress

    async def Expel(self, request: rpc.ExpelRequest, context: Any) -> rpc.ExpelReply:  # noqa: N802
        """Put a node out of the cluster, or take it in again."""
        async with self._asking(context):
            return self._desk.expel(request, mark_of(context))

    async def Cost(self, request: rpc.CostRequest, context: Any) -> rpc.CostReply:  # noqa: N802
        """What it would take nodes to have the chunks of a prefix."""
        async with self._asking(context):
            question, quotes = parse.cost_question(request), self._desk.core.quotes
            found = quotes.of(question, self._desk.now_ns())
            return views.cost_reply(found, question.within_s, quotes.elsewhere(question.keys))

    async def Examine(  # noqa: N802
        self, request: rpc.ExamineRequest, context: Any
    ) -> AsyncIterator[rpc.ExamineReply]:
        """Try all paths; what is being tried, and at the end the findings."""
        core, began_ns = self._desk.core, self._desk.now_ns()
        surroundings = replace(self._desk.surroundings(), asked_by=request.version)
        async with self._asking(context):
            number: int = self._desk.ask(ExaminationRequested(surroundings))
        told = ""
        try:
            while (found := core.examinations.findings(number)) is None:
                if core.examinations.phase != told:
                    told = core.examinations.phase
                    yield rpc.ExamineReply(phase=told)
                await self._desk.wait_for_change()
            took_ms = (self._desk.now_ns() - began_ns) // 1_000_000
            yield rpc.ExamineReply(finished=True, findings=found, took_ms=took_ms)
        finally:
            self._desk.handle(ExaminationEnded(number))

    async def _follow(self, requested: Requested, context: Any) -> AsyncIterator[rpc.Progress]:
        """The progress of the job that is asked for."""
        async with self._asking(context):
            job: JobId = self._desk.ask(requested)
            progress = self._desk.watch(job)
        last = False
        try:
            while not last:
                one, last = await progress.get()
                yield one
        finally:
            if not last:
                self._desk.handle(JobCancelled(job))
            self._desk.unwatch(job)

    @contextlib.asynccontextmanager
    async def _asking(self, context: Any) -> AsyncIterator[None]:
        """Turn a refusal into the status of the call."""
        if reason := self._desk.standby_words():
            await context.abort(grpc.StatusCode.UNAVAILABLE, reason)
        try:
            yield
        except OperatorError as error:
            await context.abort(grpc.StatusCode[error.code], str(error))
        except tuple(_CODES) as error:
            await context.abort(_CODES[type(error)], str(error))


LOG = logging.getLogger(__name__)


class AgentDesk(Protocol):
    """The part of the daemon that takes agents' messages."""

    def standby_words(self) -> str:
        """Why agents and operators are refused now; empty if they are not."""

    def leader_epoch(self) -> int:
        """Of this controller's leadership; 0: it does not lead."""

    def open_stream(self, peer: Peer) -> AgentStream:
        """A stream of an agent begins."""

    def take(self, stream: AgentStream, message: rpc.FromAgent) -> None:
        """A message came on it."""

    def close_stream(self, stream: AgentStream) -> None:
        """It ended."""


class Coordinator(control_pb2_grpc.CoordinatorServicer):
    """One coroutine reads, one writes; both end together."""

    def __init__(self, desk: AgentDesk) -> None:
        self._desk = desk

    async def Attach(  # noqa: N802  (gRPC's name)
        self, requests: AsyncIterator[rpc.FromAgent], context: Any
    ) -> AsyncIterator[rpc.ToAgent]:
        """One agent's stream, both ways, until either side ends it."""
        reason = self._desk.standby_words()
        if reason:
            await context.abort(grpc.StatusCode.UNAVAILABLE, reason)
        stream = self._desk.open_stream(peer_of(context))
        reader = asyncio.create_task(self._read(requests, stream))
        try:
            while not isinstance(message := await stream.next(), Closing):
                yield message
            if message.code != "OK":
                await context.abort(grpc.StatusCode[message.code], message.reason)
        finally:
            self._desk.close_stream(stream)
            reader.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await reader

    async def Leader(self, request: rpc.LeaderRequest, context: Any) -> rpc.LeaderReply:  # noqa: N802
        """Whether this controller leads."""
        return rpc.LeaderReply(epoch=self._desk.leader_epoch())

    async def _read(self, requests: AsyncIterator[rpc.FromAgent], stream: AgentStream) -> None:
        try:
            async for message in requests:
                self._desk.take(stream, message)
        except (grpc.RpcError, grpc.aio.AbortError, asyncio.InvalidStateError):
            stream.close(Closing("ABORTED", "the stream broke"))
        except asyncio.CancelledError:
            raise
        except Exception:  # a defect of ours, met by one agent's message: the others keep their controller
            LOG.exception("a message of session %d could not be taken: its stream ends", stream.session)
            stream.close(Closing("INTERNAL", "the controller could not take a message: see its log"))
        else:
            stream.close(Closing("OK", "the agent closed the stream"))


_OPTIONS = [
    # Two controllers on one port would each get some of the agents.
    ("grpc.so_reuseport", 0),
    *OPTIONS,
    ("grpc.max_receive_message_length", GRPC_MESSAGE_BYTES_MAX),
    ("grpc.max_send_message_length", GRPC_MESSAGE_BYTES_MAX),
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.min_ping_interval_without_data_ms", 1_000),
]


async def serve(
    listen: str, agents: AgentDesk, operators: OperatorDesk, certificates: Certificates | None
) -> tuple[grpc.aio.Server, str, Doorkeeper]:
    """Start at HOST:PORT (port 0 takes any). `certificates` None: no TLS, and everybody may call everything.

    Returns the server, the address that it has, and who has to look after it. Raises CannotRunError.
    """
    admission = Admission(None if certificates is None else certificates.trust_domain)
    server = grpc.aio.server(interceptors=[admission], options=_OPTIONS)
    control_pb2_grpc.add_CoordinatorServicer_to_server(Coordinator(agents), server)
    control_pb2_grpc.add_OperatorServicer_to_server(Operator(operators), server)
    try:
        if certificates is None:
            port = server.add_insecure_port(listen)
        else:
            port = server.add_secure_port(listen, certificates.for_server())
    except RuntimeError:
        port = 0
    if port == 0:
        raise CannotRunError(f"cannot listen on {listen}: is another controller running, is it our address?")
    admission.door = Doorkeeper(port)
    await server.start()
    return server, f"{listen.rpartition(':')[0]}:{port}", admission.door
