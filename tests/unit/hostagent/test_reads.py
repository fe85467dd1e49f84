"""Reliable reads: how long a served chunk stays pinned, how long an absent host is waited for."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Sequence

import pytest

from hostagent import limits
from hostagent.memory.pool_memory import PoolMemory
from hostagent.transport.base import Extent, ReadRequest, TransportCounters
from hostagent.transport.read_protocol import (
    ANSWER,
    KIND_READ,
    RANGE,
    load_of,
    number_with,
    pack_request,
)
from hostagent.transport.read_server import ReadServer
from kvchunk.ids import ChunkKey
from kvpolicy.tiers.holder_load import IDLE

SMALL, LARGE = ChunkKey(b"s" * 16), ChunkKey(b"l" * 16)
SIZES = {SMALL: 100_000, LARGE: 31 << 20}
"""The large one is more than sockets hold."""


class Sink:
    """Offers both chunks, counts who has them open."""

    def __init__(self) -> None:
        self.open: list[ChunkKey] = []
        self.read: list[ChunkKey] = []
        """Those whose first bytes somebody asked for."""
        self.changed = asyncio.Event()

    def casts_queued_bytes(self) -> int:
        return 0

    def open_extent(self, key: ChunkKey) -> Extent:
        self.open.append(key)
        return Extent(0, SIZES[key], key)

    def relays(self) -> None: ...

    def peers_read(self, keys: Sequence[ChunkKey]) -> None:
        self.read += keys

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
        assert sink.read == [SMALL, LARGE]
        await reader.readexactly(ANSWER.size + SIZES[LARGE])
        async with asyncio.timeout(10):
            while sink.open:
                sink.changed.clear()
                await sink.changed.wait()
        writer.close()
        server.close()
        memory.close()

    asyncio.run(scenario())


def test_a_peer_that_takes_in_nothing_is_cut_off_and_holds_nothing() -> None:
    async def scenario() -> None:
        memory, sink, counters = PoolMemory(32 << 20, prefault=False), Sink(), TransportCounters()
        server = ReadServer(memory, sink, counters, stall_timeout_s=0.05)  # type: ignore[arg-type]
        with socket.create_connection(server.listen("127.0.0.1", 0)) as silent:
            silent.sendall(pack_request(KIND_READ, 1, RANGE.pack(0, SIZES[LARGE], LARGE)))
            async with asyncio.timeout(10):
                await sink.changed.wait()  # opened, and let go again
        assert counters.dropped == {"read_peer_stalled": 1}
        assert not sink.open
        server.close()
        memory.close()

    asyncio.run(scenario())


class Arriving(Sink):
    """The large chunk is on its way here, and all of it is proven."""

    def __init__(self) -> None:
        super().__init__()
        self.is_here = False

    def open_extent(self, key: ChunkKey) -> Extent | None:  # type: ignore[override]
        return super().open_extent(key) if self.is_here else None

    def relays(self) -> Arriving:  # type: ignore[override]
        return self

    def open_part(self, key: ChunkKey, _offset: int, _size_bytes: int) -> Extent:
        self.open.append(key)
        return Extent(0, SIZES[key], key, arriving=key)


@pytest.mark.parametrize("is_here", [False, True])
def test_nothing_leaves_of_a_chunk_that_came_to_nothing_while_a_peer_read_it(*, is_here: bool) -> None:
    """Others may write to its memory from then on."""

    async def scenario() -> None:
        memory, sink = PoolMemory(32 << 20, prefault=False), Arriving()
        server = ReadServer(memory, sink, TransportCounters())  # type: ignore[arg-type]
        reader, writer = await asyncio.open_connection(*server.listen("127.0.0.1", 0), limit=1 << 17)
        writer.write(pack_request(KIND_READ, 1, RANGE.pack(0, SIZES[LARGE], LARGE)))
        await reader.readexactly(ANSWER.size + 1000)
        sink.is_here = is_here
        server.hide(SMALL)
        assert sink.open == [LARGE]
        server.hide(LARGE)
        assert sink.open == ([LARGE] if is_here else [])
        if is_here:
            await reader.readexactly(SIZES[LARGE] - 1000)
        else:
            with pytest.raises((asyncio.IncompleteReadError, ConnectionResetError)):
                await reader.readexactly(SIZES[LARGE] - 1000)
        writer.close()
        server.close()
        memory.close()

    asyncio.run(scenario())


def test_connections_of_one_peer_shut_nobody_out() -> None:
    """The one idle for longest ends when another comes; those at work stay."""

    async def scenario() -> None:
        memory, sink, counters = PoolMemory(32 << 20, prefault=False), Sink(), TransportCounters()
        server = ReadServer(memory, sink, counters)  # type: ignore[arg-type]
        address = server.listen("127.0.0.1", 0)
        at_work = socket.create_connection(address)
        at_work.sendall(pack_request(KIND_READ, 1, RANGE.pack(0, SIZES[LARGE], LARGE)))
        async with asyncio.timeout(10):
            while not sink.open:
                await asyncio.sleep(0)
            many = 3 * limits.READ_CONNECTIONS_PER_PEER_MAX
            idle = [await asyncio.open_connection(*address) for _ in range(many)]
            ended = many - (limits.READ_CONNECTIONS_PER_PEER_MAX - 1)
            for reader, _ in idle[:ended]:
                with pytest.raises(ConnectionResetError):
                    await reader.readexactly(1)
        assert counters.dropped == {"read_idle_ended": ended}
        assert sink.open == [LARGE]
        reader, writer = idle[-1]
        writer.write(pack_request(KIND_READ, 1, RANGE.pack(0, SIZES[SMALL], SMALL)))
        async with asyncio.timeout(10):
            await reader.readexactly(ANSWER.size + SIZES[SMALL])
        at_work.close()
        for _, writer in idle:
            writer.close()
        server.close()
        memory.close()

    asyncio.run(scenario())


@pytest.mark.parametrize(("offset", "size_bytes"), [(0, 0), (0, -1), (-1, 10)])
def test_a_range_that_no_chunk_has_is_no_request(offset: int, size_bytes: int) -> None:
    with pytest.raises(ValueError, match=f"{size_bytes} bytes from byte {offset}"):
        ReadRequest("127.0.0.1:1", SMALL, offset, size_bytes, 0, print)


def test_an_answer_says_what_others_want_of_the_holder_to_who_understands_it() -> None:
    async def scenario() -> None:
        memory, sink, counters = PoolMemory(32 << 20, prefault=False), Sink(), TransportCounters()
        server = ReadServer(memory, sink, counters)  # type: ignore[arg-type]
        address = server.listen("127.0.0.1", 0)
        busy, busy_writer = await asyncio.open_connection(*address, limit=1 << 16)
        wanted_bytes = 100 << 20
        number = number_with(7, wanted_bytes)
        busy_writer.write(pack_request(KIND_READ, number, RANGE.pack(0, SIZES[LARGE], LARGE)))
        head = ANSWER.unpack(await busy.readexactly(ANSWER.size))
        assert (head[3], head[4]) == (0, number), "nobody else wants anything"
        assert counters.readers_served == 1
        assert 60 << 20 < counters.reads_queued_bytes < 1.03 * wanted_bytes, "less what the socket took"
        reader, writer = await asyncio.open_connection(*address)
        for request in (number_with(1, 0), 1):
            writer.write(pack_request(KIND_READ, request, RANGE.pack(0, 10, SMALL)))
        answers = [await reader.readexactly(ANSWER.size + 10) for _ in range(2)]
        told, untold = (load_of(ANSWER.unpack_from(answer)[3]) for answer in answers)
        assert told.readers == 1
        assert told.queued_bytes == pytest.approx(counters.reads_queued_bytes, rel=0.05)
        assert untold is IDLE, "an agent that does not know of it takes the field for nonsense"
        busy_writer.transport.abort()
        async with asyncio.timeout(10):
            while counters.readers_served:
                await asyncio.sleep(0)
        assert counters.reads_queued_bytes == 0
        writer.close()
        server.close()
        memory.close()

    asyncio.run(scenario())
