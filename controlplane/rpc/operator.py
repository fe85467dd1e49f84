"""Service Operator: what `kvcast ls | top | warm | pin | unpin | evict | drain` ask for."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from typing import Any, Protocol

import grpc

from controlplane import views
from controlplane.core import Core
from controlplane.directory import AmbiguousKeyError, UnknownKeyError
from controlplane.effects import JobId
from controlplane.operations import OperatorError
from kvproto.rpc import control_pb2 as rpc
from kvproto.rpc import control_pb2_grpc

_WATCH_S = 0.02
_REST_CHUNKS = 500
"""Chunks listed before other events get their turn."""


class OperatorDesk(Protocol):
    """The part of the daemon that operators talk to."""

    @property
    def core(self) -> Core: ...
    def now_ns(self) -> int: ...
    def settle(self) -> None:
        """Carry out what the core wants done."""

    async def something_happened(self) -> None:
        """Return when the core has been called again."""

    def watch(self, job: JobId) -> asyncio.Queue[tuple[rpc.Progress, bool]]:
        """Progress of a job just started, and whether it is the last."""

    def unwatch(self, job: JobId) -> None: ...
    def switch_words(self) -> tuple[str, str]:
        """Kind and address of the switch."""

    def standby_words(self) -> str:
        """Why agents and operators are refused now; empty if they are not."""


class Operator(control_pb2_grpc.OperatorServicer):
    """Each method is one call of the core. A controller on standby tells its status and refuses all else."""

    def __init__(self, desk: OperatorDesk) -> None:
        self._desk = desk

    async def Status(self, request: rpc.StatusRequest, context: Any) -> rpc.StatusReply:  # noqa: N802
        return views.status(self._desk.core, *self._desk.switch_words(), self._desk.now_ns())

    async def Watch(self, request: rpc.StatusRequest, context: Any) -> AsyncIterator[rpc.StatusReply]:  # noqa: N802
        told = None
        while True:
            status = views.status(self._desk.core, *self._desk.switch_words(), self._desk.now_ns())
            lasting = views.lasting(status)
            if lasting != told:
                told = lasting
                yield status
            # A status costs a look at every chunk that somebody holds: not at each of a storm of events.
            await asyncio.sleep(_WATCH_S)
            await self._desk.something_happened()

    async def List(self, request: rpc.ListRequest, context: Any) -> AsyncIterator[rpc.ChunkView]:  # noqa: N802
        core = self._desk.core
        await self._refuse_on_standby(context)
        if request.node and core.nodes.named(request.node) is None:
            await context.abort(grpc.StatusCode.NOT_FOUND, f"no node is called '{request.node}'")
        try:
            chunks: Iterator[rpc.ChunkView] = iter(list(views.list_chunks(core, request, self._desk.now_ns())))
        except UnknownKeyError as error:
            await context.abort(grpc.StatusCode.NOT_FOUND, str(error))
        except AmbiguousKeyError as error:
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, str(error))
        for count, chunk in enumerate(chunks):
            yield chunk
            if count % _REST_CHUNKS == _REST_CHUNKS - 1:
                await asyncio.sleep(0)

    async def Top(self, request: rpc.TopRequest, context: Any) -> rpc.TopReply:  # noqa: N802
        now_ns = self._desk.now_ns()
        status = views.status(self._desk.core, *self._desk.switch_words(), now_ns)
        return rpc.TopReply(chunks=views.top(self._desk.core, request.limit, now_ns), status=status)

    async def Pin(self, request: rpc.PinRequest, context: Any) -> rpc.PinReply:  # noqa: N802
        async with self._asking(context):
            return self._desk.core.operations.pin(request, self._desk.now_ns())

    async def Unpin(self, request: rpc.PinRequest, context: Any) -> rpc.PinReply:  # noqa: N802
        async with self._asking(context):
            return self._desk.core.operations.unpin(request)

    async def Evict(self, request: rpc.EvictRequest, context: Any) -> rpc.EvictReply:  # noqa: N802
        async with self._asking(context):
            return self._desk.core.operations.evict(request, self._desk.now_ns())

    async def Warm(self, request: rpc.WarmRequest, context: Any) -> AsyncIterator[rpc.Progress]:  # noqa: N802
        async with self._asking(context):
            job = self._desk.core.operations.warm(request)
            progress = self._desk.watch(job)
        async for one in self._follow(job, progress):
            yield one

    async def Drain(self, request: rpc.DrainRequest, context: Any) -> AsyncIterator[rpc.Progress]:  # noqa: N802
        async with self._asking(context):
            job = self._desk.core.operations.drain(request)
            progress = self._desk.watch(job)
        async for one in self._follow(job, progress):
            yield one

    async def _follow(
        self, job: JobId, progress: asyncio.Queue[tuple[rpc.Progress, bool]]
    ) -> AsyncIterator[rpc.Progress]:
        last = False
        try:
            while not last:
                one, last = await progress.get()
                yield one
        finally:
            if not last:
                self._desk.core.operations.cancel(job)
                self._desk.settle()
            self._desk.unwatch(job)

    @contextlib.asynccontextmanager
    async def _asking(self, context: Any) -> AsyncIterator[None]:
        """A refused request becomes the status of the call; what the request set going is carried out."""
        await self._refuse_on_standby(context)
        try:
            yield
        except OperatorError as error:
            await context.abort(grpc.StatusCode[error.code], str(error))
        finally:
            self._desk.settle()

    async def _refuse_on_standby(self, context: Any) -> None:
        if reason := self._desk.standby_words():
            await context.abort(grpc.StatusCode.UNAVAILABLE, reason)
