"""A coordinator that follows a script over real gRPC, and the stage that it stands on."""

from __future__ import annotations

import queue
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Any

import grpc.aio

from kvproto.rpc import control_pb2 as pb
from kvproto.rpc import control_pb2_grpc as rpc
from tests.ports import free_port
from tests.unit.hostagent.agent_harness import Cluster, cluster

WAIT_S = 20.0


class Script(rpc.CoordinatorServicer):
    """Says what the test says, and keeps what agents say."""

    def __init__(self, made: Cluster) -> None:
        self._made = made
        self.heard: dict[str, queue.Queue[pb.FromAgent]] = {}
        self.on_standby = False
        self.refused_count = 0
        self._out: dict[str, Any] = {}

    async def Attach(self, requests: AsyncIterator[pb.FromAgent], context: Any) -> AsyncIterator[pb.ToAgent]:
        import asyncio

        hello = (await anext(requests)).hello
        if self.on_standby:
            self.refused_count += 1
            await context.abort(grpc.StatusCode.UNAVAILABLE, "this controller is on standby")
        heard = self.heard.setdefault(hello.node, queue.Queue())
        out: asyncio.Queue[pb.ToAgent | None] = asyncio.Queue()
        self._out[hello.node] = out
        heard.put(pb.FromAgent(hello=hello))

        async def listen() -> None:
            async for message in requests:
                heard.put(message)
            out.put_nowait(None)

        listener = asyncio.ensure_future(listen())
        while (message := await out.get()) is not None:
            yield message
        listener.cancel()

    def say(self, node: str, message: pb.ToAgent) -> None:
        self._made.call(lambda: self._out[node].put_nowait(message))

    def hang_up(self, node: str) -> None:
        self._made.call(lambda: self._out[node].put_nowait(None))

    def hear(self, node: str, kind: str) -> Any:
        """The next message of a kind; heartbeats and what else comes between are skipped."""
        while True:
            message = self.heard[node].get(timeout=WAIT_S)
            if message.WhichOneof("message") == kind:
                return getattr(message, kind)

    def attach(self, node: str, number: int, *, controller: int = 1, member: int | None = None) -> Any:
        """Take a Hello, answer Welcome and an empty snapshot; the Hello."""
        while node not in self.heard:
            self._made.call(lambda: None)
        hello = self.hear(node, "hello")
        welcome = pb.Welcome(
            node=number,
            controller=controller,
            heartbeat_ms=50,
            fabric=pb.Fabric(segment_bytes=4096, integrity=pb.INTEGRITY_BLAKE3),
        )
        if member is not None:
            welcome.member = member
        self.say(node, pb.ToAgent(welcome=welcome))
        self.say(node, delta(snapshot=True, snapshot_end=True))
        return hello


def delta(sequence: int = 0, **content: Any) -> pb.ToAgent:
    return pb.ToAgent(directory=pb.DirectoryDelta(sequence=sequence, **content))


def task(number: int, **work: Any) -> pb.ToAgent:
    return pb.ToAgent(task=pb.Task(task=number, timeout_ms=10_000, **work))


class Stage:
    """A cluster, and a script behind a real port that can be taken down and set up again."""

    def __init__(self, made: Cluster, host: str = "127.0.0.1", port: int = 0) -> None:
        self.made = made
        self.port = port or free_port()
        self.address = f"{host}:{self.port}"
        self.script = Script(made)
        self._server: Any = None

    def open(self) -> None:
        async def start() -> Any:
            server = grpc.aio.server()
            rpc.add_CoordinatorServicer_to_server(self.script, server)
            server.add_insecure_port(self.address)
            await server.start()
            return server

        self._server = self.made.do(start())

    def close(self) -> None:
        if self._server is not None:
            self.made.do(self._server.stop(None))
            self._server = None


@contextmanager
def staged() -> Iterator[Stage]:
    """A stage without agents, open; whatever agents it has in the end are stopped before it closes."""
    with cluster(0) as made:
        stage = Stage(made)
        stage.open()
        try:
            yield stage
        finally:
            for _, client in made.clients:
                client.close()
            for agent in made.agents:
                made.do(agent.stop())
            made.agents.clear()
            stage.close()
