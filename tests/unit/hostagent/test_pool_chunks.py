"""The pool's manager: states, pins, atomic reservation, order of eviction, events."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from hostagent.pool.chunks import Chunk, ChunkPool, ChunkState, DropOutcome, Refusal
from kvchunk.ids import ChunkKey
from kvpolicy.value import Touch
from tests.digests import hashed

PAGE = 4096


class Clock:
    """Time as the test says; each look at it takes a microsecond."""

    def __init__(self) -> None:
        self.now_ns = 0

    def __call__(self) -> int:
        self.now_ns += 1000
        return self.now_ns

    def advance(self, seconds: int) -> None:
        self.now_ns += seconds * 1_000_000_000


def key(number: int) -> ChunkKey:
    return ChunkKey(number.to_bytes(16, "big"))


def make_pool(pages: int) -> ChunkPool:
    return ChunkPool(pages * PAGE, PAGE, Clock())


def stored(pool: ChunkPool, number: int, parent: int | None = None, pages: int = 1) -> Chunk:
    chunk = pool.reserve(key(number), key(parent) if parent is not None else None, pages * PAGE)
    assert isinstance(chunk, Chunk)
    pool.commit(chunk, hashed(number))
    return chunk


def test_chunk_is_invisible_until_committed() -> None:
    pool = make_pool(4)
    chunk = pool.reserve(key(1), None, 100)
    assert isinstance(chunk, Chunk)
    assert pool.find(key(1)) is None
    assert pool.reserve(key(1), None, 100) is Refusal.FILLING
    pool.commit(chunk, hashed(7))
    assert pool.find(key(1)) is chunk
    assert pool.reserve(key(1), None, 100) is Refusal.EXISTS
    assert pool.take_changes() == ([chunk], [])
    assert pool.take_changes() == ([], [])


def test_of_two_that_write_a_chunk_the_first_to_be_whole_is_the_chunk() -> None:
    pool = make_pool(4)
    arriving = pool.reserve(key(1), None, PAGE)
    assert isinstance(arriving, Chunk)
    put = pool.reserve_beside(key(1), PAGE)
    assert isinstance(put, Chunk)
    assert pool.usage().filling_bytes == 2 * PAGE
    assert pool.reserve_beside(key(1), PAGE) is Refusal.FILLING, "two are enough"
    with pytest.raises(ValueError, match="another copy that is not given up"):
        pool.commit(put, hashed(1))
    pool.abort(arriving)
    assert pool.is_filling(key(1)), "the other one goes on"
    pool.commit(put, hashed(1))
    assert pool.find(key(1)) is put
    assert (pool.usage().filling_bytes, pool.usage().free_bytes) == (0, 3 * PAGE)
    with pytest.raises(ValueError, match="is not filling"):
        pool.reserve_beside(key(1), PAGE)


def test_abort_gives_the_room_back_without_an_event() -> None:
    pool = make_pool(1)
    chunk = pool.reserve(key(1), None, PAGE)
    assert isinstance(chunk, Chunk)
    pool.abort(chunk)
    assert chunk.state is ChunkState.GONE
    assert pool.usage().free_bytes == PAGE
    assert pool.take_changes() == ([], [])


def test_chunks_of_one_prefix_that_peers_read_together_are_one_fetch(monkeypatch: pytest.MonkeyPatch) -> None:
    pool = make_pool(8)
    for number, parent in ((1, None), (2, 1), (3, 2), (5, None), (6, 5)):
        stored(pool, number, parent)
    fetches: list[list[tuple[ChunkKey, int]]] = []
    monkeypatch.setattr(
        pool.values, "fetched", lambda touches, _: fetches.append([(one.key, one.readers) for one in touches])
    )
    pool.touch([key(1), key(2), key(9), key(3), key(6), key(2)])
    assert fetches == [[(key(1), 1), (key(2), 2), (key(3), 1)], [(key(6), 1)]], "nobody has chunk 9, or read chunk 5"


def test_least_recently_used_leaf_goes_first_then_its_parent() -> None:
    pool = make_pool(3)
    stored(pool, 1)
    stored(pool, 2, parent=1)
    stored(pool, 3, parent=2)
    pool.touch([key(3)])
    pool.take_changes()
    stored(pool, 4)
    assert pool.take_changes()[1] == [key(3)]
    pool.touch([key(2)])
    stored(pool, 5)
    assert pool.take_changes()[1] == [key(4)]
    stored(pool, 6, pages=3)
    assert pool.take_changes()[1] == sorted([key(1), key(2), key(5)])


def test_what_went_is_told_however_often_it_came_back() -> None:
    pool = make_pool(2)
    stored(pool, 1)
    pool.take_changes()
    pool.drop(key(1))
    again = stored(pool, 1)
    assert pool.take_changes() == ([again], [key(1)])
    pool.drop(key(1))
    stored(pool, 1)
    pool.drop(key(1))
    assert pool.take_changes() == ([], [key(1)])
    stored(pool, 2)
    pool.drop(key(2))
    assert pool.take_changes() == ([], []), "nobody has heard of it"


def test_what_is_fetched_often_outlives_what_is_not() -> None:
    clock = Clock()
    pool = ChunkPool(3 * PAGE, PAGE, clock)
    for number in (1, 2, 3):
        stored(pool, number)
    for _ in range(4):
        clock.advance(1)
        pool.fetched([Touch(key(1), None, 0, PAGE)])
    clock.advance(30)
    stored(pool, 4)
    stored(pool, 5)
    assert pool.find(key(1)) is not None
    assert pool.find(key(2)) is None


def test_what_a_session_ended_goes_first_with_all_that_hangs_on_it() -> None:
    pool = make_pool(3)
    stored(pool, 1)
    stored(pool, 2, parent=1)
    stored(pool, 3)
    pool.finished([key(1)])
    assert pool.next_victims(3) == [key(2), key(1), key(3)]
    pool.fetched([Touch(key(1), None, 0, PAGE)])
    assert pool.next_victims(3)[0] == key(2)


def test_news_of_fetches_elsewhere_count_unless_they_are_an_echo() -> None:
    clock = Clock()
    pool = ChunkPool(2 * PAGE, PAGE, clock)
    stored(pool, 1)
    clock.advance(10)
    stored(pool, 2)
    pool.update_remote_score(key(1), 5.0)
    assert pool.next_victims(1) == [key(1)]
    pool.update_remote_score(key(1), 6.0)
    assert pool.next_victims(1) == [key(2)]
    before = pool.values.score(key(1))
    pool.update_remote_score(key(1), 7.0)
    assert pool.values.score(key(1)) == before


def test_pinned_and_held_chunks_stay_and_a_full_pool_refuses_atomically() -> None:
    pool = make_pool(3)
    first, second, third = stored(pool, 1), stored(pool, 2), stored(pool, 3)
    pool.pin(first)
    pool.retain(second)
    pool.take_changes()
    assert pool.reserve(key(4), None, 2 * PAGE) is Refusal.FULL
    assert pool.find(key(3)) is third
    assert pool.take_changes() == ([], [])
    assert pool.reserve(key(4), None, 4 * PAGE) is Refusal.TOO_LARGE
    assert isinstance(pool.reserve(key(4), None, PAGE), Chunk)
    assert pool.take_changes() == ([], [key(3)])


def test_parents_may_go_when_all_leaves_are_in_use() -> None:
    pool = make_pool(2)
    stored(pool, 1)
    leaf = stored(pool, 2, parent=1)
    pool.pin(leaf)
    stored(pool, 3)
    assert pool.find(key(1)) is None
    assert pool.find(key(2)) is leaf


def test_room_for_a_chunk_is_not_made_from_its_own_prefix() -> None:
    pool = make_pool(8)
    for number in range(8):
        stored(pool, number)
        pool.touch([key(number)])
    chain = range(100, 108)
    for number in chain:
        stored(pool, number, parent=number - 1 if number > chain[0] else None)
    assert all(pool.find(key(number)) for number in chain)
    assert pool.reserve(key(108), key(107), PAGE) is Refusal.FULL
    assert all(pool.find(key(number)) for number in chain)
    stored(pool, 200)
    assert [pool.find(key(number)) is not None for number in chain] == [True] * 7 + [False]


def test_chunk_dropped_while_read_keeps_its_bytes_until_the_last_pin() -> None:
    pool = make_pool(1)
    chunk = stored(pool, 1)
    pool.pin(chunk)
    pool.pin(chunk)
    assert pool.drop(key(1)) is DropOutcome.WAITING
    assert pool.find(key(1)) is None
    assert pool.reserve(key(2), None, PAGE) is Refusal.FULL
    pool.unpin(chunk)
    assert pool.usage().free_bytes == 0
    pool.unpin(chunk)
    assert chunk.state is ChunkState.GONE
    assert pool.usage().free_bytes == PAGE
    assert pool.drop(key(1)) is DropOutcome.ABSENT


def test_held_chunk_is_dropped_only_by_force() -> None:
    pool = make_pool(1)
    chunk = stored(pool, 1)
    pool.retain(chunk)
    assert pool.drop(key(1)) is DropOutcome.HELD
    assert pool.drop(key(1), force=True) is DropOutcome.DROPPED
    pool.release(chunk)


def test_misuse_raises() -> None:
    pool = make_pool(1)
    chunk = stored(pool, 1)
    with pytest.raises(ValueError, match="no pin"):
        pool.unpin(chunk)
    with pytest.raises(ValueError, match="not filling"):
        pool.commit(chunk, hashed(1))
    pool.drop(key(1))
    with pytest.raises(ValueError, match="gone"):
        pool.pin(chunk)
    with pytest.raises(ValueError, match="gone"):
        pool.retain(chunk)


class PoolMachine(RuleBasedStateMachine):
    """Any sequence of operations keeps extents disjoint, counts right, pinned chunks in place and events true."""

    PAGES = 12

    def __init__(self) -> None:
        super().__init__()
        self.pool = make_pool(self.PAGES)
        self.filling: list[Chunk] = []
        self.pinned: list[Chunk] = []
        self.announced: set[ChunkKey] = set()

    @rule(number=st.integers(0, 9), parent=st.integers(-1, 9), pages=st.integers(1, 5))
    def reserve(self, number: int, parent: int, pages: int) -> None:
        before = self.pool.usage()
        above = self.pool.find(key(parent)) if parent >= 0 and parent != number else None
        made = self.pool.reserve(key(number), key(parent) if parent >= 0 and parent != number else None, pages * PAGE)
        if isinstance(made, Chunk):
            self.filling.append(made)
            assert above is None or self.pool.find(above.key) is above
        else:
            assert self.pool.usage() == before

    @precondition(lambda self: self.filling)
    @rule(pick=st.integers(0, 99), whole=st.booleans())
    def finish(self, pick: int, whole: bool) -> None:
        chunk = self.filling.pop(pick % len(self.filling))
        if whole:
            self.pool.commit(chunk, hashed(1))
        else:
            self.pool.abort(chunk)

    @rule(number=st.integers(0, 9))
    def pin(self, number: int) -> None:
        chunk = self.pool.find(key(number))
        if chunk is not None:
            self.pool.pin(chunk)
            self.pool.touch([chunk.key])
            self.pinned.append(chunk)

    @precondition(lambda self: self.pinned)
    @rule(pick=st.integers(0, 99))
    def unpin(self, pick: int) -> None:
        self.pool.unpin(self.pinned.pop(pick % len(self.pinned)))

    @rule(number=st.integers(0, 9), force=st.booleans())
    def drop(self, number: int, force: bool) -> None:
        self.pool.drop(key(number), force=force)

    @rule(number=st.integers(0, 9), keep=st.booleans())
    def hold(self, number: int, keep: bool) -> None:
        chunk = self.pool.find(key(number))
        if chunk is not None:
            if keep:
                self.pool.retain(chunk)
            else:
                self.pool.release(chunk)

    @rule(number=st.integers(0, 9), score=st.floats(0, 10))
    def hear(self, number: int, score: float) -> None:
        self.pool.update_remote_score(key(number), score)

    @rule(number=st.integers(0, 9))
    def finished(self, number: int) -> None:
        self.pool.finished([key(number)])

    @rule(number=st.integers(0, 9), within_s=st.floats(0, 1000))
    def expect(self, number: int, within_s: float) -> None:
        self.pool.expect([key(number)], within_s)

    @rule()
    def announce(self) -> None:
        added, removed = self.pool.take_changes()
        assert all(chunk.state is ChunkState.READY for chunk in added)
        assert not self.announced.isdisjoint(removed) or not removed
        self.announced -= set(removed)
        self.announced |= {chunk.key for chunk in added}
        assert self.announced == {chunk.key for chunk in self.pool.ready_chunks()}

    @invariant()
    def nothing_overlaps_and_nothing_leaks(self) -> None:
        usage = self.pool.usage()
        assert usage.free_bytes + usage.ready_bytes + usage.filling_bytes == self.PAGES * PAGE
        alive = {id(chunk): chunk for chunk in (*self.pool.ready_chunks(), *self.filling, *self.pinned)}
        spans = sorted((chunk.offset, chunk.offset + chunk.size_bytes) for chunk in alive.values())
        assert all(before[1] <= after[0] for before, after in itertools.pairwise(spans))
        assert all(chunk.state is not ChunkState.GONE for chunk in alive.values())
        assert self.pool.pins_count == len(self.pinned)
        assert usage.filling_bytes == sum(chunk.size_bytes for chunk in self.filling)
        kept = {
            id(chunk): chunk.size_bytes
            for chunk in (*self.pool.ready_chunks(), *self.pinned)
            if chunk.pins or chunk.holds
        }
        assert usage.pinned_bytes == sum(kept.values())


PoolMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestPoolMachine = PoolMachine.TestCase
