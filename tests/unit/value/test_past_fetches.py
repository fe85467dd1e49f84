"""What several nodes counted tells somebody who comes later what a single witness would know."""

from __future__ import annotations

import random

import pytest

from kvchunk.ids import ChunkKey
from kvpolicy.value import CacheValues, FetchTally, PastFetches, Touch

SECOND = 1_000_000_000
NODES = 4
CHUNKS = 40


def key(number: int) -> ChunkKey:
    return ChunkKey(number.to_bytes(16, "big"))


def touch(number: int) -> Touch:
    return Touch(key(number), None, 0, 4096)


def witness_and_successor(seed: int) -> tuple[CacheValues, CacheValues, int]:
    """Chunk n is fetched n times as often as chunk 1, by any node. Returns who saw all of it, who was told later by
    every node, and when."""
    rng = random.Random(seed)
    witness, successor = CacheValues(1 << 40), CacheValues(1 << 40)
    tallies = [FetchTally(1000) for _ in range(NODES)]
    now_ns = 0
    for number in rng.choices(range(1, CHUNKS + 1), weights=range(1, CHUNKS + 1), k=3000):
        now_ns += int(rng.expovariate(2.0) * SECOND)
        witness.fetched([touch(number)], now_ns)
        rng.choice(tallies).fetched(key(number), now_ns)
    now_ns += 5 * SECOND
    for tally in tallies:
        past = dict(tally.past(now_ns))
        successor.remember([touch(int.from_bytes(one, "big")) for one in past], list(past.values()), now_ns)
    return witness, successor, now_ns


@pytest.mark.parametrize("seed", range(3))
def test_the_successor_expects_what_the_witness_expects(seed: int) -> None:
    witness, successor, now_ns = witness_and_successor(seed)
    for number in range(5, CHUNKS + 1):
        expected = witness.rate(key(number), now_ns)
        assert successor.rate(key(number), now_ns) == pytest.approx(expected, rel=0.1)
        assert successor.idle_s(key(number), now_ns) == pytest.approx(witness.idle_s(key(number), now_ns), abs=1e-6)
        assert successor.touched_again(key(number), now_ns) == witness.touched_again(key(number), now_ns)
    later_ns = now_ns + 30 * SECOND
    for one in (witness, successor):
        one.fetched([touch(CHUNKS)], later_ns)
    assert successor.rate(key(CHUNKS), later_ns) == pytest.approx(witness.rate(key(CHUNKS), later_ns), rel=0.1)


def test_what_a_pool_keeps_follows_from_it_at_once() -> None:
    values = CacheValues(3 * 4096)
    for number in (1, 2, 3):
        values.add([touch(number)], 0)
    values.remember([touch(3), touch(1)], [PastFetches(9, 5.0, 1.0, 2.0), PastFetches(4, 3.0, 2.0, 3.0)], 2 * SECOND)
    assert [one[-1] for one in values.victims(2 * SECOND)] == [2, 1, 3]


def test_a_tally_forgets_what_was_fetched_longest_ago() -> None:
    tally = FetchTally(2, half_life_s=10.0)
    for at_s, number in enumerate((1, 2, 1, 3)):
        tally.fetched(key(number), at_s * SECOND)
    assert len(tally) == 2
    assert dict(tally.past(13 * SECOND)) == {
        key(1): PastFetches(2, pytest.approx(1 + 2**-0.2), pytest.approx(11.0), pytest.approx(2.0)),
        key(3): PastFetches(1, 1.0, pytest.approx(10.0), None),
    }
