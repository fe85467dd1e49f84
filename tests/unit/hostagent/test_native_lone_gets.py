"""The thread of lone gets between real sockets: an engine that does as it likes, and a holder that plays a part."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import mmap
import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from typing import Any, TypeAlias, TypeVar

import pytest

from hostagent import limits
from hostagent.core import effects, events
from hostagent.core.events import EngineId
from hostagent.lone_gets import LoneGets
from hostagent.memory.pool_memory import PoolMemory
from hostagent.native.library import datapath
from hostagent.pool.chunks import Chunk, ChunkState
from hostagent.transport import read_protocol as wire
from hostagent.transport.base import Way
from hostagent.transport.read_tokens import TokenBook
from hostagent.tree import ROOT_CONTEXT, hashed
from kvclient import lone
from kvpolicy.value.costs import SourceCost
from kvproto.integrity import Integrity
from tests.unit.hostagent.agent_harness import MIB, key

T = TypeVar("T")
Part: TypeAlias = Callable[[int, bytes], Awaitable[bytes | None]]
"""(number of a request, key) -> what is answered; None: the connection ends."""
BODY = bytes(range(256)) * 16
ENGINE = EngineId(1)
WAIT_S = 10.0


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody is late but who stands still, and connections that ended are made again at once."""
    monkeypatch.setattr(limits, "LONE_GET_WAIT_S", WAIT_S)
    monkeypatch.setattr(lone, "WAIT_S", 2 * WAIT_S)
    monkeypatch.setattr(limits, "LONE_GET_RECONNECT_S", 0.001)


def native_digest(body: bytes) -> bytes:
    context, found = ROOT_CONTEXT.encode(), ctypes.create_string_buffer(32)
    datapath().dp_get_digest(context, len(context), body, len(body), found)
    return found.raw


def digest_of(body: bytes) -> bytes:
    return bytes(hashed(memoryview(body), Integrity.BLAKE3).digest)


def test_native_digests_are_those_of_the_tree() -> None:
    body = os.urandom(lone.SLOT_BYTES)
    kib = range(0, lone.SLOT_BYTES + 1, 1024)
    around = {size + off for size in kib for off in (-65, -64, -1, 0, 1, 63, 64) if 0 < size + off <= len(body)}
    for size in sorted({*range(1, 1100), *range(1100, len(body), 61), *around}):
        assert native_digest(body[:size]) == digest_of(body[:size])[1:], size


async def good(number: int, _key: bytes) -> bytes | None:
    return wire.pack_answer(wire.STATUS_OK, number, len(BODY)) + BODY


class Scene:
    """One agent's lone gets, a holder, and one engine."""

    def __init__(self) -> None:
        self.part: Part = good
        self.writers: list[asyncio.StreamWriter] = []
        """Of the holder, by connection."""
        self.shown: list[bytes] = []
        """What the holder was shown, by connection."""
        self.heard: list[events.Event] = []
        self.takes = True
        """Whether the core decides about what was got."""
        self.memory = PoolMemory(MIB, prefault=False)
        self.tokens = TokenBook(demands=False)
        self._holders: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        loop = asyncio.get_running_loop()
        self.server = await asyncio.start_server(self._hold, "127.0.0.1", 0)
        host, port = self.server.sockets[0].getsockname()
        self.endpoint = f"{host}:{port}"
        self.rails: list[str] = []
        """Where the peer is, in place of the endpoint that it was offered at."""
        self.gets = LoneGets(datapath(), self.memory, loop, self._handle, self.tokens, self._way_to)
        self.client = self.engine(ENGINE)

    def _way_to(self, endpoint: str, turn: int) -> Way:
        return Way(self.rails[turn % len(self.rails)] if self.rails else endpoint, "127.0.0.1")

    async def close(self) -> None:
        self.client.close()
        self.gets.close()
        self.server.close()
        for holder in self._holders:
            holder.cancel()
        await asyncio.gather(*self._holders, return_exceptions=True)
        self.memory.close()

    def engine(self, number: EngineId) -> lone.LoneGets:
        socket_fd, landing_fd = self.gets.open(number)
        client = lone.LoneGets.opened(socket_fd, landing_fd)
        os.close(socket_fd)
        os.close(landing_fd)
        return client

    def _handle(self, event: events.Event) -> None:
        self.heard.append(event)
        if isinstance(event, events.LoneGot) and self.takes:
            self.take(event)

    def take(self, event: events.LoneGot) -> None:
        """The core has room for what was got."""
        chunk = Chunk(event.key, None, 0, "", 0, event.size_bytes, ChunkState.FILLING)
        self.gets.carriers()[effects.TakeLone](effects.TakeLone(event.buffer, chunk))

    def offer(self, number: int, body: bytes = BODY, node: str = "n1", endpoint: str = "") -> None:
        said = effects.OfferLone(
            key(number), len(body), hashed(memoryview(body), Integrity.BLAKE3).digest, node, endpoint or self.endpoint
        )
        self.gets.carriers()[effects.OfferLone](said)

    async def _hold(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._holders.add(task)
        place = len(self.shown)
        self.shown.append(b"")
        self.writers.append(writer)
        try:
            while request := await reader.read(wire.REQUEST_BYTES):
                request += await reader.readexactly(wire.REQUEST_BYTES - len(request))
                _, _, kind, _, number = wire.HEAD.unpack_from(request)
                _, size, asked = wire.RANGE.unpack_from(request, wire.HEAD.size)
                if kind == wire.KIND_TOKEN:
                    offset, _, _ = wire.RANGE.unpack_from(request, wire.HEAD.size)
                    self.shown[place] = (await reader.readexactly(wire.padded_bytes(offset)))[:offset]
                    continue
                assert (kind, size) == (wire.KIND_READ, len(BODY))
                answer = await self.part(number, asked)
                if answer is None:
                    break
                writer.write(answer)
        finally:
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()

    # ------------------------------------------------------------------ steps

    async def get(self, number: int = 1, recompute_s: float | None = None) -> bytes | None:
        """As an engine; what is in the slot, which is given back."""
        chunk = await asyncio.to_thread(self.client.get, key(number), recompute_s)
        if chunk is None:
            return None
        view, lease = chunk
        body = bytes(view)
        lease.release()
        return body

    async def connected(self, number: int = 1) -> None:
        """Get until it comes: then there is a connection."""
        async with asyncio.timeout(WAIT_S):
            while await self.get(number) != BODY:
                await asyncio.sleep(0.001)

    async def counted(self, outcome: str, count: int) -> None:
        async with asyncio.timeout(WAIT_S):
            while self.gets.counts()[outcome] < count:
                await asyncio.sleep(0.001)

    async def told(self, count: int) -> None:
        async with asyncio.timeout(WAIT_S):
            while sum(isinstance(one, events.LoneGot) for one in self.heard) < count:
                await asyncio.sleep(0.001)


@contextlib.asynccontextmanager
async def scene() -> AsyncIterator[Scene]:
    made = Scene()
    await made.start()
    try:
        yield made
    finally:
        await made.close()


def run(work: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(work)


def test_native_chunk_comes_and_the_core_hears_of_it() -> None:
    async def work() -> None:
        async with scene() as one:
            one.offer(1)
            assert await one.get() is None, "there is no connection yet"
            await one.connected()
            await one.told(1)
            got = next(event for event in one.heard if isinstance(event, events.LoneGot))
            assert (got.engine, got.key, got.size_bytes, got.node) == (ENGINE, key(1), len(BODY), "n1")
            assert (got.digest, 0 < got.took_s < WAIT_S) == (digest_of(BODY), True)
            taken = next(event for event in one.heard if isinstance(event, events.LoneTaken))
            assert taken.hashed.digest == digest_of(BODY)
            assert bytes(one.memory.view(0, len(BODY))) == BODY

    run(work())


def test_native_chunk_that_is_unknown_or_withdrawn_is_declined() -> None:
    async def work() -> None:
        async with scene() as one:
            one.offer(1)
            await one.connected()
            assert await one.get(2) is None
            one.gets.carriers()[effects.WithdrawLone](effects.WithdrawLone(key(1)))
            assert await one.get(1) is None
            assert one.gets.counts()["unknown"] == 2

    run(work())


@pytest.mark.parametrize(
    ("name", "outcome", "answer"),
    [
        ("other bytes", "wrong", lambda number: wire.pack_answer(0, number, len(BODY)) + BODY[::-1]),
        ("not here", "refused", lambda number: wire.pack_answer(wire.STATUS_ABSENT, number, 0)),
        ("no token", "refused", lambda number: wire.pack_answer(4, number, 0)),
        ("other number", "refused", lambda number: wire.pack_answer(0, number ^ 1, len(BODY)) + BODY),
        ("other size", "refused", lambda number: wire.pack_answer(0, number, len(BODY) - 1) + BODY[1:]),
        ("no protocol", "refused", lambda number: b"HTTP/1.1 400 Bad Request\r\n\r\n"),
        ("nothing more", "refused", lambda number: None),
    ],
)
def test_native_holder_that_answers_wrongly_is_left(
    name: str, outcome: str, answer: Callable[[int], bytes | None]
) -> None:
    async def wrongly(number: int, _key: bytes) -> bytes | None:
        return answer(number)

    async def work() -> None:
        async with scene() as one:
            one.offer(1)
            await one.connected()
            one.part = wrongly
            assert await one.get() is None, name
            assert one.gets.counts()[outcome] == 1
            # On a connection of its own, a good answer is good again.
            one.part = good
            await one.connected()
            assert len(one.shown) == 2

    run(work())


@pytest.mark.parametrize("begun_bytes", [0, 10, wire.ANSWER.size, 1000])
def test_native_holder_that_stands_still_is_left_in_time(begun_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "LONE_GET_WAIT_S", 0.02)
    released = asyncio.Event()

    async def stands_still(number: int, asked: bytes) -> bytes | None:
        await released.wait()
        return await good(number, asked)

    async def begins(number: int, asked: bytes) -> bytes | None:
        one = wire.pack_answer(wire.STATUS_OK, number, len(BODY)) + BODY
        return one[:begun_bytes]

    async def work() -> None:
        async with scene() as one:
            one.offer(1)
            await one.connected()
            one.part = begins if begun_bytes else stands_still
            before = one.gets.counts()["late"]
            assert await one.get() is None
            await one.counted("late", before + 1)
            released.set()
            one.part = good
            # What came late is nobody's: the next answer is of another connection.
            await one.connected()

    run(work())


@pytest.mark.parametrize("begun_bytes", [0, 10, wire.ANSWER.size, 1000])
def test_native_holder_that_answers_late_keeps_its_connection(
    begun_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "LONE_GET_WAIT_S", 0.02)
    monkeypatch.setattr(limits, "LONE_GET_RECONNECT_S", WAIT_S)
    released = asyncio.Event()

    async def work() -> None:
        async with scene() as one:

            async def late(number: int, asked: bytes) -> bytes | None:
                answer = await good(number, asked)
                assert answer is not None
                one.writers[-1].write(answer[:begun_bytes])
                await released.wait()
                one.part = good
                return answer[begun_bytes:]

            one.offer(1)
            await one.connected()
            one.part = late
            before = one.gets.counts()["late"]
            assert await one.get() is None
            await one.counted("late", before + 1)
            assert await one.get() is None, "nothing is asked of a peer that owes an answer"
            assert one.gets.counts()["late"] == before + 2
            released.set()
            await one.connected()
            assert (len(one.shown), one.gets.counts()["refused"]) == (1, 0)

    run(work())


def test_native_get_goes_by_another_rail_when_one_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "LONE_GET_WAIT_S", 0.02)
    monkeypatch.setattr(limits, "LONE_GET_RECONNECT_S", WAIT_S)

    async def work() -> None:
        async with scene() as one:
            with socket.create_server(("127.0.0.1", 0)) as silent:
                nowhere = f"127.0.0.1:{silent.getsockname()[1]}"
                one.rails = [nowhere, one.endpoint]
                one.offer(1)
                async with asyncio.timeout(WAIT_S):
                    while not one.gets.counts()["late"]:
                        assert await one.get() is None
                        await asyncio.sleep(0.001)
                one.gets.way_left(Way(one.endpoint, "127.0.0.1"))
                assert await one.get() is None, "that is not the rail in use"
                one.gets.way_left(Way(nowhere, "127.0.0.1"))
                await one.connected()

    run(work())


def test_native_cost_of_computing_is_compared() -> None:
    async def work() -> None:
        async with scene() as one:
            one.offer(1)
            await one.connected()
            one.gets.carriers()[effects.TellLoneCosts](effects.TellLoneCosts(SourceCost(0.001, 1e9)))
            assert await one.get(recompute_s=0.0015) is None
            assert one.gets.counts()["dear"] == 1
            assert await one.get(recompute_s=0.1) == BODY
            assert await one.get() == BODY

    run(work())


def test_native_busy_holder_is_judged_by_the_gate() -> None:
    async def busy(number: int, asked: bytes) -> bytes | None:
        answer = bytearray(wire.pack_answer(wire.STATUS_OK, number, len(BODY)) + BODY)
        wire.set_load(memoryview(answer), wire.HolderLoad(MIB, 3))
        return bytes(answer)

    async def work() -> None:
        async with scene() as one:
            one.offer(1)
            one.part = busy
            await one.connected()
            before = one.gets.counts()
            # Either the holder has been idle for a while, or the gate is asked.
            came = await one.get(recompute_s=10.0)
            after = one.gets.counts()
            assert (came is None) == (after["dear"] > before["dear"])
            assert await one.get() == BODY, "whoever gave no cost gets it from a busy holder, too"

    run(work())


@pytest.mark.parametrize(
    "packet",
    [
        b"x",
        lone.REQUEST.pack(1, lone.NO_RECOMPUTE, lone.SLOTS, 0, key(1)),
        lone.REQUEST.pack(1, lone.NO_RECOMPUTE, 0xFFFF_FFFF, 0, key(1)),
        lone.REQUEST.pack(1, lone.NO_RECOMPUTE, 0, 0, key(1)) + b"x",
        bytes(4096),
    ],
)
def test_native_engine_that_asks_nonsense_is_served_no_more_and_others_are(packet: bytes) -> None:
    async def work() -> None:
        async with scene() as one:
            one.offer(1)
            await one.connected()
            socket_fd, landing_fd = one.gets.open(EngineId(2))
            os.close(landing_fd)
            with socket.socket(fileno=socket_fd) as engine:
                engine.setblocking(True)
                engine.settimeout(WAIT_S)
                engine.send(packet)
                assert await asyncio.to_thread(engine.recv, 100) == b""
            assert await one.get() == BODY
            one.gets.end(EngineId(2))

    run(work())


def test_native_engine_cannot_write_to_its_landing() -> None:
    async def work() -> None:
        async with scene() as one:
            socket_fd, landing_fd = one.gets.open(EngineId(2))
            with pytest.raises(PermissionError):
                mmap.mmap(landing_fd, lone.LANDING_BYTES)
            with pytest.raises(PermissionError):
                os.ftruncate(landing_fd, 0)
            os.close(socket_fd)
            os.close(landing_fd)

    run(work())


def test_native_engine_that_goes_in_the_middle() -> None:
    asked, go_on = asyncio.Event(), asyncio.Event()

    async def slowly(number: int, key_: bytes) -> bytes | None:
        asked.set()
        await go_on.wait()
        return await good(number, key_)

    async def work() -> None:
        async with scene() as one:
            one.offer(1)
            await one.connected()
            other = one.engine(EngineId(2))
            one.part = slowly
            waiting = asyncio.create_task(asyncio.to_thread(other.get, key(1), None))
            await asked.wait()
            one.gets.end(EngineId(2))
            go_on.set()
            assert await waiting is None
            other.close()
            one.part = good
            await one.connected()

    run(work())


def test_native_gets_are_declined_while_the_core_is_behind() -> None:
    async def work() -> None:
        async with scene() as one:
            one.takes = False
            one.offer(1)
            await one.connected()
            for _ in range(limits.LONE_GET_BUFFERS - 1):
                assert await one.get() == BODY
            assert await one.get() is None
            assert one.gets.counts()["full"] == 1
            one.gets.learn()
            one.takes = True
            for event in [one for one in one.heard if isinstance(one, events.LoneGot)]:
                one.take(event)
            assert await one.get() == BODY

    run(work())


def test_native_slots_that_are_all_in_use() -> None:
    async def work() -> None:
        async with scene() as one:
            one.offer(1)
            await one.connected()
            held = [await asyncio.to_thread(one.client.get, key(1), None) for _ in range(lone.SLOTS)]
            assert all(chunk is not None and bytes(chunk[0]) == BODY for chunk in held)
            assert await one.get() is None
            assert held[3] is not None
            held[3][1].release()
            assert await one.get() == BODY

    run(work())


def test_native_answer_that_comes_after_its_client_gave_up(monkeypatch: pytest.MonkeyPatch) -> None:
    async def work() -> None:
        async with scene() as one:
            one.offer(1)
            await one.connected()
            monkeypatch.setattr(lone, "WAIT_S", 0.0)
            assert await one.get() in (None, BODY)
            monkeypatch.setattr(lone, "WAIT_S", 2 * WAIT_S)
            # The slot is in use until the answer is there; then everything is as it was.
            await one.connected()
            held = [await asyncio.to_thread(one.client.get, key(1), None) for _ in range(lone.SLOTS)]
            assert None not in held

    run(work())


def test_native_connections_show_tokens_and_newer_ones() -> None:
    async def work() -> None:
        async with scene() as one:
            one.tokens.shown = b"first token"
            one.offer(1)
            await one.connected()
            assert one.shown == [b"first token"]
            one.tokens.shown = b"second token"
            async with asyncio.timeout(WAIT_S):
                while len(one.shown) < 2:
                    await one.get()
                    await asyncio.sleep(0.001)
            await one.connected()
            assert one.shown == [b"first token", b"second token"]

    run(work())


def test_native_holder_that_begins_anew_is_asked_there() -> None:
    async def work() -> None:
        async with scene() as one, scene() as two:
            one.offer(1)
            await one.connected()
            await two.server.start_serving()
            one.offer(1, endpoint=two.endpoint)
            await one.connected()
            assert len(two.shown) == 1

    run(work())


def test_native_holder_that_nobody_reaches() -> None:
    async def work() -> None:
        async with scene() as one:
            with socket.socket() as nobody:
                nobody.bind(("127.0.0.1", 0))
                one.offer(1, endpoint=f"127.0.0.1:{nobody.getsockname()[1]}")
                one.offer(2, node="n2", endpoint="no address")
                for number in (1, 2, 1, 2):
                    assert await one.get(number) is None
                assert one.gets.counts()["unconnected"] == 4
            one.offer(1)
            await one.connected()

    run(work())
