"""Service Coordinator: the agents' streams."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any, Protocol

import grpc

from controlplane.rpc.streams import AgentStream, Closing
from kvproto.rpc import control_pb2 as rpc
from kvproto.rpc import control_pb2_grpc


class AgentDesk(Protocol):
    """The part of the daemon that takes agents' messages."""

    def standby_words(self) -> str:
        """Why agents and operators are refused now; empty if they are not."""

    def open_stream(self) -> AgentStream: ...
    def take(self, stream: AgentStream, message: rpc.FromAgent) -> None: ...
    def close_stream(self, stream: AgentStream) -> None: ...
    def count_sent(self, message: rpc.ToAgent) -> None: ...


class Coordinator(control_pb2_grpc.CoordinatorServicer):
    """One coroutine reads, one writes; both end together."""

    def __init__(self, desk: AgentDesk) -> None:
        self._desk = desk

    async def Attach(  # noqa: N802  (gRPC's name)
        self, requests: AsyncIterator[rpc.FromAgent], context: Any
    ) -> AsyncIterator[rpc.ToAgent]:
        reason = self._desk.standby_words()
        if reason:
            await context.abort(grpc.StatusCode.UNAVAILABLE, reason)
        stream = self._desk.open_stream()
        reader = asyncio.create_task(self._read(requests, stream))
        try:
            while not isinstance(message := await stream.next(), Closing):
                self._desk.count_sent(message)
                yield message
            if message.code != "OK":
                await context.abort(grpc.StatusCode[message.code], message.reason)
        finally:
            self._desk.close_stream(stream)
            reader.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await reader

    async def _read(self, requests: AsyncIterator[rpc.FromAgent], stream: AgentStream) -> None:
        try:
            async for message in requests:
                self._desk.take(stream, message)
        except (grpc.RpcError, asyncio.InvalidStateError):
            stream.close(Closing("ABORTED", "the stream broke"))
        else:
            stream.close(Closing("OK", "the agent closed the stream"))
