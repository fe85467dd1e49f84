"""Reliable reads: how long a served chunk stays pinned, how long an absent host is waited for."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import pytest

from hostagent import limits
from hostagent.pool.memory import PoolMemory
from hostagent.transport.base import Extent, ReadOutcome, ReadRequest, TransportCounters
from hostagent.transport.read_client import ReadClient
from hostagent.transport.read_protocol import (
    ANSWER,
    HEAD,
    KIND_READ,
    RANGE,
    REQUEST_BYTES,
    STATUS_OK,
    load_of,
    number_with,
    pack_answer,
    pack_request,
    set_load,
    wanted_of,
)
from hostagent.transport.read_server import ReadServer
from kvpolicy.tiers.holder_load import IDLE, HolderLoad
from kvproto.ids import ChunkKey

SMALL, LARGE = ChunkKey(b"s" * 16), ChunkKey(b"l" * 16)
SIZES = {SMALL: 100_000, LARGE: 31 << 20}
"""The large one is more than sockets hold."""


class Sink:
    """Offers both chunks, counts who has them open."""

    def __init__(self) -> None:
        self.open: list[ChunkKey] = []
        self.changed = asyncio.Event()

    def casts_queued_bytes(self) -> int:
        return 0

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


def test_a_connection_that_stands_still_holds_up_only_the_reads_that_it_has(monkeypatch: pytest.MonkeyPatch) -> None:
    """A path that was broken and is whole again: TCP pauses for long on the old connection, never on a new one."""

    async def scenario() -> None:
        monkeypatch.setattr(limits, "READ_RENEW_S", 0)
        memory, counters = PoolMemory(1 << 20, prefault=False), TransportCounters()
        client = ReadClient(memory, counters, stall_timeout_s=3600)
        loop = asyncio.get_running_loop()
        ended: list[asyncio.Future[ReadOutcome]] = []
        with socket.create_server(("127.0.0.1", 0)) as holder:
            holder.setblocking(False)

            async def read() -> tuple[Any, socket.socket | None]:
                """A read, and the connection that the holder gets for it, if it is a new one."""
                ended.append(loop.create_future())
                endpoint = "{}:{}".format(*holder.getsockname())
                asked = client.read(ReadRequest(endpoint, SMALL, 0, 4, 0, ended[-1].set_result))
                try:
                    connection, _ = holder.accept()  # The kernel has made it, on loopback, before connect() returns.
                except BlockingIOError:
                    return asked, None
                connection.setblocking(False)
                async with asyncio.timeout(10):
                    await loop.sock_recv(connection, REQUEST_BYTES)
                return asked, connection

            cancelled, first = await read()
            _, second = await read()
            _, third = await read()
            assert first is not None and second is not None and third is not None
            _, fourth = await read()
            assert fourth is None, "two of its connections stand still already"
            # What nobody waits for ends at once ...
            cancelled.cancel()
            async with asyncio.timeout(10):
                assert await loop.sock_recv(first, 1) == b""
            # ... and what comes after all is taken, and its connection ends.
            second.sendall(pack_answer(STATUS_OK, number_with(1, 0), 4) + b"late")
            async with asyncio.timeout(10):
                assert await ended[1] is ReadOutcome.DONE
                assert await loop.sock_recv(second, 1) == b""
            for connection in (first, second, third):
                connection.close()
        client.close()
        async with asyncio.timeout(10):
            assert await asyncio.gather(*ended[2:]) == [ReadOutcome.FAILED] * 2
        memory.close()

    asyncio.run(scenario())


def test_a_holder_stops_sending_what_its_reader_has_given_up() -> None:
    """The connection ends with its last read, unless little is to come; the next read makes another."""

    async def scenario() -> None:
        memory, sink, counters = PoolMemory(32 << 20, prefault=False), Sink(), TransportCounters()
        server = ReadServer(memory, sink, counters)  # type: ignore[arg-type]
        endpoint = "{}:{}".format(*server.listen("127.0.0.1", 0))
        taken = TransportCounters()
        client = ReadClient(memory, taken, stall_timeout_s=10)
        begun, kept = asyncio.Event(), asyncio.Event()
        ends: list[ReadOutcome] = []

        def large(progressed: asyncio.Event) -> ReadRequest:
            return ReadRequest(endpoint, LARGE, 0, SIZES[LARGE], 0, ends.append, lambda _: progressed.set())

        def small(done: asyncio.Event) -> ReadRequest:
            return ReadRequest(endpoint, SMALL, 0, SIZES[SMALL], 0, lambda outcome: (ends.append(outcome), done.set()))

        async with asyncio.timeout(10):
            unwanted = client.read(large(begun))
            await begun.wait()
            client.read(small(kept))
            unwanted.cancel()
            await kept.wait()
            assert counters.read_bytes_sent == SIZES[LARGE] + SIZES[SMALL], "somebody waits behind it: it goes on"
            begun.clear()
            unwanted = client.read(large(begun))
            await begun.wait()
            unwanted.cancel()
            while sink.open:
                sink.changed.clear()
                await sink.changed.wait()
            assert taken.read_bytes_received < 2 * SIZES[LARGE]
            kept.clear()
            client.read(small(kept))
            await kept.wait()
        assert ends == [ReadOutcome.DONE] * 2
        client.close()
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


def test_a_reader_hears_the_holders_load_and_says_what_it_wants() -> None:
    async def scenario() -> None:
        requests: list[int] = []
        hung_up = asyncio.Event()

        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            _, _, _, _, request = HEAD.unpack((await reader.readexactly(REQUEST_BYTES))[: HEAD.size])
            requests.append(request)
            head = memoryview(bytearray(pack_answer(0, request, 10)))
            set_load(head, HolderLoad(5 << 30, 200))
            writer.write(bytes(head) + bytes(10))
            await reader.read()
            writer.close()
            hung_up.set()

        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        memory = PoolMemory(1 << 20, prefault=False)
        client = ReadClient(memory, TransportCounters(), stall_timeout_s=10)
        ended: asyncio.Future[ReadOutcome] = asyncio.get_running_loop().create_future()
        heard: list[HolderLoad] = []
        port = server.sockets[0].getsockname()[1]
        client.read(ReadRequest(f"127.0.0.1:{port}", SMALL, 0, 10, 0, ended.set_result, None, heard.append, 3 << 20))
        async with asyncio.timeout(10):
            assert await ended is ReadOutcome.DONE
        assert wanted_of(requests[0]) == pytest.approx(3 << 20, rel=0.03)
        assert (heard[0].readers, heard[0].queued_bytes) == (63, pytest.approx(5 << 30, rel=0.03))
        client.close()
        async with asyncio.timeout(10):
            await hung_up.wait()
        server.close()
        memory.close()

    asyncio.run(scenario())
