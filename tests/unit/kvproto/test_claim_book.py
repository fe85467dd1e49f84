"""Who computes what: a change costs the same however many claims there are, and what one may claim is bounded."""

from __future__ import annotations

import pickle
import sys
from collections.abc import Callable
from dataclasses import replace
from types import FrameType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvchunk.ids import ChunkKey
from kvproto.claim_book import ClaimBook, ClaimBounds, room_of
from kvproto.deadlines import FINEST_BITS, RELATIVE_BITS, Deadlines
from kvproto.limits import CLAIMED_BYTES_MIN, CLAIMERS_PER_CHUNK_MAX

S = 1_000_000_000
PAGE = CLAIMED_BYTES_MIN
MANY = ClaimBounds(1 << 30, 1 << 60, 1 << 30, 1 << 60, 100)


def key(number: int) -> ChunkKey:
    return ChunkKey(number.to_bytes(16, "big"))


def add(book: ClaimBook[int], claimer: int, number: int, eta_s: float = 100.0, now_ns: int = 0) -> None:
    eta_ns = now_ns + int(eta_s * S)
    book.add(claimer, key(number), PAGE, (eta_ns, eta_ns), now_ns)


def calls_of(action: Callable[[], object]) -> int:
    """Calls of Python and C functions: what a clock would say, without its noise."""
    count = 0

    def called(_: FrameType, event: str, __: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(called)
    try:
        action()
    finally:
        sys.setprofile(None)
    return count


def test_a_claim_costs_the_same_however_many_there_are() -> None:
    book: ClaimBook[int] = ClaimBook()
    costs = []
    for size in (100, 70_000, 140_000):
        while book.count < size:
            add(book, book.count % 17, book.count, 1 + book.count % 600)
        costs.append(
            [
                calls_of(lambda: add(book, 3, 1_000_000, 599.9)),
                calls_of(lambda: add(book, 3, 1_000_000, 599.9)),
                calls_of(lambda: book.room(3, PAGE, MANY)),
                calls_of(lambda: book.late.due(0, 100)),
                calls_of(lambda: book.remove(book.held(3)[key(1_000_000)])),
            ]
        )
    assert costs[1] == costs[2]
    assert all(cost < 60 for cost in costs[2])


TIMES = st.integers(0, 700 * S)


@given(st.lists(st.tuples(st.integers(0, 9), TIMES), max_size=60), st.lists(TIMES, max_size=10))
def test_things_come_due_in_order_a_little_late_and_only_once(added: list[tuple[int, int]], looks: list[int]) -> None:
    deadlines: Deadlines[int] = Deadlines()
    at: dict[int, tuple[int, int]] = {}
    for thing, due_ns in added:
        if thing in at:
            deadlines.discard(thing, at[thing][1])
        at[thing] = due_ns, deadlines.add(thing, due_ns, 0)
        assert 0 <= at[thing][1] - due_ns <= max(1 << FINEST_BITS, due_ns >> (RELATIVE_BITS - 1))
    for now_ns in sorted(looks):
        assert deadlines.next_ns == min((moment for _, moment in at.values()), default=None)
        while due := deadlines.due(now_ns, 2):
            assert len(due) <= 2
            for thing in due:
                moment = at.pop(thing)[1]
                assert moment <= now_ns
                deadlines.discard(thing, moment)
        assert all(moment > now_ns for _, moment in at.values())


def test_moments_are_few_whoever_sets_the_times() -> None:
    deadlines: Deadlines[str] = Deadlines()
    moments: set[int] = set()
    for number in range(200_000):
        moment = deadlines.add("x", number * 3_750_017, 0)
        deadlines.discard("x", moment)
        moments.add(moment)
    assert len(moments) < 110_000, "in ten minutes"
    assert deadlines.next_ns is None


def test_a_moment_that_is_used_again_and_again_is_remembered_once() -> None:
    deadlines: Deadlines[str] = Deadlines()
    deadlines.discard("x", deadlines.add("x", 1_000_000, 0))
    once = pickle.dumps(deadlines)
    for _ in range(1000):
        deadlines.discard("x", deadlines.add("x", 1_000_000, 0))
    assert pickle.dumps(deadlines) == once


@pytest.mark.parametrize(
    ("held", "total", "room"), [(0, 0, 100), (99, 99, 1), (100, 100, 0), (10, 100, 10), (20, 100, 0), (5, 99, 15)]
)
def test_beyond_the_bound_each_has_its_even_share(held: int, total: int, room: int) -> None:
    assert max(0, room_of(held, total, 100, 5)) == room


@given(st.lists(st.integers(0, 20), max_size=400))
def test_all_together_take_no_more_than_twice_the_bound(takers: list[int]) -> None:
    held: dict[int, int] = {}
    for one in takers:
        if room_of(held.get(one, 0), sum(held.values()), 42, 21) > 0:
            held[one] = held.get(one, 0) + 1
        assert held.get(one, 0) >= 1
    assert sum(held.values()) <= 84


def test_bytes_are_bounded_by_the_pool_and_a_tiny_chunk_counts_as_a_page() -> None:
    book: ClaimBook[int] = ClaimBook()
    bounds = ClaimBounds(1000, 4 * PAGE, 1000, 4 * PAGE, 2)
    assert book.room(1, 1, bounds) == 4
    assert book.room(1, 3 * PAGE, bounds) == 1
    assert book.room(1, 5 * PAGE, bounds) == 0
    for number in range(4):
        add(book, 1, number)
    assert book.room(1, 1, bounds) == 0
    assert book.room(2, PAGE, bounds) == 2, "its even share"
    assert book.room(2, PAGE, replace(bounds, each=1)) == 1
    book.remove(book.held(1)[key(0)])
    assert book.room(1, 1, bounds) == 1


def test_a_chunk_is_crowded_when_so_many_compute_it() -> None:
    book: ClaimBook[int] = ClaimBook()
    for claimer in range(CLAIMERS_PER_CHUNK_MAX):
        assert not book.is_crowded(key(1))
        add(book, claimer, 1)
    assert book.is_crowded(key(1))
    for claimer in range(CLAIMERS_PER_CHUNK_MAX):
        book.remove(book.held(claimer)[key(1)])
    assert not book.by_key
    assert (book.count, book.size_bytes) == (0, 0)
