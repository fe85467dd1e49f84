"""A pool outlives its agent: what was whole is served again, and nothing that is wrong, whenever the agent dies."""

from __future__ import annotations

import itertools
import os
import random
import signal
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from hostagent import limits
from hostagent.core import effects, events
from hostagent.core.core import AgentCore
from hostagent.core.node import Knowledge
from hostagent.core.options import CoreOptions
from hostagent.pool.chunks import Chunk, ChunkPool, ChunkState, Refusal
from hostagent.pool.index import HEADER_BYTES, Found, PoolIndex, index_bytes
from hostagent.pool.records import RECORD_BYTES, Record
from kvchunk.ids import ChunkKey
from kvchunk.parts import ByteRange
from kvclient import fetched
from kvclient.client import (
    AgentClient,
    AgentUnavailableError,
    Fetched,
    FetchStream,
    LeaseLostError,
    PoolFullError,
    PutOutcome,
    Status,
)
from kvclient.polled_client import PolledClient
from kvpolicy.value.costs import PRIORS
from tests.digests import digest, hashed
from tests.ports import free_port
from tests.unit.hostagent.agent_harness import key
from tests.unit.hostagent.service_manager import ServiceManager

PAGE = 4096
PAGES = 16
ID = b"0123456789abcdef"
SECOND = 1_000_000_000


class Journal(bytearray):
    """Memory that remembers each write: a process can be killed after any of their bytes."""

    def __init__(self, size: int) -> None:
        super().__init__(size)
        self.writes: list[tuple[int, bytes]] = []

    def __setitem__(self, part: slice, content: bytes) -> None:  # type: ignore[override]
        self.writes.append((part.start, bytes(content)))
        super().__setitem__(part, content)


def find(buffer: bytearray) -> list[Found]:
    found = PoolIndex(buffer, PAGES, ID).find(PAGES * PAGE)
    assert found is not None
    return found


def pool_of(index: PoolIndex) -> ChunkPool:
    return ChunkPool(PAGES * PAGE, PAGE, lambda: 0, index=index)


class Life:
    """A pool that lives at random, and what its memory holds after each write to the index."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self.journal = Journal(index_bytes(PAGES))
        index = PoolIndex(self.journal, PAGES, ID)
        index.begin(PAGES * PAGE)
        self._pool = pool_of(index)
        self._filling: list[Chunk] = []
        self._ready: list[Chunk] = []
        self._pinned: list[Chunk] = []
        self.pages: dict[int, int] = {}
        """What an engine wrote last, by page: what the chunk there is to hold."""
        self.history: list[dict[int, int]] = []

    def step(self) -> None:
        move = self._random.choice(
            (self._put, self._put, self._write, self._commit, self._pin, self._unpin, self._drop)
        )
        move()
        self.history += [dict(self.pages)] * (len(self.journal.writes) - len(self.history))

    def _put(self) -> None:
        pages = self._random.randint(1, 4)
        made = self._pool.reserve(key(self._random.randint(1, 12)), None, pages * PAGE, namespace="tenant")
        if isinstance(made, Chunk):
            self._filling.append(made)

    def _write(self) -> None:
        """An engine writes: everything in the extent is something new."""
        if self._filling:
            self._fill(self._random.choice(self._filling), self._random.getrandbits(60))

    def _fill(self, chunk: Chunk, content: int) -> None:
        # The bytes change while the index stands as it is.
        self.history += [dict(self.pages)] * (len(self.journal.writes) - len(self.history))
        for page in pages_of(chunk.offset, chunk.size_bytes):
            self.pages[page] = content
        if self.history:
            self.history[-1] = dict(self.pages)

    def _commit(self) -> None:
        if self._filling:
            chunk = self._filling.pop(self._random.randrange(len(self._filling)))
            content = self._random.getrandbits(60)
            self._fill(chunk, content)
            self._pool.commit(chunk, hashed(content))
            self._ready.append(chunk)

    def _pin(self) -> None:
        ready = [chunk for chunk in self._ready if chunk.state is ChunkState.READY]
        if ready:
            chunk = self._random.choice(ready)
            self._pool.pin(chunk)
            self._pinned.append(chunk)

    def _unpin(self) -> None:
        if self._pinned:
            self._pool.unpin(self._pinned.pop(self._random.randrange(len(self._pinned))))

    def _drop(self) -> None:
        self._pool.drop(key(self._random.randint(1, 12)))


def pages_of(offset: int, size_bytes: int) -> range:
    return range(offset // PAGE, (offset + size_bytes) // PAGE)


@pytest.mark.parametrize("seed", range(6))
def test_killed_at_any_write_nothing_wrong_is_believed(seed: int) -> None:
    """Every READY record names bytes that are that very chunk, whichever byte of the index was the last one written."""
    life = Life(seed)
    for _ in range(150):
        life.step()
    rebuilt = bytearray(index_bytes(PAGES))
    cut = random.Random(seed)
    believed = 0
    for number, (at, content) in enumerate(life.journal.writes):
        torn = bytearray(rebuilt)
        size = cut.randrange(len(content) + 1)
        torn[at : at + size] = content[:size]
        rebuilt[at : at + len(content)] = content
        for buffer, whole in ((torn, False), (rebuilt, True)):
            if number == 0 and not whole:
                continue  # an index without a header is no index
            pages = life.history[number] if whole or not number else life.history[number - 1]
            taken: set[int] = set()
            for found in find(bytearray(buffer)):
                extent = set(pages_of(found.record.offset, found.record.size_bytes))
                assert not extent & taken, "two records claim one page"
                taken |= extent
                if found.ready:
                    believed += 1
                    assert {digest(pages[page]) for page in extent} == {found.record.digest}
                    assert found.record.namespace == "tenant"
    assert believed > 100


def test_an_index_of_another_pool_is_none() -> None:
    buffer = bytearray(index_bytes(PAGES))
    PoolIndex(buffer, PAGES, ID).begin(PAGES * PAGE)
    assert PoolIndex(buffer, PAGES, ID).find(PAGES * PAGE) == []
    assert PoolIndex(buffer, PAGES, b"f" * 16).find(PAGES * PAGE) is None
    assert PoolIndex(buffer, PAGES, ID).find(2 * PAGES * PAGE) is None
    buffer[3] ^= 1
    assert PoolIndex(buffer, PAGES, ID).find(PAGES * PAGE) is None


def test_a_damaged_record_is_ignored_and_its_slot_used_again() -> None:
    buffer = bytearray(index_bytes(PAGES))
    index = PoolIndex(buffer, PAGES, ID)
    index.begin(PAGES * PAGE)
    pool = pool_of(index)
    for number in (1, 2):
        chunk = pool.reserve(key(number), None, PAGE)
        assert isinstance(chunk, Chunk)
        pool.commit(chunk, hashed(number))
    buffer[index_bytes(PAGES) - PAGES * RECORD_BYTES + 20] ^= 1
    again = PoolIndex(buffer, PAGES, ID)
    (found,) = again.find(PAGES * PAGE) or []
    assert found.record.key == key(2)
    assert again.hold(found.record) == 0
    assert buffer[HEADER_BYTES] == 1


# ---------------------------------------------------------------------- taking over, in the core


class Heir:
    """The core of the agent that comes after; the test is its shell."""

    def __init__(self, buffer: bytearray) -> None:
        index = PoolIndex(buffer, PAGES, ID)
        found = index.find(PAGES * PAGE)
        assert found is not None
        self.core = AgentCore(CoreOptions(PAGES * PAGE, PAGE), Knowledge("n0", PRIORS), index=index)
        self.now_ns = SECOND
        self.made: list[effects.Effect] = []
        self.say(events.PoolFound(tuple(found)))

    def say(self, event: events.Event) -> None:
        self.made += self.core.handle(event, self.now_ns)

    def verify(self, numbers: dict[ChunkKey, int]) -> None:
        """Compute what is asked for until nothing is."""
        while asked := [one for one in self.made if isinstance(one, effects.ComputeDigest)]:
            assert len(asked) <= limits.ADOPTED_AT_ONCE
            assert all(one.in_background for one in asked)
            self.made = [one for one in self.made if one not in asked]
            for one in asked:
                self.say(events.DigestComputed(one.chunk, hashed(numbers[one.chunk.key]), one.use))


def left(*numbers: int, pinned: tuple[int, ...] = (), filling: tuple[int, ...] = ()) -> bytearray:
    """An index as an agent left it: chunks of one page, each with its number as contents."""
    buffer = bytearray(index_bytes(PAGES))
    index = PoolIndex(buffer, PAGES, ID)
    index.begin(PAGES * PAGE)
    pool = pool_of(index)
    for number in (*numbers, *pinned, *filling):
        chunk = pool.reserve(key(number), None, PAGE, position=number)
        assert isinstance(chunk, Chunk)
        if number not in filling:
            pool.commit(chunk, hashed(number))
        if number in pinned:
            pool.pin(chunk)
    return buffer


def test_what_is_right_is_served_and_what_is_not_is_gone() -> None:
    buffer = left(*range(1, 11))
    heir = Heir(buffer)
    assert heir.core.pool.find(key(1)) is None, "not before it is compared"
    assert isinstance(heir.core.pool.reserve(key(1), None, PAGE), Refusal)
    heir.verify({key(number): number if number != 4 else 99 for number in range(1, 11)})
    assert [number for number in range(1, 12) if heir.core.pool.find(key(number))] == [1, 2, 3, 5, 6, 7, 8, 9, 10]
    (adopted,) = (one for one in heir.made if isinstance(one, effects.PoolAdopted))
    assert adopted == effects.PoolAdopted(9, 9 * PAGE, 1)
    chunk = heir.core.pool.find(key(5))
    assert chunk is not None
    assert (chunk.digest, chunk.position) == (digest(5), 5)
    heir.say(events.Stopped())
    assert heir.core.pool.pins_count == 0
    assert {found.record.key for found in find(buffer)} == {key(number) for number in range(1, 11) if number != 4}


def test_killed_again_before_all_is_compared_nothing_is_lost() -> None:
    buffer = left(*range(1, 11))
    Heir(buffer)
    again = Heir(buffer)
    again.verify({key(number): number for number in range(1, 11)})
    assert all(again.core.pool.find(key(number)) for number in range(1, 11))


def test_what_an_engine_may_still_use_is_given_to_nobody_for_a_while() -> None:
    buffer = left(1, pinned=(2,), filling=(3,))
    heir = Heir(buffer)
    heir.verify({key(number): number for number in (1, 2, 3)})
    pool = heir.core.pool
    assert pool.find(key(3)) is None
    full = [pool.reserve(key(number), None, PAGE) for number in range(10, 10 + PAGES - 3)]
    assert all(isinstance(chunk, Chunk) for chunk in full)
    assert pool.reserve(key(9), None, PAGE) is Refusal.FULL, "an engine may have leased the first without asking"
    for chunk in full:
        assert isinstance(chunk, Chunk)
        pool.abort(chunk)
    heir.now_ns += int(limits.ADOPTED_HELD_S * SECOND)
    heir.say(events.TimerFired())
    assert isinstance(pool.reserve(key(9), None, PAGES * PAGE), Chunk)


def test_two_claims_to_one_place_or_key_are_one_chunk() -> None:
    buffer = bytearray(index_bytes(PAGES))
    index = PoolIndex(buffer, PAGES, ID)
    index.begin(PAGES * PAGE)
    for number, offset in ((1, 0), (2, 0), (1, PAGE), (3, PAGES * PAGE), (4, 17)):
        record = Record(key(number), None, 0, "", offset, PAGE, digest(number), 0)
        index.ready(index.hold(record), record)
    heir = Heir(buffer)
    heir.verify({key(number): number for number in range(5)})
    assert [chunk.key for chunk in heir.core.pool.ready_chunks()] == [key(1)]
    assert [found.record.key for found in find(buffer)] == [key(1)]


# ---------------------------------------------------------------------- a real agent, killed and started again

CHUNK_BYTES = 64 * 1024


def content(number: int) -> bytes:
    return random.Random(number).randbytes(CHUNK_BYTES)


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="kvcast-") as made:
        yield Path(made)


def configure(folder: Path, pool: str = "{size: 16MiB}") -> Path:
    config = folder / "agent.yaml"
    config.write_text(
        "node: n0\n"
        f"data: {{address: 127.82.0.1, cast_port: {free_port()}, control_port: {free_port()}, read_port: 0}}\n"
        f"pool: {pool}\n"
        f"api: {{socket: {folder}/agent.sock}}\n"
        "http: {port: 0}\n"
    )
    return config


@pytest.fixture
def manager(folder: Path) -> Iterator[ServiceManager]:
    made = ServiceManager(folder, configure(folder))
    try:
        made.start()
        yield made
    finally:
        made.close()


def until_taken_over(client: AgentClient) -> None:
    """Wait until every chunk of the agent before is compared."""
    while client.stats()["pool_bytes{filling}"]:
        pass


def test_an_agent_that_is_killed_has_its_pool_again(folder: Path, manager: ServiceManager) -> None:
    assert sorted(manager.store) == ["kvcast-index", "kvcast-pool"]
    with AgentClient(folder / "agent.sock") as client:
        for number in range(20):
            parent = key(number - 1) if number else None
            assert client.put(key(number), parent, content(number), namespace="a") is PutOutcome.STORED
        reserved = client.reserve(key(99), None, CHUNK_BYTES)
        assert reserved is not None
        reserved.view[:100] = b"x" * 100
    for end in (signal.SIGKILL, signal.SIGTERM, signal.SIGKILL):
        manager.end(end)
        manager.start()
        with AgentClient(folder / "agent.sock") as client:
            until_taken_over(client)
            with client.fetch([key(number) for number in range(20)], deadline_s=5) as got:
                assert got.count == 20
                assert [bytes(view) for view in got.views] == [content(number) for number in range(20)]
            with client.fetch([key(99)], deadline_s=5) as nothing:
                assert nothing.outcome is Status.NOT_FOUND
    log = manager.end()
    assert "the pool of the agent before is taken over: 20 chunks" in log


def test_readers_notice_that_the_agent_restarted(folder: Path, manager: ServiceManager) -> None:
    """The new agent may give the memory under a lease to other chunks: no copy may pass for right."""
    path, keys = folder / "agent.sock", [key(1), key(2)]
    with AgentClient(path) as here, AgentClient(path, local_reads=False) as asking, AgentClient(path) as idle:
        for number in (1, 2):
            here.put(key(number), None, content(number))
        held: list[Fetched | fetched.Found[memoryview] | fetched.Found[list[memoryview]] | FetchStream] = []
        for client in (here, asking):
            held.append(client.fetch(keys, deadline_s=5))
            held.append(client.fetch(keys, deadline_s=5, any_order=True))
            held.append(client.fetch(keys, deadline_s=5, ranges=[ByteRange(0, 100)]))
            stream = client.fetch_stream(keys, deadline_s=5)
            assert len(list(stream)) == 2
            held.append(stream)
        polled = PolledClient(path)
        leased = polled.lease_here(keys)
        for one in held:
            one.check()
        manager.end()
        manager.start()
        for one in held:
            for call in (one.check, one.release):
                with pytest.raises(LeaseLostError, match="drop what was copied"):
                    call()
            one.release()
        if leased is not None:
            with pytest.raises(LeaseLostError):
                leased.release()
        with pytest.raises(AgentUnavailableError):
            idle.fetch(keys, deadline_s=5)
        polled.close()


@pytest.mark.parametrize("local_reads", [True, False])
def test_leaving_a_with_says_so_but_not_in_place_of_what_went_wrong(
    folder: Path, manager: ServiceManager, local_reads: bool
) -> None:
    with AgentClient(folder / "agent.sock", local_reads=local_reads) as client:
        client.put(key(1), None, content(1))
        first, second = (client.fetch([key(1)], deadline_s=5) for _ in range(2))
        with client.fetch_stream([key(1)], deadline_s=5) as third:
            assert len(list(third)) == 1
            with pytest.raises(LeaseLostError), first:
                manager.end()
            with pytest.raises(ZeroDivisionError), second:
                raise ZeroDivisionError
            with pytest.raises(LeaseLostError):
                third.release()


def test_bytes_that_changed_meanwhile_are_not_served(folder: Path, manager: ServiceManager) -> None:
    with AgentClient(folder / "agent.sock") as client:
        for number in range(3):
            client.put(key(number), None, content(number))
    manager.end()
    image = os.pread(manager.store["kvcast-pool"], 16 << 20, 0)
    os.pwrite(manager.store["kvcast-pool"], b"!", image.index(content(1)) + 1000)
    manager.start()
    with AgentClient(folder / "agent.sock") as client:
        until_taken_over(client)
        for number, count in ((0, 1), (1, 0), (2, 1)):
            with client.fetch([key(number)], deadline_s=5) as got:
                assert got.count == count
    assert "2 chunks of 128 KiB are right, 1 are not" in manager.end()


class Writer(threading.Thread):
    """An engine that puts chunks and takes some away, until its agent is gone."""

    def __init__(self, path: Path, first: int) -> None:
        super().__init__()
        self._path = path
        self._first = first
        self.stored: list[int] = []
        self.enough = threading.Event()

    def run(self) -> None:
        try:
            with AgentClient(self._path) as client:
                for number in itertools.count(self._first):
                    try:
                        if client.put(key(number), None, content(number)) is PutOutcome.STORED:
                            self.stored.append(number)
                    except PoolFullError:
                        continue
                    if number % 7 == 0:
                        client.drop([key(number)])
                    if len(self.stored) >= 40:
                        self.enough.set()
        except AgentUnavailableError:
            return


@pytest.mark.parametrize("pool", ["64MiB", "2MiB"], ids=["roomy", "always full"])
def test_killed_in_the_midst_of_puts(folder: Path, pool: str) -> None:
    manager = ServiceManager(folder, configure(folder, f"{{size: {pool}}}"))
    try:
        manager.start()
        known: set[int] = set()
        for life in range(2):
            writers = [Writer(folder / "agent.sock", 100_000_000 * life + 10_000_000 * one) for one in range(2)]
            for writer in writers:
                writer.start()
            for writer in writers:
                assert writer.enough.wait(300), "one of two takes all room from the other"
            manager.end()
            for writer in writers:
                writer.join(60)
                known |= set(writer.stored)
            manager.start()
            with AgentClient(folder / "agent.sock") as client:
                until_taken_over(client)
                served = check(client, known)
            kept = {number for number in known if number % 7}
            if pool == "64MiB":
                assert kept <= served, "what was whole is served"
            assert served
    finally:
        manager.close()


def check(client: AgentClient, numbers: set[int]) -> set[int]:
    """Those that are served, every byte right."""
    served = set()
    for number in sorted(numbers):
        with client.fetch([key(number)], deadline_s=5) as got:
            if got.count:
                assert bytes(got.views[0]) == content(number), number
                served.add(number)
    return served


@pytest.mark.parametrize(
    ("pool", "why"),
    [
        ("{size: 8MiB}", "it has 16 MiB, pool.size is 8 MiB"),
        ("{size: 16MiB, keep: false}", None),
    ],
    ids=["another size", "not to be kept"],
)
def test_a_pool_that_does_not_fit_is_given_back(
    folder: Path, manager: ServiceManager, pool: str, why: str | None
) -> None:
    with AgentClient(folder / "agent.sock") as client:
        client.put(key(1), None, content(1))
    manager.end()
    before = dict(manager.store)
    configure(folder, pool)
    manager.start()
    with AgentClient(folder / "agent.sock") as client, client.fetch([key(1)], deadline_s=1) as got:
        assert got.count == 0
    assert manager.told.count("FDSTOREREMOVE=1\nFDNAME=kvcast-pool") == 1
    assert set(manager.store) == (set(before) if why else set())
    log = manager.end()
    assert why is None or why in log


def test_half_of_a_pool_is_none(folder: Path, manager: ServiceManager) -> None:
    manager.end()
    os.close(manager.store.pop("kvcast-index"))
    manager.start()
    assert sorted(manager.store) == ["kvcast-index", "kvcast-pool"]
    assert "kvcast-pool is all that was kept of it" in manager.end()
