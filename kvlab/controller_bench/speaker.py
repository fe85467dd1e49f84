"""Agents that speak the protocol over real gRPC and hold nothing: many in one process.

Run as a program it reads its orders as lines of JSON and answers each with a line. What it says of itself it says as an
agent does: Hello, the whole list in columns, changes in columns by BATCH, heartbeats, claims. Its own work is kept
small, because it shares the machine with the controller that is measured: what it announces is made beforehand.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import AsyncIterator, Sequence
from typing import Any, Final

import grpc
import grpc.aio
import numpy as np

from kvchunk.ids import KEY_BYTES
from kvproto.chunk_columns import pack
from kvproto.integrity import Integrity, code_of
from kvproto.rpc import control_pb2 as rpc
from kvproto.rpc import control_pb2_grpc
from kvproto.rpc.versions import PROTOCOL

BATCH: Final = 256
"""Chunks of one announcement."""
CHAIN: Final = 64
"""Chunks of one prefix."""
CHUNK_BYTES: Final = 1 << 20
CLAIM_RUN: Final = 5000
CLAIM_MS: Final = 500_000
HEARTBEAT_S: Final = 1.0
ATTACH_AT_ONCE: Final = 32
"""From one address: a controller ends connections of which too many say nothing yet."""
POOL_BYTES: Final = 1 << 40
_OPTIONS: Final = [("grpc.max_receive_message_length", 64 << 20), ("grpc.enable_http_proxy", 0)]


def announcement(agent: int, first: int, count: int, namespace: str, *, whole: bool = False) -> rpc.Announce:
    """`count` chunks of an agent from number `first` on, in prefixes of CHAIN."""
    numbers = np.arange(first, first + count, dtype=np.uint64)
    keys = np.zeros((count, KEY_BYTES), np.uint8)
    keys[:, :8] = (numbers + 1).astype(">u8").view(np.uint8).reshape(-1, 8)
    keys[:, 8:16] = np.frombuffer((agent + 1).to_bytes(8, "big"), np.uint8)
    parents = np.zeros_like(keys)
    below = numbers % CHAIN != 0
    parents[below] = keys[below]
    parents[below, :8] = numbers[below].astype(">u8").view(np.uint8).reshape(-1, 8)
    digests = np.zeros((count, 33), np.uint8)
    digests[:, 0] = code_of(Integrity.BLAKE3)
    digests[:, 1:17] = keys
    said = rpc.Announce(namespaces=[namespace], snapshot=whole)
    pack(
        said.columns,
        keys=keys.tobytes(),
        parents=parents.tobytes(),
        digests=digests.tobytes(),
        sizes=np.full(count, CHUNK_BYTES, np.uint64),
        positions=(numbers % CHAIN).astype(np.uint32),
        namespace_indexes=np.zeros(count, np.uint32),
        flags=bytes(count),
    )
    return said


def key_of(agent: int, number: int) -> bytes:
    """The key of a chunk of an agent."""
    return (number + 1).to_bytes(8, "big") + (agent + 1).to_bytes(8, "big")


class Speaker:
    """One agent."""

    def __init__(self, number: int, namespace: str, channel: grpc.aio.Channel, *, follows: bool = False) -> None:
        """`follows`: it is told of nothing that it does not look up."""
        self.number = number
        self.namespace = namespace
        self.welcomed = asyncio.Event()
        self.has_snapshot = asyncio.Event()
        self.told_chunks = 0
        """Of the directory, in snapshots and changes."""
        self.refused = 0
        self.announced = 0
        self._outbox: asyncio.Queue[rpc.FromAgent] = asyncio.Queue()
        self._channel = channel
        self._follows = follows
        self._number = 0
        self._asked: dict[int, asyncio.Future[int]] = {}
        self._task = asyncio.create_task(self._converse())
        self._beat = asyncio.create_task(self._beat_heart())

    def say(self, **message: Any) -> None:
        """Send a message."""
        self._outbox.put_nowait(rpc.FromAgent(**message))

    @property
    def backlog(self) -> int:
        """Messages that wait to be sent."""
        return self._outbox.qsize()

    def hold(self, count: int) -> None:
        """Name the whole list of what it holds."""
        for first in range(0, count, BATCH):
            some = min(BATCH, count - first)
            self.say(announce=announcement(self.number, first, some, self.namespace, whole=True))
        self.say(announce=rpc.Announce(snapshot=True, snapshot_end=True))
        self.announced = count

    def claim(self, count: int) -> None:
        """Say that engines compute so many chunks."""
        for first in range(0, count, CLAIM_RUN):
            some = range(first, min(count, first + CLAIM_RUN))
            keys = [key_of(self.number, (1 << 40) + one) for one in some]
            run = rpc.Claim(keys=keys, size_bytes=CHUNK_BYTES, eta_ms=[CLAIM_MS] * len(keys))
            self.say(claims=rpc.Claims(made=[run]))

    async def until_snapshot(self) -> None:
        """Return when it has one. Raises AioRpcError where its stream ends before."""
        waiting = asyncio.create_task(self.has_snapshot.wait())
        await asyncio.wait((waiting, self._task), return_when=asyncio.FIRST_COMPLETED)
        if not waiting.done():
            waiting.cancel()
            self._task.result()
            raise RuntimeError(f"the controller ended the stream of agent {self.number}")

    async def look_up(self, keys: bytes, released: bytes = b"") -> int:
        """Ask for chunks; how many of them somebody has."""
        number = self._number = self._number + 1
        answer: asyncio.Future[int]
        answer = self._asked[number] = asyncio.get_running_loop().create_future()
        self.say(look_up=rpc.LookUp(number=number, keys=keys, released=released))
        return await answer

    async def close(self) -> None:
        """End the stream."""
        self._beat.cancel()
        self._task.cancel()
        await asyncio.gather(self._beat, self._task, return_exceptions=True)

    async def _beat_heart(self) -> None:
        await self.welcomed.wait()
        while True:
            self.say(heartbeat=rpc.Heartbeat(pool_used_bytes=self.announced * CHUNK_BYTES))
            await asyncio.sleep(HEARTBEAT_S)

    async def _messages(self) -> AsyncIterator[rpc.FromAgent]:
        yield rpc.FromAgent(hello=self._hello())
        while True:
            yield await self._outbox.get()

    def _hello(self) -> rpc.Hello:
        return rpc.Hello(
            node=f"bench-{self.number:05}",
            incarnation=time.time_ns(),
            data_ip=(0x0A000000 + self.number + 1).to_bytes(4, "big"),
            data_mac=(0x020000000000 + self.number + 1).to_bytes(6, "big"),
            read_endpoint="127.0.0.1:1",
            control_port=9000,
            pool_bytes=POOL_BYTES,
            integrities=[rpc.Integrity.ValueType(code_of(Integrity.BLAKE3))],
            protocol=PROTOCOL,
            takes_columns=True,
            follows=self._follows,
            interests=rpc.Interests(namespaces=[self.namespace], all=self._follows),
        )

    async def _converse(self) -> None:
        call = control_pb2_grpc.CoordinatorStub(self._channel).Attach(self._messages())
        async for message in call:
            kind = message.WhichOneof("message")
            if kind == "directory":
                self.told_chunks += len(message.directory.columns.keys) // KEY_BYTES + len(message.directory.chunks)
                if message.directory.snapshot_end:
                    self.has_snapshot.set()
            elif kind == "looked_up" and (answer := self._asked.pop(message.looked_up.number, None)) is not None:
                answer.set_result(len(message.looked_up.found.columns.keys) // KEY_BYTES)
            elif kind == "welcome":
                self.welcomed.set()
            elif kind == "refusals":
                self.refused += sum(one.count for one in message.refusals.refused)


class Process:
    """The agents of one process, and what is asked of them."""

    def __init__(self, address: str, numbers: Sequence[int], followers: int) -> None:
        self._address = address
        self._numbers = numbers
        self._followers = followers
        self._channels: list[grpc.aio.Channel] = []
        self._agents: list[Speaker] = []

    async def attach(self, numbers: Sequence[int] | None = None) -> dict[str, Any]:
        """Open the streams; seconds until the last has its snapshot."""
        began_s = time.monotonic()
        agents = []
        wanted = self._numbers if numbers is None else numbers
        for at in range(0, len(wanted), ATTACH_AT_ONCE):
            some = [self._agent(number) for number in wanted[at : at + ATTACH_AT_ONCE]]
            agents += some
            await asyncio.gather(*(agent.until_snapshot() for agent in some))
        self._agents += agents
        return {"seconds": time.monotonic() - began_s, "told": sum(agent.told_chunks for agent in agents)}

    def _agent(self, number: int) -> Speaker:
        """With a connection of its own, as agents have."""
        channel = grpc.aio.insecure_channel(
            self._address, options=[*_OPTIONS, ("grpc.use_local_subchannel_pool", 1), ("bench.agent", number)]
        )
        self._channels.append(channel)
        return Speaker(number, f"group-{number // self._followers}", channel)

    async def hold(self, count: int) -> dict[str, Any]:
        """Each names `count` chunks."""
        for agent in self._agents:
            agent.hold(count)
            while agent.backlog > BATCH:
                await asyncio.sleep(0.01)
        return {}

    async def claim(self, count: int) -> dict[str, Any]:
        """Each claims `count` chunks."""
        for agent in self._agents:
            agent.claim(count)
        return {}

    async def announce(self, per_s: float, seconds: float) -> dict[str, Any]:
        """Announce new chunks, `per_s` in all; more wait in the streams where the controller does not take them."""
        pause_s, began_s, said = BATCH / per_s, time.monotonic(), 0
        ready = [announcement(agent.number, agent.announced, BATCH, agent.namespace) for agent in self._agents]
        while (elapsed_s := time.monotonic() - began_s) < seconds:
            while said * pause_s < elapsed_s:
                at = said % len(self._agents)
                agent = self._agents[at]
                if agent.backlog < 4:
                    agent.say(announce=ready[at])
                    agent.announced += BATCH
                    ready[at] = announcement(agent.number, agent.announced, BATCH, agent.namespace)
                said += 1
            await asyncio.sleep(pause_s / 4)
        return {"announced": sum(agent.announced for agent in self._agents)}

    async def counts(self) -> dict[str, Any]:
        """What was told and refused so far."""
        return {
            "told": sum(agent.told_chunks for agent in self._agents),
            "refused": sum(agent.refused for agent in self._agents),
            "backlog": sum(agent.backlog for agent in self._agents),
            "announced": sum(agent.announced for agent in self._agents),
        }

    async def close(self) -> dict[str, Any]:
        """End all streams."""
        await asyncio.gather(*(agent.close() for agent in self._agents))
        await asyncio.gather(*(channel.close(None) for channel in self._channels))
        return {}


async def _serve() -> None:
    """Take orders until the input ends."""
    reader = asyncio.StreamReader(limit=1 << 20)
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    start = json.loads(await reader.readline())
    process = Process(start["address"], start["numbers"], start["followers"])
    while line := await reader.readline():
        order = json.loads(line)
        answer = await getattr(process, order.pop("do"))(**order)
        print(json.dumps(answer), flush=True)
    await process.close()


if __name__ == "__main__":
    asyncio.run(_serve())
