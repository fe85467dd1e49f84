"""Service Coordinator: the agents' streams."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator
from typing import Any, Protocol

import grpc

from controlplane.rpc.peers import Peer, peer_of
from controlplane.rpc.streams import AgentStream, Closing
from kvproto.rpc import control_pb2 as rpc
from kvproto.rpc import control_pb2_grpc

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
