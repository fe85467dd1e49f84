"""The controller's gRPC server: its address, its certificates, who may call what.

Service Coordinator: the agents' streams.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator
from typing import Any, Protocol

import grpc
import grpc.aio

from controlplane.core.limits import GRPC_MESSAGE_BYTES_MAX
from controlplane.rpc.operator import Operator, OperatorDesk
from controlplane.rpc.peers import Admission, Peer, peer_of
from controlplane.rpc.streams import AgentStream, Closing
from kvdaemon.errors import CannotRunError
from kvdaemon.tls import Certificates
from kvproto.rpc import control_pb2 as rpc
from kvproto.rpc import control_pb2_grpc
from p4switch.doorkeeper import OPTIONS, Doorkeeper

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
