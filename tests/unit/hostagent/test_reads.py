"""Reliable reads: how long a served chunk stays pinned, how long an absent host is waited for."""

from __future__ import annotations

import asyncio
import socket

import pytest

from hostagent import limits
from hostagent.pool.memory import PoolMemory
from hostagent.transport.base import Extent, ReadOutcome, ReadRequest, TransportCounters
from hostagent.transport.read_client import ReadClient
from hostagent.transport.read_protocol import ANSWER, KIND_READ, RANGE, pack_request
from hostagent.transport.read_server import ReadServer
from kvproto.ids import ChunkKey

SMALL, LARGE = ChunkKey(b"s" * 16), ChunkKey(b"l" * 16)
SIZES = {SMALL: 100_000, LARGE: 31 << 20}
"""The large one is more than sockets hold."""


class Sink:
    """Offers both chunks, counts who has them open."""

    def __init__(self) -> None:
        self.open: list[ChunkKey] = []
        self.changed = asyncio.Event()

    def open_extent(self, key: ChunkKey) -> Extent:
        self.open.append(key)
        return Extent(0, SIZES[key], key)

    def close_extent(self, extent: Extent) -> None:
        assert isinstance(extent.token, bytes)
        self.open.remove(ChunkKey(extent.token))
        self.changed.set()


def test_a_chunk_is_let_go_when_the_peer_has_it_though_more_is_being_sent() -> None:
    async def scenario() -> None:
        memory, sink = PoolMemory(32 << 20, prefault=False), Sink()
        server = ReadServer(memory, sink, TransportCounters())  # type: ignore[arg-type]
        reader, writer = await asyncio.open_connection(*server.listen("127.0.0.1", 0), limit=1 << 17)
        for number, key in enumerate(SIZES):
            writer.write(pack_request(KIND_READ, number, RANGE.pack(0, SIZES[key], key)))
        await reader.readexactly(ANSWER.size + SIZES[SMALL])
        async with asyncio.timeout(10):
            while SMALL in sink.open:
                await sink.changed.wait()
        assert sink.open == [LARGE]
        await reader.readexactly(ANSWER.size + SIZES[LARGE])
        async with asyncio.timeout(10):
            while sink.open:
                sink.changed.clear()
                await sink.changed.wait()
        writer.close()
        server.close()
        memory.close()

    asyncio.run(scenario())


async def given_up(endpoint: tuple[str, int], stall_timeout_s: float) -> dict[str, int]:
    """What is counted when a read from there fails."""
    memory, counters = PoolMemory(1 << 20, prefault=False), TransportCounters()
    client = ReadClient(memory, counters, stall_timeout_s=stall_timeout_s)
    ended: asyncio.Future[ReadOutcome] = asyncio.get_running_loop().create_future()
    client.read(ReadRequest("{}:{}".format(*endpoint), SMALL, 0, 4096, 0, ended.set_result))
    async with asyncio.timeout(10):
        assert await ended is ReadOutcome.FAILED
    client.close()
    memory.close()
    return counters.dropped


def test_a_host_that_does_not_answer_is_given_up_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Long before a connection that merely stands still would be."""
    monkeypatch.setattr(limits, "READ_CONNECT_TIMEOUT_S", 0.05)
    with socket.create_server(("127.0.0.1", 0), backlog=0) as full:
        # Connections that nobody accepts fill the queue: the kernel answers no further SYN.
        waiting = [socket.socket() for _ in range(4)]
        for one in waiting:
            one.setblocking(False)
            one.connect_ex(full.getsockname())
        assert asyncio.run(given_up(full.getsockname(), 3600)) == {"read_unreachable": 1}
        for one in waiting:
            one.close()


def test_a_peer_that_takes_a_request_and_says_nothing_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "READ_CONNECT_TIMEOUT_S", 0.05)  # It looks first after so long.
    with socket.create_server(("127.0.0.1", 0)) as silent:
        assert asyncio.run(given_up(silent.getsockname(), 0.05)) == {"read_stalled": 1}


@pytest.mark.parametrize(("offset", "size_bytes"), [(0, 0), (0, -1), (-1, 10)])
def test_a_range_that_no_chunk_has_is_no_request(offset: int, size_bytes: int) -> None:
    with pytest.raises(ValueError, match=f"{size_bytes} bytes from byte {offset}"):
        ReadRequest("127.0.0.1:1", SMALL, offset, size_bytes, 0, print)
