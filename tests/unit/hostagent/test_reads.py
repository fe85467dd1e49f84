"""The serving end of reliable reads: how long a chunk stays pinned."""

from __future__ import annotations

import asyncio

from hostagent.pool.memory import PoolMemory
from hostagent.transport.base import Extent, TransportCounters
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
