"""Reads that the thread in C answers: what it takes, what it gives back, what it keeps, who may read."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import AsyncIterator, Callable, Sequence
from random import Random

import pytest

from controlplane.core.nodes import NodeFacts
from controlplane.core.read_access import ReadTokens
from hostagent import limits
from hostagent.memory.leases import LocalLeases
from hostagent.memory.pool_memory import PoolMemory
from hostagent.native.library import datapath
from hostagent.transport.base import ChunkPlace, Extent, TransportCounters
from hostagent.transport.native_reads import NativeReads
from hostagent.transport.read_protocol import (
    ANSWER,
    KIND_READ,
    RANGE,
    STATUS_ABSENT,
    STATUS_OK,
    STATUS_RANGE,
    load_of,
    number_with,
    pack_request,
    pack_tokens,
)
from hostagent.transport.read_server import ReadServer
from hostagent.transport.read_tokens import Refusal, TokenBook
from kvchunk.ids import ChunkKey
from kvproto.grants import NamespaceRules

SMALL, LARGE, OPENED = ChunkKey(b"s" * 16), ChunkKey(b"l" * 16), ChunkKey(b"o" * 16)
PLACES = {SMALL: (4096, 3000), LARGE: (1 << 20, 31 << 20)}
"""Offset and bytes of what the catalog shows; the large one is more than sockets hold."""
POOL_BYTES = 32 << 20


class Node:
    """A holder: what its catalog shows, and one chunk more that only the event loop finds."""

    def __init__(self, *, stall_timeout_s: float = 30.0, tokens: TokenBook | None = None) -> None:
        library = datapath()
        self.memory, self.counters, self.leases = PoolMemory(POOL_BYTES, prefault=False), TransportCounters(), None
        self.content = Random(1).randbytes(POOL_BYTES)
        self.memory.view(0, POOL_BYTES)[:] = self.content
        self.leases = LocalLeases(POOL_BYTES)
        self.shown = {key: self.leases.catalog.show(key, *place) for key, place in PLACES.items()}
        self.opened: list[ChunkKey] = []
        self.was_opened: list[ChunkKey] = []
        self.read: list[ChunkKey] = []
        loop = asyncio.get_running_loop()
        self.native = NativeReads(
            library,
            self.memory,
            self.leases,
            loop,
            self,
            self.counters,
            stall_timeout_s=stall_timeout_s,  # type: ignore[arg-type]
        )
        self.server = ReadServer(self.memory, self, self.counters, tokens=tokens, native=self.native)  # type: ignore[arg-type]
        self.address = self.server.listen("127.0.0.1", 0)

    def casts_queued_bytes(self) -> int:
        return 0

    def namespace_of(self, _key: ChunkKey) -> str:
        return ""

    def prepare(self, _key: ChunkKey, _then: Callable[[], None]) -> bool:
        return False

    def open_extent(self, key: ChunkKey) -> Extent | None:
        if key != OPENED and key not in PLACES:
            return None
        self.opened.append(key)
        self.was_opened.append(key)
        return Extent(*PLACES.get(key, (0, 2000)), key)

    def close_extent(self, extent: Extent) -> None:
        assert isinstance(extent.token, bytes)
        self.opened.remove(ChunkKey(extent.token))

    def relays(self) -> None: ...

    def peers_read(self, keys: Sequence[ChunkKey]) -> None:
        self.read += keys

    def leased(self) -> set[int]:
        return self.leases.catalog.leased()

    def close(self) -> None:
        self.server.close()
        self.native.close()
        assert not self.leased()
        assert not self.opened
        assert (self.counters.reads_queued_bytes, self.counters.readers_served) == (0, 0)
        self.leases.close()
        self.memory.close()


class Peer:
    """Somebody who reads."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    def ask(self, key: ChunkKey, offset: int, size_bytes: int, number: int = 1) -> None:
        self.writer.write(pack_request(KIND_READ, number, RANGE.pack(offset, size_bytes, key)))

    async def answer(self) -> tuple[int, int, int, bytes]:
        """Status, load, number, bytes."""
        head = ANSWER.unpack(await self.reader.readexactly(ANSWER.size))
        return head[2], head[3], head[4], await self.reader.readexactly(head[5])


@contextlib.asynccontextmanager
async def node(*, stall_timeout_s: float = 30.0, tokens: TokenBook | None = None) -> AsyncIterator[Node]:
    one = Node(stall_timeout_s=stall_timeout_s, tokens=tokens)
    try:
        async with asyncio.timeout(20):
            yield one
    finally:
        one.close()


@contextlib.asynccontextmanager
async def peer_of(one: Node) -> AsyncIterator[Peer]:
    peer = Peer(*await asyncio.open_connection(*one.address, limit=1 << 16))
    try:
        yield peer
    finally:
        peer.writer.close()


async def eventually(condition: Callable[[], object]) -> None:
    while not condition():
        await asyncio.sleep(0.002)


def test_chunks_of_the_catalog_are_answered_without_being_opened() -> None:
    async def scenario() -> None:
        async with node() as one, peer_of(one) as peer:
            for number, (offset, size_bytes) in enumerate(((0, 3000), (2999, 1), (5, 100)), 1):
                peer.ask(SMALL, offset, size_bytes, number)
            for number, (offset, size_bytes) in enumerate(((0, 3000), (2999, 1), (5, 100)), 1):
                start = PLACES[SMALL][0] + offset
                assert await peer.answer() == (STATUS_OK, 0, number, one.content[start : start + size_bytes])
            peer.ask(LARGE, 7, (31 << 20) - 7)
            assert (await peer.answer())[3] == one.content[(1 << 20) + 7 : 32 << 20]
            await eventually(lambda: not one.leased() and one.counters.read_bytes_sent >= 3101 + (31 << 20) - 7)
            assert one.counters.read_bytes_sent == 3101 + (31 << 20) - 7
            assert one.read == [SMALL], "whoever reads a chunk in stripes counts once, with its first byte"
            assert one.was_opened == []

    asyncio.run(scenario())


def test_what_the_thread_does_not_know_is_answered_by_the_event_loop_in_order() -> None:
    async def scenario() -> None:
        async with node() as one, peer_of(one) as peer:
            asked = [
                (LARGE, 0, 31 << 20, STATUS_OK),
                (OPENED, 0, 2000, STATUS_OK),
                (SMALL, 0, 3000, STATUS_OK),
                (ChunkKey(b"?" * 16), 0, 10, STATUS_ABSENT),
                (SMALL, 2999, 2, STATUS_RANGE),
                (SMALL, (1 << 64) - 1, 2, STATUS_RANGE),
            ]
            for number, (key, offset, size_bytes, _) in enumerate(asked):
                peer.ask(key, offset, size_bytes, number)
            for number, (_, _, size_bytes, wanted) in enumerate(asked):
                status, _, got, body = await peer.answer()
                assert (status, got, len(body)) == (wanted, number, size_bytes if wanted == STATUS_OK else 0)
            assert one.was_opened[0] == OPENED
            # The connection goes back to the thread once nothing is kept here.
            await eventually(lambda: not one.opened)
            one.was_opened.clear()
            for _ in range(100):
                peer.ask(SMALL, 0, 10)
                await peer.answer()
                if not one.was_opened:
                    break
                one.was_opened.clear()
                await asyncio.sleep(0.01)
            assert one.was_opened == []

    asyncio.run(scenario())


def test_a_chunk_stays_while_it_is_sent_and_no_longer_than_its_connection() -> None:
    async def scenario() -> None:
        async with node() as one:
            async with peer_of(one) as peer:
                peer.ask(LARGE, 0, 31 << 20)
                await peer.reader.readexactly(ANSWER.size)
                assert one.leases.catalog.hide([one.shown[LARGE]]) == {one.shown[LARGE]}
                peer.writer.transport.abort()
            await eventually(lambda: not one.leased())
            one.leases.catalog.forget(one.shown[LARGE])
            async with peer_of(one) as peer:
                one.leases.catalog.hide([one.shown[SMALL]])
                peer.ask(SMALL, 0, 3000)
                assert (await peer.answer())[0] == STATUS_OK
                assert one.was_opened == [SMALL], "not shown any more, so the event loop says what there is"

    asyncio.run(scenario())


def test_a_peer_that_takes_in_nothing_is_cut_off() -> None:
    async def scenario() -> None:
        async with node(stall_timeout_s=0.05) as one:
            with socket.create_connection(one.address) as silent:
                silent.sendall(pack_request(KIND_READ, 1, RANGE.pack(0, 31 << 20, LARGE)))
                await eventually(lambda: one.counters.dropped == {"read_peer_stalled": 1})
                assert not one.leased()

    asyncio.run(scenario())


def test_nonsense_ends_a_connection_and_is_counted() -> None:
    async def scenario() -> None:
        async with node() as one, peer_of(one) as peer:
            peer.ask(SMALL, 0, 10)
            peer.writer.write(b"nonsense" * 6)
            assert (await peer.answer())[0] == STATUS_OK
            with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
                await peer.answer()
            assert one.counters.dropped == {"read_request_malformed": 1}

    asyncio.run(scenario())


def test_requests_may_come_byte_by_byte_and_many_at_once() -> None:
    async def scenario() -> None:
        async with node() as one, peer_of(one) as peer:
            packed = pack_request(KIND_READ, 9, RANGE.pack(0, 5, SMALL))
            for byte in packed:
                peer.writer.write(bytes((byte,)))
                await peer.writer.drain()
                await asyncio.sleep(0)
            assert (await peer.answer())[2] == 9
            for number in range(500):
                peer.ask(SMALL, number, 100, number)
            for number in range(500):
                start = PLACES[SMALL][0] + number
                assert await peer.answer() == (STATUS_OK, 0, number, one.content[start : start + 100])
            assert one.was_opened == []

    asyncio.run(scenario())


def test_an_answer_says_what_others_want() -> None:
    async def scenario() -> None:
        async with node() as one, peer_of(one) as busy, peer_of(one) as peer:
            wanted_bytes = 100 << 20
            busy.ask(LARGE, 0, 31 << 20, number_with(7, wanted_bytes))
            head = ANSWER.unpack(await busy.reader.readexactly(ANSWER.size))
            assert load_of(head[3]).readers == 0
            peer.ask(SMALL, 0, 10, number_with(1, 0))
            peer.ask(SMALL, 0, 10, 1)
            told, untold = [load_of((await peer.answer())[1]) for _ in range(2)]
            assert told.readers == 1
            assert 60 << 20 < told.queued_bytes < 1.05 * wanted_bytes
            assert untold.queued_bytes == 0
            await eventually(lambda: one.counters.readers_served == 1)
            assert one.counters.reads_queued_bytes == pytest.approx(told.queued_bytes, rel=0.5)

    asyncio.run(scenario())


def test_connections_that_are_lent_count_as_others_do() -> None:
    async def scenario() -> None:
        async with node() as one, peer_of(one) as at_work:
            at_work.ask(LARGE, 0, 31 << 20)
            await at_work.reader.readexactly(ANSWER.size)
            many = 2 * limits.READ_CONNECTIONS_PER_PEER_MAX
            idle = [await asyncio.open_connection(*one.address) for _ in range(many)]
            ended = many - (limits.READ_CONNECTIONS_PER_PEER_MAX - 1)
            await eventually(lambda: one.counters.dropped == {"read_idle_ended": ended})
            assert one.leased() == {one.shown[LARGE]}
            for _, writer in idle:
                writer.close()

    asyncio.run(scenario())


def test_who_has_no_token_is_asked_for_one_as_soon_as_tokens_are_demanded() -> None:
    async def scenario() -> None:
        book = TokenBook(demands=False)
        async with node(tokens=book) as one, peer_of(one) as peer:
            peer.ask(SMALL, 0, 10)
            assert (await peer.answer())[0] == STATUS_OK
            assert one.was_opened == []
            book.controller_connected(0.0, gives_tokens=True)
            peer.ask(SMALL, 0, 10)
            assert (await peer.answer())[0] == Refusal.NO_TOKEN
            book.controller_connected(0.0, gives_tokens=False)

    asyncio.run(scenario())


def token_book(rules: NamespaceRules) -> TokenBook:
    """Of a holder, which shows to itself what a reader at 127.0.0.1 would."""
    facts = NodeFacts(
        name="n1",
        incarnation=1,
        data_ip=socket.inet_aton("127.0.0.1"),
        data_mac=bytes(6),
        read_endpoint="127.0.0.1:4790",
        control_port=4793,
        switch_port=None,
        pool_bytes=1,
        segment_bytes=frozenset(),
    )
    book, now_s = TokenBook(demands=True), asyncio.get_running_loop().time()
    book.controller_connected(now_s, gives_tokens=True)
    book.access_given(ReadTokens(bytes(32), 600_000, rules).access_of(facts, 0).read_access, now_s)
    return book


@pytest.mark.parametrize("may_have_all", [True, False])
def test_only_readers_whose_token_gives_them_everything_are_lent(may_have_all: bool) -> None:
    async def scenario() -> None:
        book = token_book(NamespaceRules(None if may_have_all else {"globex": ["n2"]}))
        async with node(tokens=book) as one, peer_of(one) as peer:
            peer.ask(SMALL, 0, 10)
            assert (await peer.answer())[0] == Refusal.NO_TOKEN
            peer.writer.write(pack_tokens(book.shown))
            for _ in range(20):
                peer.ask(SMALL, 0, 10)
                assert (await peer.answer())[0] == STATUS_OK
                await eventually(lambda: not one.opened)
            await eventually(lambda: len(one.read) == 20)  # whoever answered them
            assert (len(one.was_opened) < 20) is may_have_all

    asyncio.run(scenario())


def test_tags_are_those_of_the_catalog() -> None:
    """Of many keys and salts: each chunk that is shown is found, no other is."""

    async def scenario() -> None:
        for _ in range(5):
            async with node() as one, peer_of(one) as peer:
                keys = [ChunkKey(os.urandom(16)) for _ in range(40)]
                for key in keys:
                    assert one.leases.catalog.show(key, 8192, 10)
                for key in keys:
                    peer.ask(key, 0, 10)
                for _ in keys:
                    assert (await peer.answer())[3] == one.content[8192:8202]
                assert one.was_opened == []

    asyncio.run(scenario())


ARRIVING = ChunkPlace(ChunkKey(b"a" * 16), 1 << 20, 31 << 20)
PIECE = 64 * 1024


def test_proven_pieces_of_an_arriving_chunk_are_answered_and_no_others() -> None:
    async def scenario() -> None:
        async with node() as one, peer_of(one) as peer:
            one.native.show(ARRIVING, 1, 2)
            peer.ask(ARRIVING.key, PIECE, 2 * PIECE, 1)
            start = ARRIVING.offset + PIECE
            assert await peer.answer() == (STATUS_OK, 0, 1, one.content[start : start + 2 * PIECE])
            for number, (offset, size_bytes) in enumerate(((0, 10), (2 * PIECE, PIECE + 1), (1 << 63, 1)), 2):
                peer.ask(ARRIVING.key, offset, size_bytes, number)
                assert (await peer.answer())[:3] == (STATUS_ABSENT, 0, number)
            one.native.hide(ARRIVING.key)
            peer.ask(ARRIVING.key, PIECE, 10, 9)
            assert (await peer.answer())[0] == STATUS_ABSENT
            one.native.hide(ARRIVING.key)  # again
            assert not one.was_opened
            assert not one.leased()

    asyncio.run(scenario())


def test_answers_from_a_chunk_that_has_arrived_go_on() -> None:
    async def scenario() -> None:
        async with node() as one, peer_of(one) as peer:
            place = ChunkPlace(LARGE, *PLACES[LARGE])
            one.leases.catalog.hide([one.shown[LARGE]])
            one.native.show(place, 0, 31 << 4)
            peer.ask(LARGE, 0, place.size_bytes)
            await eventually(lambda: one.counters.readers_served == 1)
            one.shown[LARGE] = one.leases.catalog.show(LARGE, *PLACES[LARGE])
            one.native.hide(LARGE)
            assert one.leased(), "it may not go while it is sent"
            assert (await peer.answer())[3] == one.content[1 << 20 : 32 << 20]

    asyncio.run(scenario())


def test_answers_from_a_chunk_that_is_given_up_end_with_their_connection() -> None:
    async def scenario() -> None:
        async with node() as one, peer_of(one) as peer, peer_of(one) as other:
            one.native.show(ARRIVING, 0, 31 << 4)
            peer.ask(ARRIVING.key, 0, ARRIVING.size_bytes)
            await eventually(lambda: one.counters.readers_served == 1)
            one.native.hide(ARRIVING.key)
            with pytest.raises((asyncio.IncompleteReadError, ConnectionResetError)):
                await peer.answer()
            other.ask(SMALL, 0, 10)
            assert (await other.answer())[0] == STATUS_OK

    asyncio.run(scenario())
