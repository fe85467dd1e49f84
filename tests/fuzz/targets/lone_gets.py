"""The thread of lone gets: an engine that says anything, and a peer that answers anything, beside an honest pair."""

from __future__ import annotations

import asyncio
import contextlib
import mmap
import os
import socket
from collections import deque
from collections.abc import Callable, Iterator
from random import Random
from typing import ClassVar

from hostagent import limits
from hostagent.core import effects, events
from hostagent.core.events import EngineId
from hostagent.lone_gets import LoneGets
from hostagent.memory.pool_memory import PoolMemory
from hostagent.native.library import datapath
from hostagent.transport import read_protocol as wire
from hostagent.transport.base import Way
from hostagent.transport.read_tokens import TokenBook
from hostagent.tree import hashed
from kvchunk.ids import ChunkKey
from kvclient import lone
from kvproto.integrity import Integrity
from tests.fuzz.target import Case, check

_BODY_BYTES = 3000
_HONEST = ChunkKey(b"h" * 16)
_BODIES = {ChunkKey(bytes((place,)) * 16): Random(place).randbytes(_BODY_BYTES) for place in range(1, 4)}
"""What the liar is said to have."""
_LIAR = next(iter(_BODIES))
_BODIES[_HONEST] = Random(0).randbytes(_BODY_BYTES)
_NUMBER = b"<number>"
"""In an answer of the liar: the number of the request, without which nobody listens."""
_ZEROS = bytes(lone.SLOT_BYTES)
_TURNS_MAX = 20_000


class EnginesAndPeers:
    """A step: what the engine says, a packet, behind an even byte; what the liar answers to one request, behind an odd
    one. A liar that has nothing left to answer ends the connection."""

    name: ClassVar[str] = "lone-gets"
    checks: ClassVar[str] = "chunks are got whole and unforged or not at all; who is honest is served all the same"
    limit_s: ClassVar[float] = 10.0
    words: ClassVar[tuple[bytes, ...]] = (
        *_BODIES,
        _NUMBER,
        b"\x00",
        b"\x01",
        bytes(8),
        b"\xff" * 8,
        (1).to_bytes(8, "big"),
    )

    def __init__(self) -> None:
        self._paused_s, limits.LONE_GET_RECONNECT_S = limits.LONE_GET_RECONNECT_S, 0.001
        self._loop = asyncio.new_event_loop()
        self._memory = PoolMemory(1 << 20, prefault=False)
        self._answers = deque[bytes]()
        self._heard: list[events.LoneGot] = []
        self._engines_count = 0
        self._talking: set[asyncio.Task[None]] = set()
        self._loop.run_until_complete(self._start())
        self._honest = self._client()

    async def _start(self) -> None:
        self._servers = [await asyncio.start_server(part, "127.0.0.1", 0) for part in (self._lie, self._hold)]
        liar, holder = (server.sockets[0].getsockname() for server in self._servers)
        self._gets = LoneGets(
            datapath(),
            self._memory,
            self._loop,
            self._handle,
            TokenBook(demands=False),
            lambda endpoint, _: Way(endpoint, "127.0.0.1"),
        )
        for key, body in _BODIES.items():
            node, (host, port) = ("holder", holder) if key == _HONEST else ("liar", liar)
            digest = hashed(memoryview(body), Integrity.BLAKE3).digest
            self._do(effects.OfferLone(key, len(body), digest, node, f"{host}:{port}"))

    def _do(self, effect: effects.OfferLone | effects.TakeLone) -> None:
        self._gets.carriers()[type(effect)](effect)

    def _handle(self, event: events.Event) -> None:
        assert isinstance(event, events.LoneGot)
        self._heard.append(event)
        self._do(effects.TakeLone(event.buffer, None))

    def fresh(self, random: Random) -> Case:
        return [_packet(random) if random.random() < 0.6 else _answer(random) for _ in range(random.choice((2, 6, 20)))]

    def run(self, case: Case) -> None:
        self._answers.clear()
        self._answers.append(_honest_answer())
        self._served(_LIAR, "a peer that lied before is not asked again")
        self._answers.extend(step[1:] for step in case if step and step[0] & 1)
        packets = [step[1:] for step in case if len(step) > 1 and not step[0] & 1]
        self._engines_count += 1
        engine = EngineId(self._engines_count)
        socket_fd, landing_fd = self._gets.open(engine)
        with (
            socket.socket(fileno=socket_fd) as peer,
            mmap.mmap(landing_fd, lone.LANDING_BYTES, prot=mmap.PROT_READ) as landing,
        ):
            os.close(landing_fd)
            answers = self._talk(peer, packets)
            self._gets.end(engine)
            for slot in range(lone.SLOTS):
                content = landing[slot * lone.SLOT_BYTES : (slot + 1) * lone.SLOT_BYTES]
                whole = content[:_BODY_BYTES] in _BODIES.values() and content[_BODY_BYTES:] == _ZEROS[_BODY_BYTES:]
                check(whole or content == _ZEROS, "an engine reads what is no chunk")
        asked = b"".join(packets)
        for answer in answers:
            check(len(answer) == lone.ANSWER.size, "an answer of no size")
            number, size_bytes, _ = lone.ANSWER.unpack(answer)
            check(answer[:8] in asked, f"an answer that nobody asked for: {number}")
            check(size_bytes in (0, _BODY_BYTES), "a chunk of another size")
        self._gets.learn()
        for got in self._heard:
            right = hashed(memoryview(_BODIES[got.key]), Integrity.BLAKE3).digest
            check((got.digest, got.size_bytes) == (right, _BODY_BYTES), "the core hears of a forged chunk")
        self._heard.clear()
        self._served(_HONEST, "an honest engine is served no more")

    def _talk(self, peer: socket.socket, packets: list[bytes]) -> list[bytes]:
        """Say it all and then no more; what is answered until the thread has left this engine."""
        peer.setblocking(False)
        answers: list[bytes] = []

        def hear() -> bool:
            try:
                while answer := peer.recv(1 << 12):
                    answers.append(answer)
            except BlockingIOError:
                return False
            except ConnectionError:
                pass
            return True

        for packet in packets:
            with contextlib.suppress(OSError):  # The thread is behind, or has left who speaks nonsense.
                peer.send(packet)
            # The liar has a turn to answer in.
            self._turn()
            hear()
        peer.shutdown(socket.SHUT_WR)
        self._turn_until(hear, "an engine that is gone is not left")
        return answers

    # ------------------------------------------------------------------ who is honest, and the liar

    def _client(self) -> lone.LoneGets:
        self._engines_count += 1
        socket_fd, landing_fd = self._gets.open(EngineId(self._engines_count))
        try:
            return lone.LoneGets.opened(socket_fd, landing_fd)
        finally:
            os.close(socket_fd)
            os.close(landing_fd)

    def _served(self, key: ChunkKey, what: str) -> None:
        """A get may be declined, while a connection is made and where the thread waited for the liar."""

        def once() -> bool:
            if key == _LIAR and not self._answers:
                self._answers.append(_honest_answer())
            chunk = self._loop.run_until_complete(self._loop.run_in_executor(None, self._honest.get, key, None))
            if chunk is None:
                return False
            view, lease = chunk
            check(bytes(view) == _BODIES[key], "an honest engine gets what is no chunk")
            lease.release()
            return True

        self._turn_until(once, what)

    async def _hold(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with (
            self._talks(writer),
            contextlib.suppress(asyncio.IncompleteReadError, asyncio.CancelledError, ConnectionError),
        ):
            while request := await reader.readexactly(wire.REQUEST_BYTES):
                *_, number = wire.HEAD.unpack_from(request)
                writer.write(wire.pack_answer(wire.STATUS_OK, number, _BODY_BYTES) + _BODIES[_HONEST])

    async def _lie(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with self._talks(writer), contextlib.suppress(asyncio.CancelledError, ConnectionError):
            while (request := await reader.read(wire.REQUEST_BYTES)) and self._answers:
                number = request[wire.HEAD.size - len(_NUMBER) : wire.HEAD.size]
                writer.write(self._answers.popleft().replace(_NUMBER, number))

    @contextlib.contextmanager
    def _talks(self, writer: asyncio.StreamWriter) -> Iterator[None]:
        task = asyncio.current_task()
        assert task is not None
        self._talking.add(task)
        try:
            yield
        finally:
            self._talking.discard(task)
            writer.close()

    def _turn_until(self, condition: Callable[[], bool], what: str) -> None:
        for _ in range(_TURNS_MAX):
            if condition():
                return
            self._turn()
        check(condition(), what)

    def _turn(self) -> None:
        self._loop.call_later(0.0005, self._loop.stop)
        self._loop.run_forever()

    def close(self) -> None:
        limits.LONE_GET_RECONNECT_S = self._paused_s
        self._honest.close()
        self._gets.close()
        self._loop.run_until_complete(self._end())
        self._loop.run_until_complete(self._loop.shutdown_default_executor())
        self._loop.close()
        self._memory.close()

    async def _end(self) -> None:
        for server in self._servers:
            server.close()
        talking = list(self._talking)
        for task in talking:
            task.cancel()
        await asyncio.gather(*talking, return_exceptions=True)


def _packet(random: Random) -> bytes:
    """Of an engine: a request, as it should be but for what may not be there."""
    key = random.choice((*_BODIES, ChunkKey(b"?" * 16)))
    slot = (
        random.choice((0, 1, 2, lone.SLOTS - 1, lone.SLOTS, 0xFFFF_FFFF))
        if random.random() < 0.2
        else random.randrange(4)
    )
    recompute = random.choice((lone.NO_RECOMPUTE, 0, 1, 10**9))
    return b"\x00" + lone.REQUEST.pack(random.getrandbits(64), recompute, slot, random.randrange(2), key)


def _honest_answer() -> bytes:
    return wire.pack_answer(wire.STATUS_OK, int.from_bytes(_NUMBER), _BODY_BYTES) + _BODIES[_LIAR]


def _answer(random: Random) -> bytes:
    """Of the liar: right, nearly right, or long ago."""
    body = random.choice(list(_BODIES.values()))
    status = random.choice((wire.STATUS_OK, wire.STATUS_OK, wire.STATUS_ABSENT, 7))
    size = random.choice((_BODY_BYTES, _BODY_BYTES, _BODY_BYTES - 1, 0, 1 << 40))
    head = wire.pack_answer(status, int.from_bytes(_NUMBER), size)
    return b"\x01" + head + body[: random.choice((_BODY_BYTES, _BODY_BYTES, _BODY_BYTES - 1, 10, 0))]
