"""The read protocol over TCP: a holder asked by anybody, a reader answered by anybody."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Sequence
from random import Random
from typing import ClassVar

from hostagent.memory.leases import LocalLeases
from hostagent.memory.pool_memory import PoolMemory
from hostagent.native.library import datapath
from hostagent.transport.base import Extent, ReadOutcome, ReadRequest, TransportCounters
from hostagent.transport.native_pulls import NativePulls
from hostagent.transport.native_reads import NativeReads
from hostagent.transport.read_client import ReadClient
from hostagent.transport.read_protocol import (
    ANSWER,
    KIND_CLOSE,
    KIND_CONNECT,
    KIND_OPEN,
    KIND_READ,
    KIND_TOKEN,
    MAGIC,
    RANGE,
    STATUS_OK,
    VERSION,
    QueuePairEnd,
    number_with,
    pack_answer,
    pack_request,
    pack_tokens,
)
from hostagent.transport.read_server import ReadServer
from kvchunk.ids import ChunkKey
from tests.fuzz.target import Case, check

_CHUNKS = {ChunkKey(bytes((number,)) * 16): (4096 * number, 3000) for number in range(1, 5)}
"""Offset and bytes of what the holder has."""
_KEYS = (*_CHUNKS, ChunkKey(b"?" * 16))
_POOL_BYTES = 1 << 20
_WORDS = (*_KEYS, MAGIC.to_bytes(4, "big"), bytes((VERSION,)), (3000).to_bytes(8, "big"), b"\xff" * 8, bytes(8))
_TURNS_MAX = 20_000


class _Sink:
    """What an agent offers a read server; counts what is open."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.open = 0
        self._loop = loop

    def casts_queued_bytes(self) -> int:
        return 0

    def relays(self) -> None: ...

    def peers_read(self, keys: Sequence[ChunkKey]) -> None:
        check(set(keys) <= set(_CHUNKS), "chunks are read that are not here")

    def open_extent(self, key: ChunkKey) -> Extent | None:
        place = _CHUNKS.get(key)
        if place is None:
            return None
        self.open += 1
        return Extent(*place, key)

    def leaves(self, key: ChunkKey) -> bytes | None:
        return bytes(3000) if key in _CHUNKS else None

    def close_extent(self, _extent: Extent) -> None:
        self.open -= 1

    def prepare(self, key: ChunkKey, then: Callable[[], None]) -> bool:
        if key[0] != _KEYS[-1][0]:
            return False
        self._loop.call_soon(then)
        return True


def _turn_until(loop: asyncio.AbstractEventLoop, condition: Callable[[], bool], what: str) -> None:
    """Turn the loop until something holds; it depends on loopback alone, so it comes within few turns."""
    for _ in range(_TURNS_MAX):
        if condition():
            return
        loop.call_later(0.0005, loop.stop)
        loop.run_forever()
    check(condition(), what)


class ReadsAsked:
    """A step: bytes of one connection to a holder, sent together."""

    name: ClassVar[str] = "reads-asked"
    checks: ClassVar[str] = "answers in order with the chunk's own bytes; no pin or connection outlives its peer"
    limit_s: ClassVar[float] = 10.0
    words: ClassVar[tuple[bytes, ...]] = _WORDS

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._memory = PoolMemory(_POOL_BYTES, prefault=False)
        self._content = Random(1).randbytes(_POOL_BYTES)
        self._memory.view(0, _POOL_BYTES)[:] = self._content
        self._sink, self._counters = _Sink(self._loop), TransportCounters()
        self._loop.run_until_complete(self._start())

    async def _start(self) -> None:
        self._server = ReadServer(self._memory, self._sink, self._counters, native=self._native())  # type: ignore[arg-type]
        self._address = self._server.listen("127.0.0.1", 0)

    def _native(self) -> NativeReads | None:
        """What answers beside the event loop."""
        return None

    def _pins(self) -> int:
        """Chunks that somebody reads."""
        return self._sink.open

    def fresh(self, random: Random) -> Case:
        return [_request(random) for _ in range(random.choice((1, 2, 5, 20)))]

    def run(self, case: Case) -> None:
        received = bytearray()
        with socket.create_connection(self._address) as peer:
            peer.setblocking(False)

            def talk() -> bool:
                try:
                    while piece := peer.recv(1 << 16):
                        received.extend(piece)
                except BlockingIOError:
                    return False
                except ConnectionError:
                    pass
                return True

            try:
                for step in case:
                    peer.sendall(step)
                    talk()
                peer.shutdown(socket.SHUT_WR)
            except OSError:
                pass  # It was cut off, as who speaks nonsense is.
            _turn_until(self._loop, talk, "a connection stays open after its peer has ended it")
        _turn_until(self._loop, lambda: not self._pins(), "a pin outlives its connection")
        counters = self._counters
        check(not counters.reads_queued_bytes and not counters.readers_served, "something stays queued for who is gone")
        self._check_answers(bytes(received), case)

    def _check_answers(self, received: bytes, case: Case) -> None:
        at = 0
        while at + ANSWER.size <= len(received):
            magic, version, status, _, number, size_bytes = ANSWER.unpack_from(received, at)
            check(magic == MAGIC and version == VERSION, "an answer of another protocol")
            check(number.to_bytes(8, "big") in b"".join(case), "an answer that nobody asked for")
            check(size_bytes <= 3000, "an answer of more bytes than the chunk has")
            check(status == STATUS_OK or not size_bytes, "a refusal with bytes")
            body = received[at + ANSWER.size : at + ANSWER.size + size_bytes]
            check(body in self._content, "bytes that are no chunk's")
            at += ANSWER.size + size_bytes

    def close(self) -> None:
        self._server.close()
        self._memory.close()
        self._loop.close()


class ReadsAskedInC(ReadsAsked):
    """The same, of a holder whose thread in C answers what it can."""

    name: ClassVar[str] = "reads-native"

    def _native(self) -> NativeReads:
        self._leases = LocalLeases(_POOL_BYTES)
        for key in list(_CHUNKS)[:3]:  # The last one only the event loop knows.
            self._leases.catalog.show(key, *_CHUNKS[key])
        self._reads = NativeReads(
            datapath(),
            self._memory,
            self._leases,
            self._loop,
            self._sink,  # type: ignore[arg-type]
            self._counters,
        )
        return self._reads

    def _pins(self) -> int:
        self._reads.drain()
        return self._sink.open + len(self._leases.catalog.leased())

    def close(self) -> None:
        self._server.close()
        self._reads.close()
        self._leases.close()
        super().close()


def _request(random: Random) -> bytes:
    number = random.choice((1, 2, 3, number_with(4, 1 << 20), (1 << 64) - 1))
    key = random.choice(_KEYS)
    match random.randrange(10):
        case 8:
            return pack_tokens(random.randbytes(random.choice((1, 47, 48, 49, 500))))
        case 9:
            return pack_request(KIND_TOKEN, number, RANGE.pack(random.choice((0, 1, 65536, 65537, 1 << 63)), 0, key))
        case 0:
            end = QueuePairEnd(random.randrange(1 << 24), 7, 1024, 1, bytes(16))
            return pack_request(KIND_CONNECT, number, end.pack())
        case 1:
            return pack_request(KIND_OPEN, number, RANGE.pack(0, 0, key))
        case 2:
            return pack_request(KIND_CLOSE, number, RANGE.pack(100, 0, bytes(16)))
        case _:
            offset, size_bytes = random.choice(
                ((0, 3000), (0, 1), (2999, 1), (3000, 1), (0, 3001), (0, 0), (1 << 63, 1 << 63))
            )
            return pack_request(KIND_READ, number, RANGE.pack(offset, size_bytes, key))


class ReadsAnswered:
    """The first step: which ranges a reader asks for. Others: bytes that a holder answers with."""

    name: ClassVar[str] = "reads-answered"
    checks: ClassVar[str] = "each read ends once; no byte outside of the ranges asked for is written"
    limit_s: ClassVar[float] = 10.0
    words: ClassVar[tuple[bytes, ...]] = _WORDS

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._memory = PoolMemory(_POOL_BYTES, prefault=False)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._listener.setblocking(False)

    def fresh(self, random: Random) -> Case:
        reads = random.choice((1, 2, 4))
        steps = [bytes(random.randrange(256) for _ in range(reads))]
        for number, asked in enumerate(steps[0], 1):
            size_bytes = _asked(asked)[1]
            status = random.choice((0, 0, 0, 1, 2, 3, 9))
            said = size_bytes if status == STATUS_OK else 0
            steps.append(pack_answer(status, number_with(number, 0), said) + random.randbytes(said))
        return steps

    def run(self, case: Case) -> None:
        asked = [_asked(one) for one in (case[0] if case else b"")[:6]]
        pool = self._memory.view(0, _POOL_BYTES)
        pool[:] = b"\xee" * _POOL_BYTES
        ended: list[list[ReadOutcome]] = [[] for _ in asked]
        client = self._loop.run_until_complete(self._client())
        endpoint = f"127.0.0.1:{self._listener.getsockname()[1]}"
        for at, (offset, size_bytes) in enumerate(asked):
            place = 8192 * (at + 1)
            client.read(ReadRequest(endpoint, _KEYS[0], offset, size_bytes, place, ended[at].append))
        if asked:
            _turn_until(self._loop, self._accepted, "a reader does not connect")
            try:
                for step in case[1:]:
                    self._peer.send(step)
                    self._loop.call_soon(self._loop.stop)
                    self._loop.run_forever()
            except OSError:
                pass  # The reader has ended the connection.
            self._peer.close()
        _turn_until(self._loop, lambda: all(ended), "a read never ends")
        client.close()
        check(all(len(one) == 1 for one in ended), "a read ends twice")
        written = bytearray(pool)
        for at, (_, size_bytes) in enumerate(asked):
            place = 8192 * (at + 1)
            written[place : place + size_bytes] = b"\xee" * size_bytes
        check(bytes(written) == b"\xee" * _POOL_BYTES, "bytes are written that were not asked for")

    async def _client(self) -> ReadClient:
        return ReadClient(self._memory, TransportCounters(), NativePulls(datapath(), self._loop), stall_timeout_s=1.0)

    def _accepted(self) -> bool:
        try:
            self._peer, _ = self._listener.accept()
        except BlockingIOError:
            return False
        self._peer.setblocking(False)
        return True

    def close(self) -> None:
        self._listener.close()
        self._memory.close()
        self._loop.close()


def _asked(number: int) -> tuple[int, int]:
    """Offset and bytes of a read."""
    return number * 7, 1 + number * 17
