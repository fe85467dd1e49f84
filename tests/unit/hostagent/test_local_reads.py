"""Chunks that engines read without asking: evictions race with leases, engines lie and die, keys stay secret."""

from __future__ import annotations

import mmap
import os
import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hostagent.core import events
from hostagent.core.events import EngineId
from hostagent.memory.leases import LocalLeases, local_leases
from hostagent.pool.catalog import ALL_SHARE, CONNECTION_SHARE, SHOWN_TWICE, TENANT_SHARE, Catalog, Grants
from hostagent.pool.chunks import Chunk, ChunkPool, DropOutcome, Refusal
from hostagent.pool.tenants import Tenants
from kvchunk.ids import ChunkKey
from kvclient import barrier, catalog
from kvclient.attach import attach
from kvclient.catalog import CatalogReader, Header
from kvclient.client import AgentUnavailableError, ChunkSource, Where
from tests.digests import hashed
from tests.unit.hostagent.agent_harness import MIB, Cluster, cluster, key

PAGE = 4096
SALT = bytes(range(16))
PAGES = 64


class Table:
    """A connection's table, in this process."""

    def __init__(self, allowance_bytes: int = PAGES * PAGE) -> None:
        self.tenant, self.allowance_bytes = "a", allowance_bytes
        self.content = bytearray(catalog.TABLE_BYTES)
        self.words = memoryview(self.content).cast("Q")

    def read(self) -> bytes:
        return bytes(self.content)


class Node:
    """A pool, its catalog and its engines' tables. Nothing here needs a barrier: it is one thread."""

    def __init__(self, *tables: Table, sets: int = 32) -> None:
        self.tables = list(tables)
        self.words = memoryview(bytearray(catalog.catalog_bytes(sets))).cast("Q")
        self.catalog = Catalog(self.words, sets, SALT, self)
        self.pool = ChunkPool(PAGES * PAGE, PAGE, lambda: 1, tenants=Tenants(PAGES * PAGE), catalog=self.catalog)

    def all(self) -> list[Table]:
        return self.tables

    def fence(self) -> None:
        """Both sides run in turns."""

    def put(self, number: int, pages: int = 1) -> Chunk | Refusal:
        chunk = self.pool.reserve(key(number), None, pages * PAGE)
        if isinstance(chunk, Chunk):
            self.pool.commit(chunk, hashed(number))
        return chunk

    def reader(self, table: Table, words: Any = None) -> CatalogReader:
        header = Header.read(self.words)
        assert header is not None
        return CatalogReader(self.words if words is None else words, header, table.words)


def test_a_chunk_is_found_by_its_key_and_by_nothing_else() -> None:
    table = Table()
    node = Node(table)
    chunks = [node.put(number, 1 + number % 3) for number in range(12)]
    reader = node.reader(table)
    for number, chunk in enumerate(chunks):
        assert isinstance(chunk, Chunk)
        assert reader.lease(key(number), catalog.LEASES_AT + number, 1 << 40) == (chunk.offset, chunk.size_bytes)
    assert reader.lease(key(99), catalog.LEASES_AT + 40, 1 << 40) is None
    assert reader.lease(b"short", catalog.LEASES_AT + 40, 1 << 40) is None
    assert reader.lease(key(0), catalog.LEASES_AT + 40, PAGE - 1) is None, "more than may be leased"
    assert not any(table.words[catalog.LEASES_AT + 12 : catalog.HITS_AT])
    secret = ChunkKey(random.Random(7).randbytes(16))
    made = node.pool.reserve(secret, None, PAGE)
    assert isinstance(made, Chunk)
    node.pool.commit(made, hashed(1))
    assert reader.lease(secret, catalog.LEASES_AT + 40, 1 << 40) is not None
    content = node.words.tobytes() + table.content
    assert not any(secret[at : at + 4] in content for at in range(13)), "keys stay secret"


def test_what_is_leased_outlives_its_eviction() -> None:
    table = Table()
    node = Node(table)
    first = node.put(0)
    assert isinstance(first, Chunk)
    assert node.reader(table).lease(key(0), catalog.LEASES_AT, 1 << 40) is not None
    filled = [node.put(number) for number in range(1, PAGES)]
    assert all(isinstance(chunk, Chunk) for chunk in filled)
    assert isinstance(node.put(100), Chunk), "another one goes"
    assert node.pool.find(key(0)) is first
    assert node.pool.drop(key(0)) is DropOutcome.WAITING
    assert node.reader(table).lease(key(0), catalog.LEASES_AT + 1, 1 << 40) is None
    for number in range(200, 300):
        made = node.put(number)
        assert not isinstance(made, Chunk) or made.offset != first.offset
    assert node.pool.pins_count == 1
    table.words[catalog.LEASES_AT] = 0
    node.pool.sweep()
    assert node.pool.pins_count == 0
    assert {chunk.offset for number in range(300, 400) if isinstance(chunk := node.put(number), Chunk)} >= {
        first.offset
    }


class Interrupted:
    """Words in which something happens just before the access number `at`."""

    def __init__(self, words: memoryview, at: int, happens: Callable[[], None]) -> None:
        self.words, self.left, self.happens = words, at, happens

    def _count(self) -> None:
        if self.left == 0:
            self.happens()
        self.left -= 1

    def __getitem__(self, index: int) -> int:
        self._count()
        return int(self.words[index])

    def __setitem__(self, index: int, value: int) -> None:
        self._count()
        self.words[index] = value


@pytest.mark.parametrize("again", [False, True], ids=["gone", "another in its entry"])
@pytest.mark.parametrize("side", ["catalog", "table"])
def test_an_eviction_at_any_moment_of_a_lease(side: str, again: bool) -> None:
    """Either the engine gets the chunk and the pool keeps it, or it gets nothing."""
    got_count = missed_count = 0
    for at in range(24):
        table = Table()
        node = Node(table, sets=1)
        chunk = node.put(1)
        assert isinstance(chunk, Chunk)

        def evict(node: Node = node) -> None:
            node.pool.drop(key(1))
            if again:
                assert isinstance(node.put(2), Chunk)

        words = Interrupted(node.words if side == "catalog" else table.words, at, evict)
        header = Header.read(node.words)
        assert header is not None
        reader = CatalogReader(
            words if side == "catalog" else node.words,  # type: ignore[arg-type]  # it has what is used of a memoryview
            header,
            table.words if side == "catalog" else words,  # type: ignore[arg-type]
        )
        got = reader.lease(key(1), catalog.LEASES_AT, 1 << 40)
        if words.left >= 0:
            evict()  # the engine was quicker
        if got is None:
            missed_count += 1
            assert not table.words[catalog.LEASES_AT]
        else:
            got_count += 1
            assert got == (chunk.offset, chunk.size_bytes)
            assert node.pool.pins_count == 1, "the pool knows that it is read"
            assert not again or node.pool.find(key(2)).offset != chunk.offset  # type: ignore[union-attr]
        table.words[catalog.LEASES_AT] = 0
        node.pool.sweep()
        assert node.pool.pins_count == 0
    assert missed_count
    assert got_count


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 1 << 32), allowance_pages=st.integers(0, 8))
def test_an_engine_that_lies_keeps_no_more_than_it_may(seed: int, allowance_pages: int) -> None:
    rng = random.Random(seed)
    liar, honest = Table(allowance_pages * PAGE), Table()
    node = Node(liar, honest)
    for number in range(PAGES):
        node.put(number)
    assert node.reader(honest).lease(key(3), catalog.LEASES_AT, 1 << 40) is not None
    kept = node.pool.find(key(3))
    assert kept is not None
    known = [catalog.lease_word(entry, rng.choice([1, 1, 3, 2])) for entry in range(128)]
    for place in range(2, catalog.TABLE_WORDS):
        liar.words[place] = rng.choice([0, rng.getrandbits(64), *rng.sample(known, 4)])
    for hits, chunks in node.pool.look():
        assert hits.count <= catalog.HITS
        assert len(chunks) <= hits.count
    for number in range(1000, 1000 + 2 * PAGES):
        node.put(number)
    held = [chunk for chunk in (node.pool.find(key(number)) for number in range(PAGES)) if chunk is not None]
    assert kept in held, "an honest engine's chunk stays"
    assert len(held) <= SHOWN_TWICE * allowance_pages + 1
    node.tables.remove(liar)
    node.pool.sweep()
    for number in range(2000, 2000 + 2 * PAGES):
        assert isinstance(node.put(number), Chunk)
    assert node.pool.find(key(3)) is kept


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 1 << 32))
def test_engines_and_evictions_in_any_order(seed: int) -> None:
    """What is leased keeps its place until it is given back; what is not leaves nothing behind."""
    rng = random.Random(seed)
    tables = [Table(), Table()]
    node = Node(*tables)
    readers = [node.reader(table) for table in tables]
    leased: dict[tuple[int, int], tuple[int, int]] = {}
    for _ in range(200):
        number, engine, place = rng.randrange(40), rng.randrange(2), catalog.LEASES_AT + rng.randrange(6)
        match rng.randrange(4):
            case 0:
                made = node.put(number, rng.randint(1, 6))
                if isinstance(made, Chunk):
                    for offset, size_bytes in leased.values():
                        assert made.offset + made.size_bytes <= offset or offset + size_bytes <= made.offset
            case 1 if (engine, place) not in leased:
                got = readers[engine].lease(key(number), place, 1 << 40)
                chunk = node.pool.find(key(number))
                assert got is None or (chunk is not None and got == (chunk.offset, chunk.size_bytes))
                if got is not None:
                    leased[engine, place] = got
                    readers[engine].count_hits([place])
            case 2:
                node.pool.drop(key(number))
            case _ if (engine, place) in leased:
                del leased[engine, place]
                tables[engine].words[place] = 0
            case _:
                node.pool.look()
    for table in tables:
        table.words[catalog.LEASES_AT : catalog.HITS_AT] = memoryview(bytes(8 * catalog.LEASES)).cast("Q")
    node.pool.sweep()
    assert node.pool.pins_count == 0
    for number in range(40):
        node.pool.drop(key(number))
    assert node.pool.usage().free_bytes == PAGES * PAGE


def test_more_chunks_than_entries_are_asked_for() -> None:
    table = Table()
    node = Node(table, sets=1)
    for number in range(10):
        assert isinstance(node.put(number), Chunk)
    found = [node.reader(table).lease(key(number), catalog.LEASES_AT, 1 << 40) for number in range(10)]
    assert sum(one is not None for one in found) == catalog.WAYS
    assert node.catalog.unshown_count == 10 - catalog.WAYS
    table.words[catalog.LEASES_AT] = 0
    for number in range(10):
        assert node.pool.drop(key(number)) is DropOutcome.DROPPED
    assert isinstance(node.put(11), Chunk)
    assert node.reader(table).lease(key(11), catalog.LEASES_AT, 1 << 40) is not None, "entries are used again"


def test_hits_are_told_once_and_the_oldest_are_lost() -> None:
    table = Table()
    node = Node(table)
    node.put(1)
    node.put(2)
    reader = node.reader(table)
    for number, count in ((1, catalog.HITS), (2, 3)):
        assert reader.lease(key(number), catalog.LEASES_AT, 1 << 40) is not None
        for _ in range(count):
            reader.count_hits([catalog.LEASES_AT])
    ((hits, chunks),) = node.pool.look()
    assert (hits.tenant, hits.count) == ("a", catalog.HITS)
    assert [chunk.key for chunk in chunks] == [key(1)] * (catalog.HITS - 3) + [key(2)] * 3
    assert node.pool.look() == []


def test_what_connections_may_lease_is_bounded_for_each_tenant_and_for_all() -> None:
    pool_bytes = 1 << 30
    grants = Grants(pool_bytes)
    one = [grants.begin("a") for _ in range(4)]
    assert one == [pool_bytes * CONNECTION_SHARE] * 2 + [0, 0]
    assert sum(one) == pool_bytes * TENANT_SHARE
    others = [grants.begin(f"tenant {number}") for number in range(10)]
    assert sum(one) + sum(others) == pool_bytes * ALL_SHARE
    grants.end("a", one[0])
    assert grants.begin("b") == one[0]


def test_a_catalog_of_another_kind_is_not_read() -> None:
    node = Node()
    assert Header.read(node.words) == Header(32, SALT)
    for place, value in ((0, 1), (1, catalog.VERSION + 1), (2, 0), (2, 33), (2, 64), (2, 1 << 63)):
        words = memoryview(bytearray(node.words.tobytes())).cast("Q")
        words[place] = value
        assert Header.read(words) is None
    assert Header.read(memoryview(bytes(64)).cast("Q")) is None


# ---------------------------------------------------------------------- with a real agent


@pytest.fixture
def one() -> Iterator[Cluster]:
    with cluster(1) as made:
        yield made


def test_a_local_chunk_is_read_without_the_agent_and_the_agent_hears_of_it(one: Cluster) -> None:
    client, body = one.client(0), os.urandom(10_000)
    client.put(key(1), None, body)
    with client.fetch([key(1)], deadline_s=1) as got:
        assert (got.count, got.sources, bytes(got.views[0])) == (1, [ChunkSource.LOCAL], body)
        assert got.views[0].readonly
        assert one.agents[0].core.pool.pins_count == 0, "the agent knows nothing"
    for _ in range(4):
        client.fetch([key(1)], deadline_s=1).release()
    assert client.stats()["fetch_chunks_total{local}"] == 5
    assert one.agents[0].core.engines.local_reads.hits_count == 5
    assert client.fetch_local([key(1), key(2)]) is None
    assert client.fetch_local([key(1), key(1)]) is None


def test_a_keyword_that_no_fetch_takes_is_an_error_for_local_chunks_too(one: Cluster) -> None:
    client = one.client(0)
    client.put(key(1), None, bytes(4096))
    for fetch in (client.fetch, client.fetch_stream):
        with pytest.raises(TypeError, match="takes no 'recompute': there are recompute_s, queue_s"):
            fetch([key(1)], deadline_s=1.0, recompute=2.0)  # type: ignore[call-arg, operator]


def test_bytes_stay_while_others_fill_the_pool(one: Cluster) -> None:
    reader, writer = one.client(0), one.client(0)
    writer.put(key(0), None, b"x" * 100_000)
    got = reader.fetch_local([key(0)])
    assert got is not None
    before = bytes(got.views[0])
    for number in range(1, 40):
        writer.put(key(number), None, os.urandom(MIB // 2))
    assert writer.drop([key(0)]) == [True]
    for number in range(40, 80):
        writer.put(key(number), None, os.urandom(MIB // 2))
    assert bytes(got.views[0]) == before
    assert len(one.agents[0].core.pool.shown.lingering) == 1
    got.release()
    one.until(lambda: one.agents[0].core.pool.pins_count == 0)


def test_an_engine_that_dies_gives_its_leases_back(one: Cluster) -> None:
    writer, dying = one.client(0), one.client(0)
    writer.put(key(0), None, bytes(100_000))
    assert dying.fetch_local([key(0)]) is not None
    assert writer.drop([key(0)]) == [True]
    assert one.agents[0].core.pool.pins_count == 1
    dying.close()
    one.until(lambda: one.agents[0].core.pool.pins_count == 0)


def test_nothing_is_read_of_an_agent_that_is_gone(one: Cluster) -> None:
    client = one.client(0)
    client.put(key(1), None, bytes(1000))
    agent = one.agents[0]
    one.call(agent.api.close)
    assert client.fetch_local([key(1)]) is None
    with pytest.raises(AgentUnavailableError):
        client.fetch([key(1)], deadline_s=1)


def test_engines_read_the_catalog_and_do_not_write_it(one: Cluster) -> None:
    one.client(0).put(key(1), None, bytes(1000))
    attached = attach(one.agents[0].config.api_socket)
    assert attached.local is not None
    catalog_fd, table_fd = attached.local
    size_bytes = os.fstat(catalog_fd).st_size
    with pytest.raises(PermissionError):
        mmap.mmap(catalog_fd, size_bytes)
    with pytest.raises(PermissionError):
        os.pwrite(catalog_fd, b"x", 0)
    for descriptor in attached.local:
        with pytest.raises(PermissionError):
            os.ftruncate(descriptor, 0)
    os.pwrite(table_fd, os.urandom(catalog.TABLE_BYTES), 0)
    one.call(lambda: one.agents[0].handle(events.FiguresWanted()))
    assert one.client(0).contains([key(1)]) == [Where.LOCAL]
    attached.sock.close()
    attached.close_files()


def test_without_barriers_the_agent_offers_nothing(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(barrier, "issue", lambda: False)
    assert local_leases(MIB) is None
    assert "membarrier(2)" in caplog.text


def test_tables_go_with_their_connections() -> None:
    leases = LocalLeases(MIB)
    made = [leases.open(EngineId(number), "a") for number in range(3)]
    assert [one is not None for one in made] == [True, True, False]
    assert len(leases.all()) == 2
    for number in range(3):
        leases.end(EngineId(number))
    assert not leases.all()
    leases.close()
