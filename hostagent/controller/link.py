"""The stream to the controller: opens it, and reopens it with backoff when it ends; knows nothing of its content.

Of several controllers one leads; the others are on standby and refuse the stream. The link tries them in turn. A name
may stand for several controllers, too: when no name has led to the leader, the link tries all addresses behind them. It
leaves a controller that stands still, and one that is not sure that it leads when another one is.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, Protocol

import grpc
import grpc.aio

from hostagent import limits
from hostagent.controller.convert import RemoteProtocolError, VersionSkewError
from hostagent.controller.leaders import DeposedLeaderError, LatestLeader, StreamSigns, Turns, Verdict
from hostagent.core.directory import SequenceGapError
from kvdaemon.checks import host_port
from kvdaemon.tls import Certificates, TlsError
from kvdaemon.what_answers import in_words, what_answers
from kvproto.rpc import control_pb2 as pb
from kvproto.rpc import control_pb2_grpc as rpc

log = logging.getLogger(__name__)

_NOT_CONNECTED = "failed to connect"
"""How gRPC begins to say that there is no connection at all; what follows is for its authors."""
_NO_CONTROLLER = (
    "a gRPC server that is no kvcast-controller answers there: is it the P4Runtime port of the switch?"
    " Correct controller.address"
)
_REFUSALS = frozenset(
    {grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.FAILED_PRECONDITION, grpc.StatusCode.INVALID_ARGUMENT}
)
"""How a controller says that it will not have this node: only a change of something helps."""
_OPTIONS = [
    ("grpc.keepalive_time_ms", 5000),
    ("grpc.keepalive_timeout_ms", 3000),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.max_receive_message_length", 64 * limits.MIB),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
    # The control channel must not go through a proxy that happens to be in the environment.
    ("grpc.enable_http_proxy", 0),
]


class LinkUser(Protocol):
    """The user of a link. The link calls it on the event loop."""

    def hello(self) -> pb.FromAgent:
        """The first message of a stream."""

    def message_received(self, message: pb.ToAgent) -> None:
        """A message of the controller; an error that it raises ends the stream."""

    def stream_ended(self) -> None:
        """The stream to the controller has ended."""


class ControllerLink:
    """One stream at a time. `send` drops messages while there is none: a new stream begins with the full state."""

    def __init__(self, addresses: Sequence[str], user: LinkUser, certificates: Certificates | None = None) -> None:
        """`certificates` None: the link speaks plainly."""
        self._addresses = addresses
        self._certificates = certificates
        self._user = user
        self._outgoing: asyncio.Queue[pb.FromAgent | None] | None = None
        self._task: asyncio.Task[None] | None = None
        self._latest = LatestLeader()
        self._watch: _Watch | None = None
        """The stream that is open."""
        self._turns = Turns(addresses)
        self._operator_state = pb.OperatorState()
        """What operators set. The agent keeps it and repeats it unchanged, so that a new controller learns it."""
        self.refusal = ""
        """Why a controller will not have this node; empty: none has said so since the last one that took it in."""

    def start(self) -> None:
        """Keep a stream open from now on."""
        self._task = asyncio.get_running_loop().create_task(self._run(), name="controller link")
        self._task.add_done_callback(_tell_bug)

    async def close(self, farewell: pb.FromAgent | None = None) -> None:
        """Send the farewell if there is a stream, and end."""
        if self._task is None:
            return
        if farewell is not None and self._outgoing is not None:
            self._outgoing.put_nowait(farewell)
            self._outgoing.put_nowait(None)
            await asyncio.wait([self._task], timeout=limits.CONTROLLER_FAREWELL_S)
        self._task.cancel()
        await asyncio.wait([self._task])
        self._task = None

    def attach_again(self, reason: str) -> None:
        """Open the stream to the same controller again: what its Hello said is no longer true."""
        if self._watch is not None:
            self._turns.found = self._watch.address
            self._watch.end(reason)

    def send(self, message: pb.FromAgent) -> None:
        """Queue a message on the stream that is open."""
        if self._outgoing is None:
            return
        if self._outgoing.qsize() >= limits.CONTROLLER_QUEUE_MAX:
            log.warning("the controller does not take messages; opening the stream again")
            self._outgoing.put_nowait(None)
            self._outgoing = None
            return
        self._outgoing.put_nowait(message)

    async def _run(self) -> None:
        turns = self._turns
        while True:
            welcomed = False

            def answered() -> None:
                nonlocal welcomed
                welcomed = True

            address = turns.next()
            reason = await self._converse(address, answered)
            if reason is None:
                return
            pause_s = turns.ended(welcomed=welcomed)
            level = logging.WARNING if welcomed or turns.is_first_round else logging.DEBUG
            log.log(level, "controller at %s: %s; trying again", address, reason)
            await asyncio.sleep(pause_s)
            if turns.round_failed:
                turns.ask(await self._all_targets())

    async def _all_targets(self) -> list[str]:
        """Every address behind every name, as names stand for them now; a name that stands for none as it is."""
        found = [await _behind(address) or [address] for address in self._addresses]
        return list(dict.fromkeys(address for several in found for address in several))

    async def _converse(self, address: str, answered: Callable[[], None]) -> str | None:
        """One stream from Hello to its end; returns why it ended, or None after a farewell. Calls `answered` for each
        message."""
        outgoing: asyncio.Queue[pb.FromAgent | None] = asyncio.Queue()
        said_goodbye = False

        async def messages() -> AsyncIterator[pb.FromAgent]:
            nonlocal said_goodbye
            hello = self._user.hello()
            if self._operator_state.revision:
                hello.hello.operator_state.CopyFrom(self._operator_state)
            yield hello
            while (message := await outgoing.get()) is not None:
                said_goodbye = message.HasField("leaving")
                yield message

        try:
            channel = self._channel(address)
        except TlsError as error:
            return str(error)
        async with channel:
            call = rpc.CoordinatorStub(channel).Attach(messages())
            self._watch = watch = _Watch(call, address)
            self._outgoing = outgoing
            try:
                async with self._watching(watch):
                    async for message in call:
                        answered()
                        self.refusal = ""
                        self._take(message, watch)
                return None if said_goodbye else "it closed the stream"
            except grpc.aio.AioRpcError as error:
                if error.code() in _REFUSALS:
                    self.refusal = in_words(error.details() or error.code().name)
                if error.code() is grpc.StatusCode.ABORTED:
                    self._turns.found = address  # it leads, and wants another stream
                return None if said_goodbye else await self._failure(address, error)
            except asyncio.CancelledError:
                if not watch.reason or _is_cancelled():
                    raise
                return watch.reason
            except (VersionSkewError, DeposedLeaderError) as error:
                return str(error)
            except (RemoteProtocolError, SequenceGapError) as error:
                return f"it broke the protocol: {error}"
            finally:
                call.cancel()
                self._outgoing = self._watch = None
                # Ends the iterator that grpc reads from: cancelling the call does not.
                outgoing.put_nowait(None)
                self._user.stream_ended()

    def _take(self, message: pb.ToAgent, watch: _Watch) -> None:
        """A message came. Raises DeposedLeaderError, or what the user of the link raises."""
        watch.signs.message_received()
        match message.WhichOneof("message"):
            case "operator_state":
                self._operator_state = message.operator_state
                return
            case "leads":
                watch.signs.leads(unsure=message.leads.unsure)
                self._heard(message.leads.epoch)
                return
            case "welcome":
                self._heard(message.welcome.epoch)
                watch.silence_s = message.welcome.silence_ms / 1000
            case "task":
                self._heard(message.task.epoch)
        self._user.message_received(message)

    def _heard(self, epoch: int) -> None:
        self._latest.heard(epoch, asyncio.get_running_loop().time())

    @contextlib.asynccontextmanager
    async def _watching(self, watch: _Watch) -> AsyncIterator[None]:
        """Whoever has one controller waits for it; whoever has several leaves one that does not lead."""
        looks = asyncio.create_task(self._look_after(watch))
        looks.add_done_callback(_tell_bug)
        try:
            yield
        finally:
            looks.cancel()
            await asyncio.wait([looks])

    async def _look_after(self, watch: _Watch) -> None:
        if len(await self._all_targets()) < 2:
            return
        while True:
            await asyncio.sleep((watch.silence_s or limits.CONTROLLER_SILENCE_S) / limits.CONTROLLER_LOOKS)
            match watch.signs.look():
                case Verdict.SILENT if watch.silence_s:
                    watch.end(f"it said nothing for {watch.silence_s:g} s: it stands still")
                case Verdict.UNSURE:
                    self._turns.found = leader = await self._leader_but(watch.address)
                    if leader:
                        watch.end(f"it does not know whether it leads, and {leader} does")

    async def _leader_but(self, address: str) -> str:
        """Which of the others leads; empty: none says so."""
        for other in await self._all_targets():
            if other != address and await self._leads(other):
                return other
        return ""

    async def _leads(self, address: str) -> bool:
        try:
            async with self._channel(address) as channel:
                stub = rpc.CoordinatorStub(channel)
                return (await stub.Leader(pb.LeaderRequest(), timeout=limits.LEADER_ASKED_S)).epoch > 0
        except (grpc.aio.AioRpcError, TlsError):
            return False

    def _channel(self, address: str) -> grpc.aio.Channel:
        """With the certificate as it is now. Raises TlsError."""
        if self._certificates is None:
            return grpc.aio.insecure_channel(address, options=_OPTIONS)
        credentials, options = self._certificates.for_channel()
        return grpc.aio.secure_channel(address, credentials, options=[*_OPTIONS, *options])

    async def _failure(self, address: str, error: grpc.aio.AioRpcError) -> str:
        if self._certificates is not None and error.code() is grpc.StatusCode.UNAVAILABLE:
            found = await asyncio.to_thread(self._certificates.why_not, address)
            if found:
                return found
        if error.code() is grpc.StatusCode.UNIMPLEMENTED:
            return _NO_CONTROLLER
        if error.code() is grpc.StatusCode.UNAVAILABLE and (error.details() or "").startswith(_NOT_CONNECTED):
            return await asyncio.to_thread(what_answers, address)
        said = in_words(error.details() or "")
        return said if said != error.details() else f"{error.code().name.lower()}: {said}"


class _Watch:
    """One stream, as it is looked after."""

    def __init__(self, call: Any, address: str) -> None:
        self.address = address
        self.signs = StreamSigns()
        self.silence_s = limits.CONTROLLER_SILENCE_S
        """The controller may be silent for so long; 0: for any time."""
        self.reason = ""
        """Why the stream was ended from here."""
        self._call = call

    def end(self, reason: str) -> None:
        """End the stream."""
        self.reason = self.reason or reason
        self._call.cancel()


def _is_cancelled() -> bool:
    """Whether somebody cancels this task, rather than a call in it."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


async def _behind(address: str) -> list[str]:
    """HOST:PORT of all addresses that a name has; none: it cannot be found now."""
    host, port = host_port(address)
    try:
        async with asyncio.timeout(limits.CONTROLLER_NAME_S):
            found = await asyncio.get_running_loop().getaddrinfo(host.strip("[]"), port, type=socket.SOCK_STREAM)
    except (OSError, TimeoutError):
        return []
    return [
        f"[{where[0]}]:{port}" if family == socket.AF_INET6 else f"{where[0]}:{port}" for family, *_, where in found
    ]


def _tell_bug(task: asyncio.Task[None]) -> None:
    """The link ends by `close` only; anything else is a bug of ours and must not go unnoticed."""
    error = None if task.cancelled() else task.exception()
    if error is not None:
        context = {"message": "the link to the controller failed for good", "exception": error, "task": task}
        task.get_loop().call_exception_handler(context)
