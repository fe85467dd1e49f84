"""Reliable reads as the one who asks sees them."""

from __future__ import annotations

import asyncio
import functools
import os
import socket
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from hostagent import limits
from hostagent.memory.pool_memory import PoolMemory
from hostagent.native.library import datapath
from hostagent.transport.base import Proof, ReadOutcome, ReadRequest, TransportCounters
from hostagent.transport.native_pulls import NativePulls
from hostagent.transport.read_client import ReadClient
from hostagent.transport.read_protocol import (
    ANSWER,
    HEAD,
    MAGIC,
    RANGE,
    REQUEST_BYTES,
    STATUS_ABSENT,
    STATUS_OK,
    VERSION,
    number_with,
    pack_answer,
    set_load,
    wanted_of,
)
from hostagent.transport.read_server import ReadServer
from hostagent.tree import PIECE_BYTES, leaves_of
from kvpolicy.tiers.holder_load import HolderLoad
from tests.unit.hostagent.test_reads import LARGE, SIZES, SMALL, Sink

MakeClient = Callable[..., ReadClient]


def threads() -> set[str]:
    """Of this process. Those of earlier tests may still end."""
    return set(os.listdir("/proc/self/task"))


def client_of(memory: PoolMemory, counters: TransportCounters, *, stall_timeout_s: float = 3600) -> ReadClient:
    pulls = NativePulls(datapath(), asyncio.get_running_loop())
    return ReadClient(memory, counters, pulls, stall_timeout_s=stall_timeout_s)


@pytest.fixture
def make_client(monkeypatch: pytest.MonkeyPatch) -> MakeClient:
    """Of a client with one connection to a peer for reads of any size."""
    monkeypatch.setattr(limits, "READ_SMALL_BYTES_MAX", 0)
    return client_of


async def given_up(make_client: MakeClient, endpoint: tuple[str, int], stall_timeout_s: float) -> dict[str, int]:
    """What is counted when a read from there fails."""
    memory, counters = PoolMemory(1 << 20, prefault=False), TransportCounters()
    client = make_client(memory, counters, stall_timeout_s=stall_timeout_s)
    ended: asyncio.Future[ReadOutcome] = asyncio.get_running_loop().create_future()
    client.read(ReadRequest("{}:{}".format(*endpoint), SMALL, 0, 4096, 0, ended.set_result))
    async with asyncio.timeout(10):
        assert await ended is ReadOutcome.FAILED
    client.close()
    memory.close()
    return counters.dropped


def test_a_host_that_does_not_answer_is_given_up_soon(make_client: MakeClient, monkeypatch: pytest.MonkeyPatch) -> None:
    """Long before a connection that merely stands still would be."""
    monkeypatch.setattr(limits, "READ_CONNECT_TIMEOUT_S", 0.05)
    with socket.create_server(("127.0.0.1", 0), backlog=0) as full:
        # Connections that nobody accepts fill the queue: the kernel answers no further SYN.
        waiting = [socket.socket() for _ in range(4)]
        for one in waiting:
            one.setblocking(False)
            one.connect_ex(full.getsockname())
        assert asyncio.run(given_up(make_client, full.getsockname(), 3600)) == {"read_unreachable": 1}
        for one in waiting:
            one.close()


def test_a_peer_that_takes_a_request_and_says_nothing_is_given_up(
    make_client: MakeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "READ_CONNECT_TIMEOUT_S", 0.05)  # It looks first after so long.
    with socket.create_server(("127.0.0.1", 0)) as silent:
        assert asyncio.run(given_up(make_client, silent.getsockname(), 0.05)) == {"read_stalled": 1}


def test_a_connection_that_stands_still_holds_up_only_the_reads_that_it_has(
    make_client: MakeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A path that was broken and is whole again: TCP pauses for long on the old connection, never on a new one."""

    async def scenario() -> None:
        monkeypatch.setattr(limits, "READ_RENEW_S", 0)
        memory, counters = PoolMemory(1 << 20, prefault=False), TransportCounters()
        client = make_client(memory, counters, stall_timeout_s=3600)
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


def test_a_holder_stops_sending_what_its_reader_has_given_up(make_client: MakeClient) -> None:
    """The connection ends with its last read, unless little is to come; the next read makes another."""

    async def scenario() -> None:
        memory, sink, counters = PoolMemory(32 << 20, prefault=False), Sink(), TransportCounters()
        server = ReadServer(memory, sink, counters)  # type: ignore[arg-type]
        endpoint = "{}:{}".format(*server.listen("127.0.0.1", 0))
        taken = TransportCounters()
        client = make_client(memory, taken, stall_timeout_s=10)
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


def test_a_reader_hears_the_holders_load_and_says_what_it_wants(make_client: MakeClient) -> None:
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
        client = make_client(memory, TransportCounters(), stall_timeout_s=10)
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


class Peer:
    """A holder that answers what the test says, byte by byte if need be."""

    def __init__(self, make_client: MakeClient) -> None:
        self.memory, self.counters = PoolMemory(1 << 20, prefault=False), TransportCounters()
        self.memory.bytes_[:] = 0xEE
        self.client = make_client(self.memory, self.counters)
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.endpoint = "{}:{}".format(*self.listener.getsockname())
        self.connection: socket.socket | None = None
        self.outcomes: list[tuple[int, ReadOutcome]] = []
        self.progress: list[tuple[int, int]] = []
        self.changed = asyncio.Event()

    def ask(self, name: int, size_bytes: int, pool_offset: int) -> Any:
        def done(outcome: ReadOutcome) -> None:
            self.outcomes.append((name, outcome))
            self.changed.set()

        def progressed(have_bytes: int) -> None:
            self.progress.append((name, have_bytes))
            self.changed.set()

        return self.client.read(ReadRequest(self.endpoint, SMALL, 0, size_bytes, pool_offset, done, progressed))

    async def requests(self, count: int) -> list[int]:
        """The numbers of the next so many requests."""
        loop = asyncio.get_running_loop()
        if self.connection is None:
            self.connection, _ = self.listener.accept()
            self.connection.setblocking(False)
        received = b""
        while len(received) < count * REQUEST_BYTES:
            received += await loop.sock_recv(self.connection, count * REQUEST_BYTES - len(received))
        return [HEAD.unpack_from(received, at)[4] for at in range(0, len(received), REQUEST_BYTES)]

    async def send(self, content: bytes) -> None:
        assert self.connection is not None
        await asyncio.get_running_loop().sock_sendall(self.connection, content)

    async def until(self, holds: Callable[[], bool]) -> None:
        async with asyncio.timeout(20):
            while not holds():
                self.changed.clear()
                await self.changed.wait()

    async def has_hung_up(self) -> bool:
        assert self.connection is not None
        async with asyncio.timeout(20):
            try:
                return await asyncio.get_running_loop().sock_recv(self.connection, 1) == b""
            except ConnectionResetError:
                return True

    def close(self) -> None:
        self.client.close()
        self.listener.close()
        if self.connection is not None:
            self.connection.close()
        self.memory.close()


def play(make_client: MakeClient, scenario: Callable[[Peer], Any]) -> None:
    async def run() -> None:
        peer = Peer(make_client)
        try:
            async with asyncio.timeout(60):
                await scenario(peer)
        finally:
            peer.close()

    asyncio.run(run())


def test_answers_are_taken_in_however_the_network_cuts_them(make_client: MakeClient) -> None:
    """Byte by byte, and many in one packet; next to them nothing is written."""

    async def scenario(peer: Peer) -> None:
        sizes = [1, 700, 3]
        for name, size_bytes in enumerate(sizes):
            peer.ask(name, size_bytes, 4096 * (name + 1))
        numbers = await peer.requests(3)
        answers = b"".join(
            pack_answer(STATUS_OK, number, size_bytes) + bytes([name]) * size_bytes
            for name, (number, size_bytes) in enumerate(zip(numbers, sizes, strict=True))
        )
        for at in range(60):
            await peer.send(answers[at : at + 1])
        await peer.send(answers[60:])
        await peer.until(lambda: len(peer.outcomes) == 3)
        assert peer.outcomes == [(name, ReadOutcome.DONE) for name in range(3)]
        wanted = bytearray(b"\xee" * 20000)
        for name, size_bytes in enumerate(sizes):
            wanted[4096 * (name + 1) : 4096 * (name + 1) + size_bytes] = bytes([name]) * size_bytes
        assert bytes(peer.memory.bytes_[:20000]) == bytes(wanted)
        assert peer.counters.read_bytes_received == sum(sizes)

    play(make_client, scenario)


def test_a_few_requests_are_on_the_wire_and_the_others_follow_in_order(make_client: MakeClient) -> None:
    async def scenario(peer: Peer) -> None:
        many = 3 * limits.READS_PER_PEER_MAX
        for name in range(many):
            peer.ask(name, 8, 4096 * name)
        first = await peer.requests(limits.READS_PER_PEER_MAX)
        assert peer.connection is not None
        with pytest.raises(BlockingIOError):
            peer.connection.recv(1)
        rest = []
        for number in first:
            await peer.send(pack_answer(STATUS_OK, number, 8) + bytes(8))
            rest += await peer.requests(1)
        for number in rest:
            await peer.send(pack_answer(STATUS_OK, number, 8) + bytes(8))
        for number in await peer.requests(many - len(first) - len(rest)):
            await peer.send(pack_answer(STATUS_OK, number, 8) + bytes(8))
        await peer.until(lambda: len(peer.outcomes) == many)
        assert peer.outcomes == [(name, ReadOutcome.DONE) for name in range(many)]

    play(make_client, scenario)


def test_what_was_cancelled_is_thrown_away_as_it_comes(make_client: MakeClient) -> None:
    async def scenario(peer: Peer) -> None:
        unwanted, _ = peer.ask(0, 60_000, 0), peer.ask(1, 5, 100_000)
        not_sent = [peer.ask(name, 5, 200_000) for name in range(2, 2 + limits.READS_PER_PEER_MAX)]
        numbers = await peer.requests(limits.READS_PER_PEER_MAX)
        await peer.send(pack_answer(STATUS_OK, numbers[0], 60_000) + b"a" * 30_000)
        while peer.memory.bytes_[29_999] != ord("a"):
            await asyncio.sleep(0)
        unwanted.cancel()
        for read in not_sent:
            read.cancel()
        await peer.send(b"b" * 30_000 + pack_answer(STATUS_OK, numbers[1], 5) + b"right")
        await peer.until(lambda: bool(peer.outcomes))
        assert peer.outcomes == [(1, ReadOutcome.DONE)]
        assert bytes(peer.memory.bytes_[100_000:100_005]) == b"right"
        assert (peer.memory.bytes_[30_000:60_000] == 0xEE).all(), "nothing is written where the read was cancelled"

    play(make_client, scenario)


@pytest.mark.parametrize(
    ("answer", "counted"),
    [
        (lambda number: ANSWER.pack(MAGIC, VERSION, STATUS_OK, 0, number + 1, 8), "read_answer_malformed"),
        (lambda number: ANSWER.pack(MAGIC, VERSION, STATUS_OK, 0, number, 9), "read_answer_malformed"),
        (lambda number: ANSWER.pack(MAGIC ^ 1, VERSION, STATUS_OK, 0, number, 8), "read_answer_malformed"),
        (lambda number: ANSWER.pack(MAGIC, VERSION + 1, STATUS_OK, 0, number, 8), "read_version_other"),
        (lambda number: ANSWER.pack(MAGIC, VERSION, 4, 0, number, 0), "read_refused_no_token"),
    ],
)
def test_a_peer_that_makes_no_sense_or_refuses_is_left(
    make_client: MakeClient, answer: Callable[[int], bytes], counted: str
) -> None:
    async def scenario(peer: Peer) -> None:
        peer.ask(0, 8, 0)
        peer.ask(1, 8, 4096)
        numbers = await peer.requests(2)
        await peer.send(answer(numbers[0]) + b"12345678")
        await peer.until(lambda: len(peer.outcomes) == 2)
        assert dict(peer.outcomes) == {0: ReadOutcome.FAILED, 1: ReadOutcome.FAILED}
        assert peer.counters.dropped == {counted: 1}
        assert (peer.memory.bytes_[:8192] == 0xEE).all()
        assert await peer.has_hung_up()

    play(make_client, scenario)


def test_a_chunk_that_is_not_there_ends_that_read_alone(make_client: MakeClient) -> None:
    async def scenario(peer: Peer) -> None:
        for name in range(2):
            peer.ask(name, 8, 4096 * name)
        numbers = await peer.requests(2)
        await peer.send(pack_answer(STATUS_ABSENT, numbers[0], 0) + pack_answer(STATUS_OK, numbers[1], 8) + b"12345678")
        await peer.until(lambda: len(peer.outcomes) == 2)
        assert peer.outcomes == [(0, ReadOutcome.ABSENT), (1, ReadOutcome.DONE)]

    play(make_client, scenario)


def test_a_large_read_tells_of_its_progress_and_fails_with_its_connection(make_client: MakeClient) -> None:
    async def scenario(peer: Peer) -> None:
        size_bytes = 2 * limits.READ_PROGRESS_BYTES
        peer.memory.close()
        peer.memory = PoolMemory(2 * size_bytes, prefault=False)
        peer.client.close()
        peer.client = make_client(peer.memory, peer.counters)
        peer.ask(0, size_bytes, 0)
        (number,) = await peer.requests(1)
        await peer.send(pack_answer(STATUS_OK, number, size_bytes) + bytes(size_bytes - 1))
        await peer.until(lambda: bool(peer.progress) and peer.progress[-1][1] >= limits.READ_PROGRESS_BYTES)
        assert peer.connection is not None
        peer.connection.close()
        await peer.until(lambda: bool(peer.outcomes))
        assert peer.outcomes == [(0, ReadOutcome.FAILED)]
        assert all(0 < have_bytes < size_bytes for _, have_bytes in peer.progress)
        assert peer.counters.reads_failed == 1

    play(make_client, scenario)


def test_a_small_read_waits_for_no_large_one() -> None:
    """It has a connection of its own."""

    async def scenario() -> None:
        memory, counters = PoolMemory(64 << 20, prefault=False), TransportCounters()
        with socket.create_server(("127.0.0.1", 0)) as holder:
            endpoint = "{}:{}".format(*holder.getsockname())
            client = client_of(memory, counters)
            ended: list[str] = []
            done = asyncio.Event()
            client.read(ReadRequest(endpoint, LARGE, 0, SIZES[LARGE], 0, lambda _: ended.append("large")))
            small = ReadRequest(
                endpoint, SMALL, 0, 8, 40 << 20, lambda outcome: (ended.append(outcome.value), done.set())
            )
            client.read(small)
            loop = asyncio.get_running_loop()
            asked: list[int] = []
            connections = []
            async with asyncio.timeout(20):
                for _ in range(2):
                    connection, _ = await asyncio.to_thread(holder.accept)
                    connection.setblocking(False)
                    connections.append(connection)
                    request = await loop.sock_recv(connection, REQUEST_BYTES)
                    number, size_bytes = HEAD.unpack_from(request)[4], RANGE.unpack_from(request, HEAD.size)[1]
                    asked.append(size_bytes)
                    if size_bytes == 8:
                        await loop.sock_sendall(connection, pack_answer(STATUS_OK, number, 8) + bytes(8))
                await done.wait()
            assert sorted(asked) == [8, SIZES[LARGE]]
            assert ended == ["done"]
            client.close()
            for connection in connections:
                connection.close()
        memory.close()

    asyncio.run(scenario())


def test_reads_are_hashed_on_their_way(make_client: MakeClient) -> None:
    """Several at a time, of whole pieces and with a short one at the end; what is cancelled is told by nobody."""

    async def scenario() -> None:
        memory, sink = PoolMemory(64 << 20, prefault=False), Sink()
        held = SIZES[LARGE]
        memory.bytes_[:held] = np.random.default_rng(7).integers(0, 256, held, np.uint8)
        server = ReadServer(memory, sink, TransportCounters())  # type: ignore[arg-type]
        endpoint = "{}:{}".format(*server.listen("127.0.0.1", 0))
        client = make_client(memory, TransportCounters(), stall_timeout_s=10)
        piece = PIECE_BYTES
        ranges = [(0, piece), (0, 20 << 20), (3 * piece, piece + 1), (5 * piece, 1), (0, held)]
        proofs = [Proof() for _ in ranges]
        for turn in range(2):
            loop, reads = asyncio.get_running_loop(), []
            ends: list[asyncio.Future[ReadOutcome]] = [loop.create_future() for _ in ranges]
            for (offset, count), ended, proof in zip(ranges, ends, proofs, strict=True):
                memory.bytes_[32 << 20 :] = 0
                request = ReadRequest(endpoint, LARGE, offset, count, 32 << 20, ended.set_result, proof=proof)
                reads.append(client.read(request))
                if turn:
                    reads.pop(0).cancel()
                    ended.set_result(ReadOutcome.DONE)
                async with asyncio.timeout(20):
                    assert await ended is ReadOutcome.DONE
                if not turn:
                    came = memory.view(32 << 20, count)
                    assert proof.leaves == leaves_of(came)
                    proof.leaves = b""
        assert not any(proof.leaves for proof in proofs)
        client.close()
        server.close()
        memory.close()

    asyncio.run(scenario())


def test_of_reads_that_are_hashed_some_may_be_given_up_at_any_time(make_client: MakeClient) -> None:
    """Each is told once or never, and the leaves of those that are left are right."""

    async def scenario() -> None:
        memory, sink = PoolMemory(64 << 20, prefault=False), Sink()
        held, count, each = SIZES[LARGE], 24, 1 << 20
        memory.bytes_[:held] = np.random.default_rng(8).integers(0, 256, held, np.uint8)
        server = ReadServer(memory, sink, TransportCounters())  # type: ignore[arg-type]
        endpoint = "{}:{}".format(*server.listen("127.0.0.1", 0))
        client = make_client(memory, TransportCounters(), stall_timeout_s=10)
        told: list[int] = []
        changed = asyncio.Event()
        proofs = [Proof() for _ in range(count)]

        def done(place: int, outcome: ReadOutcome) -> None:
            assert outcome is ReadOutcome.DONE
            told.append(place)
            # The next one that nobody has heard of may be on its way, or be hashed at this moment.
            behind = [other for other in range(place + 1, count) if other % 3 == 1]
            if place % 3 == 0 and behind:
                reads[behind[0]].cancel()
            changed.set()

        reads = [
            client.read(
                ReadRequest(
                    endpoint,
                    LARGE,
                    place * each,
                    each,
                    (32 << 20) + place * each,
                    functools.partial(done, place),
                    proof=proofs[place],
                )
            )
            for place in range(count)
        ]
        left = {place for place in range(count) if place % 3 != 1}
        async with asyncio.timeout(20):
            while not left <= set(told):
                changed.clear()
                await changed.wait()
        assert len(set(told)) == len(told)
        for place in told:
            assert proofs[place].leaves == leaves_of(memory.view(place * each, each))
        client.close()
        server.close()
        memory.close()

    asyncio.run(scenario())


def test_the_thread_of_a_client_that_is_closed_has_ended() -> None:
    async def scenario() -> None:
        before = threads()
        memory = PoolMemory(1 << 20, prefault=False)
        client = client_of(memory, TransportCounters(), stall_timeout_s=1)
        own = threads() - before
        assert len(own) == 1 + limits.READ_PROVERS
        client.close()
        client.close()
        assert not own & threads()
        memory.close()

    asyncio.run(scenario())
