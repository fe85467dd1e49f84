"""The client for engines that run an asyncio event loop: the verbs of `kvclient.client.AgentClient`, awaited.

For one event loop. What is in the pool already is fetched without the agent and without a turn of the loop. A fetch
whose task is cancelled ends at the agent, too. Standard library only.

>>> async with await AsyncAgentClient.connected("/run/kvcast/agent.sock") as agent:
...     await agent.put(key, parent, kv_bytes)
...     with await agent.fetch([key_0, key_1], deadline_s=0.5) as got:
...         for view in got.views:
...             load(view)
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Callable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Literal, TypeVar, Unpack, overload

from kvchunk.parts import ByteRange
from kvclient import messages, request_encoding
from kvclient.attach import ANSWER_TIMEOUT_S, AgentUnavailableError, Attached, LeaseLostError, attach
from kvclient.errors import AgentError, expect
from kvclient.fetched import Fetched, Found, Streamed
from kvclient.messages import Frame, Kind, Status, Where
from kvclient.nonblocking import NonBlockingConnection
from kvclient.puts import PUTS_AT_ONCE, ChunkToPut, PutOutcome, bytes_of, leased
from kvclient.reads import Reads
from kvclient.region import WriteRegion
from kvclient.request_encoding import Message, Notices, Request
from kvclient.terms import FetchTerms, check_seconds

if TYPE_CHECKING:
    from typing_extensions import Buffer

T = TypeVar("T")
_LEASING = frozenset({Kind.FETCH, Kind.FETCH_EACH, Kind.FETCH_PARTS, Kind.FETCH_PART})
"""Answers that may bring a lease, to be released; RESERVE brings one to be aborted."""


class AsyncAgentClient(Notices):
    """A connection to this node's agent, for the tasks of one event loop."""

    def __init__(self, path: str, attached: Attached, answer_timeout_s: float) -> None:
        """Use `connected`."""
        self.pool_bytes, self.incarnation = attached.pool_bytes, attached.incarnation
        connection = NonBlockingConnection(path, attached.sock)
        self._reads = Reads(attached, connection, local_reads=True)
        self._region = WriteRegion(attached.region)
        self._answers = _Answers(connection, answer_timeout_s)
        self._commits: set[asyncio.Task[None]] = set()

    @staticmethod
    async def connected(
        socket_path: str | os.PathLike[str], *, answer_timeout_s: float = ANSWER_TIMEOUT_S
    ) -> AsyncAgentClient:
        """Connect and map the pool; raises AgentUnavailableError when that fails.

        The client gives up an agent that owes an answer for `answer_timeout_s` (beyond a fetch's own deadline).
        """
        path = os.fspath(socket_path)
        check_seconds(answer_timeout_s=answer_timeout_s)
        with await asyncio.to_thread(attach, path) as attached:
            return AsyncAgentClient(path, attached, answer_timeout_s)

    def close(self) -> None:
        """Gives everything back. Views handed out stay mapped but no longer protected from reuse. Idempotent."""
        self._answers.close()
        self._reads.close()
        with contextlib.suppress(BufferError):
            self._region.close()

    async def __aenter__(self) -> AsyncAgentClient:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, value: BaseException | None, at: TracebackType | None
    ) -> None:
        self.close()

    def notify(self, message: Message) -> None:
        """Send what is not answered, see `Notices`. Raises AgentUnavailableError."""
        self._answers.send(message)

    # ------------------------------------------------------------------ put

    async def put(
        self, key: bytes, parent: bytes | None, buffer: Buffer, *, position: int | None = None, namespace: str = ""
    ) -> PutOutcome:
        """As AgentClient.put. A put whose task is cancelled may be done all the same."""
        content = bytes_of(buffer)

        def write(view: memoryview) -> None:
            view[:] = content

        return await self._put(ChunkToPut(key, parent, len(content), write, position), namespace)

    async def put_each(self, chunks: Sequence[ChunkToPut], *, namespace: str = "") -> list[bool]:
        """As AgentClient.put_each."""
        done: list[bool] = []
        for at in range(0, len(chunks), PUTS_AT_ONCE):
            part = chunks[at : at + PUTS_AT_ONCE]
            outcomes = await asyncio.gather(*(self._has_room(chunk, namespace) for chunk in part))
            # Those before may have taken what room there is for writing: once more, one after the other.
            for chunk, outcome in zip(part, outcomes, strict=True):
                done.append(outcome or await self._has_room(chunk, namespace))
        return done

    async def _has_room(self, chunk: ChunkToPut, namespace: str) -> bool:
        try:
            await self._put(chunk, namespace)
        except AgentError:
            return False
        return True

    async def _put(self, chunk: ChunkToPut, namespace: str) -> PutOutcome:
        lease = await self._answers.ask(Request(chunk.room(namespace), leased))
        if lease is None:
            return PutOutcome.EXISTS
        try:
            offset = self._region.allocate(chunk.size_bytes)
        except AgentError:
            self._answers.connection.give_back(Kind.ABORT, lease)
            raise
        try:
            with self._region.view(offset, chunk.size_bytes) as view:
                chunk.write(view)
        except BaseException:
            self._region.free(offset)
            self._answers.connection.give_back(Kind.ABORT, lease)
            raise
        # A task of its own: until the agent has answered it reads this part of the region, whoever stops waiting.
        commit = asyncio.create_task(self._commit(lease, offset))
        self._commits.add(commit)
        commit.add_done_callback(self._commits.discard)
        await asyncio.shield(commit)
        return PutOutcome.STORED

    async def _commit(self, lease: int, offset: int) -> None:
        try:
            await self._answers.ask(
                Request(request_encoding.commit(lease, offset), lambda answer: expect(answer, "commit"))
            )
        finally:
            self._region.free(offset)

    # ------------------------------------------------------------------ fetch

    @overload
    async def fetch(
        self, keys: Sequence[bytes], *, deadline_s: float, traceparent: str | None = None, **terms: Unpack[FetchTerms]
    ) -> Fetched: ...

    @overload
    async def fetch(
        self, keys: Sequence[bytes], *, deadline_s: float, any_order: Literal[True], traceparent: str | None = None
    ) -> Found[memoryview]: ...

    @overload
    async def fetch(
        self, keys: Sequence[bytes], *, deadline_s: float, ranges: Sequence[ByteRange]
    ) -> Found[list[memoryview]]: ...

    async def fetch(
        self,
        keys: Sequence[bytes],
        *,
        deadline_s: float,
        any_order: bool = False,
        ranges: Sequence[ByteRange] | None = None,
        traceparent: str | None = None,
        **terms: Unpack[FetchTerms],
    ) -> Fetched | Found[memoryview] | Found[list[memoryview]]:
        """As AgentClient.fetch."""
        begun = self._reads.fetch(keys, deadline_s, any_order, ranges, traceparent, terms)
        return await self._answers.ask(begun) if isinstance(begun, Request) else begun

    def fetch_stream(
        self, keys: Sequence[bytes], *, deadline_s: float, traceparent: str | None = None, **terms: Unpack[FetchTerms]
    ) -> AsyncFetchStream:
        """As AgentClient.fetch_stream.

        >>> async with agent.fetch_stream(keys, deadline_s=0.5) as stream:
        ...     async for view in stream:
        ...         load(view)
        """
        here = self._reads.here(keys, deadline_s, traceparent, terms)
        if here is not None:
            stream = AsyncFetchStream(self._answers, self._reads.fetched)
            stream.add(here, is_last=True)
            return stream
        started = self._answers.start(request_encoding.fetch_stream(keys, deadline_s, traceparent, terms))
        give_up_s = asyncio.get_running_loop().time() + deadline_s + self._answers.timeout_s
        return AsyncFetchStream(self._answers, self._reads.fetched, started, give_up_s)

    def fetch_local(self, keys: Sequence[bytes]) -> Fetched | None:
        """As AgentClient.fetch_local."""
        return self._reads.local(keys)

    # ------------------------------------------------------------------ keep, drop, look

    async def contains(self, keys: Sequence[bytes]) -> list[Where]:
        """As AgentClient.contains."""
        return await self._answers.ask(request_encoding.contains(keys))

    async def pin(self, keys: Sequence[bytes]) -> list[bool]:
        """As AgentClient.pin."""
        return await self._answers.ask(request_encoding.with_each(Kind.PIN, keys))

    async def unpin(self, keys: Sequence[bytes]) -> list[bool]:
        """As AgentClient.unpin."""
        return await self._answers.ask(request_encoding.with_each(Kind.UNPIN, keys))

    async def lock(self, keys: Sequence[bytes], *, hold_s: float) -> list[bool]:
        """As AgentClient.lock."""
        return await self._answers.ask(request_encoding.lock(keys, hold_s))

    async def unlock(self, keys: Sequence[bytes]) -> list[bool]:
        """As AgentClient.unlock."""
        return await self._answers.ask(request_encoding.with_each(Kind.UNLOCK, keys))

    async def drop(self, keys: Sequence[bytes]) -> list[bool]:
        """As AgentClient.drop."""
        return await self._answers.ask(request_encoding.with_each(Kind.DROP, keys))

    async def stats(self) -> dict[str, float]:
        """As AgentClient.stats."""
        return await self._answers.ask(request_encoding.stats())


class AsyncFetchStream(Streamed):
    """As FetchStream, of one task."""

    def __init__(
        self, answers: _Answers, read: Callable[[Frame], Fetched], request: int = 0, give_up_s: float = 0.0
    ) -> None:
        super().__init__(read, request, give_up_s)
        self._answers = answers

    async def __aiter__(self) -> AsyncIterator[memoryview]:
        """Waits for one chunk after the other. Raises AgentError, AgentUnavailableError."""
        given = 0
        while True:
            while given < len(self.views):
                given += 1
                yield self.views[given - 1]
            if not self._request:
                return
            request, self._request = self._request, 0
            self._add_answer(request, await self._answers.next(request, self._give_up_s))

    def release(self) -> None:
        """Give up what is still to come, and unpin; the views are void. Idempotent. Raises LeaseLostError as
        `Fetched.check`."""
        if self._request:
            self._answers.give_up(self._request)
            self._request, self.outcome = 0, Status.CANCELLED
        self._unpin()

    async def __aenter__(self) -> AsyncFetchStream:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, value: BaseException | None, at: TracebackType | None
    ) -> None:
        if kind is None:
            self.release()
        else:
            with contextlib.suppress(LeaseLostError):
                self.release()


class _Answers:
    """Requests of an event loop's tasks, and their answers."""

    def __init__(self, connection: NonBlockingConnection, timeout_s: float) -> None:
        """For the event loop that runs."""
        self.connection = connection
        self.timeout_s = timeout_s
        self._loop = asyncio.get_running_loop()
        self._waiting: dict[int, asyncio.Queue[Frame | None]] = {}
        """Answers by request that waits for any; None: there will be none."""
        self._loop.add_reader(connection, self._receive)

    def send(self, message: Message) -> int:
        """The message's number. Raises AgentUnavailableError."""
        number = self.connection.send(message)
        if self.connection.has_unsent:
            self._loop.add_writer(self.connection, self._flush)
        return number

    def start(self, message: Message) -> int:
        """Send what is answered: the number of the request, for its `next`. Raises AgentUnavailableError."""
        number = self.send(message)
        self._waiting[number] = asyncio.Queue()
        return number

    async def ask(self, request: Request[T]) -> T:
        """What the agent answers. Raises AgentError, AgentUnavailableError."""
        started = self.start(request.message)
        return request.read(await self.next(started, self._loop.time() + request.deadline_s + self.timeout_s))

    async def next(self, request: int, give_up_s: float) -> Frame:
        """The next answer to a request. Raises AgentUnavailableError; who is cancelled here gives the request up."""
        try:
            async with asyncio.timeout_at(give_up_s):
                answer = await self._waiting[request].get()
        except TimeoutError:
            self.connection.broken("does not answer")
            self.close()
            answer = None
        except asyncio.CancelledError:
            self.give_up(request)
            raise
        if answer is None:
            del self._waiting[request]
            self.connection.check()
            raise AssertionError("an agent that is there answers")
        if answer.kind != Kind.FETCH_PART:
            del self._waiting[request]
        return answer

    def give_up(self, request: int) -> None:
        """Nobody waits for this request any more: what it still brings goes back."""
        arrived = self._waiting.pop(request)
        with contextlib.suppress(AgentUnavailableError):
            self.send(request_encoding.cancel(request))
        while not arrived.empty():
            answer = arrived.get_nowait()
            if answer is not None:
                self._return(answer)

    def _return(self, answer: Frame) -> None:
        """Of a request that was given up."""
        if answer.kind in _LEASING and answer.count:
            self.connection.give_back(Kind.RELEASE, *messages.LEASE.unpack_from(answer.body))
        elif answer.kind == Kind.RESERVE and answer.status == Status.OK:
            self.connection.give_back(Kind.ABORT, *messages.LEASE.unpack_from(answer.body))

    def _receive(self) -> None:
        try:
            answers = self.connection.receive()
        except AgentUnavailableError:
            self.close()
            return
        for answer in answers:
            waiting = self._waiting.get(answer.request)
            if waiting is not None:
                waiting.put_nowait(answer)
            else:
                self._return(answer)

    def _flush(self) -> None:
        try:
            self.connection.flush()
        except AgentUnavailableError:
            self.close()
            return
        if not self.connection.has_unsent:
            self._loop.remove_writer(self.connection)

    def close(self) -> None:
        """Whoever waits gets to know why. Idempotent."""
        if self.connection.fileno() >= 0:
            self._loop.remove_reader(self.connection)
            self._loop.remove_writer(self.connection)
            self.connection.close()
        for waiting in self._waiting.values():
            waiting.put_nowait(None)
