"""An agent of the tests: speaks the real protocol over a real channel, keeps the directory as an agent would."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterable

import grpc

from controlplane.core.ids import ChunkKey
from kvproto.rpc import control_pb2 as rpc
from kvproto.rpc import control_pb2_grpc
from tests.unit.controlplane.helpers import hello

DEADLINE_S = 15.0

CABLES: dict[str, Callable[[rpc.Hello, bytes], None]] = {}
"""By address of the controller: has the switch see HERE with this key from the agent that says this Hello."""


class FakeAgent:
    """One stream. Does tasks as `work` says: at once and successfully, unless a test says otherwise."""

    def __init__(
        self,
        address: str,
        number: int,
        chunks: Iterable[rpc.ChunkRecord] = (),
        channel: grpc.aio.Channel | None = None,
        **changes: object,
    ) -> None:
        self.name = f"n{number}"
        self.chunks = {record.key: record for record in chunks}
        self.welcome: rpc.Welcome | None = None
        self.entries: dict[bytes, rpc.ChunkEntry] = {}
        self.nodes: dict[int, rpc.Node] = {}
        self.switch = rpc.SwitchState()
        self.operator_state = rpc.OperatorState()
        self.tasks: list[rpc.Task] = []
        self.cancelled: list[int] = []
        self.refused: list[rpc.Refusal] = []
        self.error: grpc.aio.AioRpcError | None = None
        self.ended = asyncio.Event()
        self.work: Callable[[rpc.Task], rpc.TaskResult | None] = self.do
        self.member: int | None = None
        self._address = address
        self._hello = hello(number, **changes)
        self._channel = channel or grpc.aio.insecure_channel(address)
        self._outbox: asyncio.Queue[rpc.FromAgent] = asyncio.Queue()
        self._changed = asyncio.Event()
        self._snapshot: dict[bytes, rpc.ChunkEntry] = {}
        self._sequence: int | None = None
        self._run: asyncio.Task[None] | None = None

    async def __aenter__(self) -> FakeAgent:
        self.say(hello=self._hello)
        self._run = asyncio.create_task(self._converse())
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._run is not None:
            self._run.cancel()
            await asyncio.gather(self._run, return_exceptions=True)
        await self._channel.close()

    def say(self, **message: object) -> None:
        self._outbox.put_nowait(rpc.FromAgent(**message))  # type: ignore[arg-type]

    def announce(self, *records: rpc.ChunkRecord) -> None:
        self.chunks |= {record.key: record for record in records}
        self.say(announce=rpc.Announce(added=records))

    async def until(self, condition: Callable[[], object], what: str = "") -> None:
        """Wait for something that messages bring about."""
        try:
            async with asyncio.timeout(DEADLINE_S):
                while not condition():
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            raise AssertionError(f"{self.name} waited in vain for {what or condition}") from None

    async def attached(self) -> FakeAgent:
        await self.until(lambda: self._sequence is not None, "its snapshot")
        return self

    def holders(self, key: ChunkKey) -> set[str]:
        entry = self.entries.get(key)
        return {self.nodes[node].name for node in entry.holders} if entry else set()

    def node_named(self, name: str) -> rpc.Node:
        return next(node for node in self.nodes.values() if node.name == name)

    def do(self, task: rpc.Task) -> rpc.TaskResult:
        """Pretend to have done it, and announce what comes of it."""
        kind = task.WhichOneof("work")
        result = rpc.TaskResult(task=task.task, status=rpc.TaskResult.DONE)
        if kind == "fetch":
            got = [self._record(key) for key in task.fetch.keys if key in self.entries]
            self.announce(*got)
            result.done, result.bytes = len(got), sum(record.size_bytes for record in got)
        elif kind == "drop":
            gone = [key for key in task.drop.keys if self.chunks.pop(key, None) is not None]
            self.say(announce=rpc.Announce(removed=gone))
        return result

    def _record(self, key: bytes) -> rpc.ChunkRecord:
        entry = self.entries[key]
        return rpc.ChunkRecord(
            key=key, parent=entry.parent, size_bytes=entry.size_bytes, digest=entry.digest, position=entry.position
        )

    async def _converse(self) -> None:
        stub = control_pb2_grpc.CoordinatorStub(self._channel)
        try:
            async for message in stub.Attach(self._messages()):
                self._take(message)
                self._changed.set()
        except grpc.aio.AioRpcError as error:
            self.error = error
        finally:
            self.ended.set()
            self._changed.set()

    async def _messages(self) -> AsyncIterator[rpc.FromAgent]:
        while True:
            yield await self._outbox.get()

    def _take(self, message: rpc.ToAgent) -> None:
        self.refused += message.refusals.refused
        match message.WhichOneof("message"):
            case "welcome":
                self.welcome = message.welcome
                self._see(message.welcome.switch_state)
                self.say(announce=rpc.Announce(added=self.chunks.values(), snapshot=True, snapshot_end=True))
            case "directory":
                self._learn(message.directory)
            case "task":
                self.tasks.append(message.task)
                result = self.work(message.task)
                if result is not None:
                    self.say(task_result=result)
            case "cancel":
                self.cancelled.append(message.cancel.task)
            case "switch_state":
                self._see(message.switch_state)
            case "membership":
                self.member = message.membership.member if message.membership.HasField("member") else None
            case "operator_state":
                self.operator_state = message.operator_state

    def _see(self, switch: rpc.SwitchState) -> None:
        self.switch = switch
        if switch.here and self._address in CABLES:
            CABLES[self._address](self._hello, switch.here)

    def _learn(self, delta: rpc.DirectoryDelta) -> None:
        self.nodes |= {node.node: node for node in delta.nodes}
        if delta.snapshot:
            self._snapshot |= {entry.key: entry for entry in delta.chunks}
            if delta.snapshot_end:
                self.entries, self._snapshot, self._sequence = self._snapshot, {}, delta.sequence
            return
        assert self._sequence is not None, "a delta before the snapshot"
        assert delta.sequence == self._sequence + 1, "a gap in the sequence"
        self._sequence = delta.sequence
        self.entries |= {entry.key: entry for entry in delta.chunks}
        for gone in delta.chunks_gone:
            self.entries.pop(gone, None)


@contextlib.asynccontextmanager
async def agents(address: str, *chunks: Iterable[rpc.ChunkRecord], **changes: object) -> AsyncIterator[list[FakeAgent]]:
    """Agents n1, n2, ... that hold these chunks, attached; `changes` of what all of them say in Hello."""
    async with contextlib.AsyncExitStack() as stack:
        started = [
            await stack.enter_async_context(FakeAgent(address, at + 1, records, **changes))
            for at, records in enumerate(chunks)
        ]
        for agent in started:
            await agent.attached()
        yield started
