"""Casts by several rails, simulated: how long they take, what leaves the holder, and rails that fail or are slow."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from kvchunk.ids import ChunkKey
from kvproto.limits import MS
from kvproto.session.rail_reader import RailReader
from tests.sim.rail_cast_world import SEGMENT_BYTES, CastWorld

RATE = 50e6 / 8
CHUNKS, SEGMENTS, READERS = 16, 256, 4
SIZE = CHUNKS * SEGMENTS * SEGMENT_BYTES
ONE_RAIL_NS = int(SIZE * 1e9 / RATE)
LIMIT_NS = 10 * ONE_RAIL_NS


def keys(seed: int) -> list[ChunkKey]:
    return [ChunkKey(bytes([1 + seed, index]) * 8) for index in range(CHUNKS)]


def world(rates: Sequence[float], seed: int, starts_ns: Sequence[int] = (0,) * READERS) -> CastWorld:
    made = CastWorld(rates, READERS, SEGMENTS)
    made.want(starts_ns, keys(seed))
    return made


def finished(made: CastWorld) -> float:
    """Time over that of one rail without anything else on it; the last reader counts."""
    made.run(lambda: not made.left_bytes, LIMIT_NS)
    return max(node.done_ns for node in made.readers) / ONE_RAIL_NS


def sent(made: CastWorld) -> float:
    return sum(rail.sent_bytes for rail in made.rails) / SIZE


@pytest.mark.parametrize("seed", range(2))
def test_two_rails_take_half_the_time(seed: int) -> None:
    one, two = world([RATE], seed), world([RATE, RATE], seed)
    assert finished(two) / finished(one) < 0.60
    assert sent(two) < 1.1


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("rail", [0, 1])
def test_a_rail_that_fails_half_way_costs_what_it_had_to_bring(seed: int, rail: int) -> None:
    one, two = world([RATE], seed), world([RATE, RATE], seed)
    two.run(lambda: two.left_bytes <= READERS * SIZE // 2, LIMIT_NS)
    two.rails[rail].works = False
    cut_ns = two.now_ns
    reader = two.readers[seed].reader
    assert isinstance(reader, RailReader)
    (keeper,) = reader.keepers.values()
    two.run(lambda: keeper.rails.left == (rail,), LIMIT_NS)
    assert two.now_ns - cut_ns <= 300 * MS
    assert finished(two) / finished(one) < 0.85
    assert sent(two) < 1.15


@pytest.mark.parametrize("rail", [0, 1])
def test_a_rail_that_is_back_is_taken_again(rail: int) -> None:
    two = world([RATE, RATE], 0)
    two.run(lambda: two.left_bytes <= READERS * SIZE * 3 // 4, LIMIT_NS)
    two.rails[rail].works = False
    two.at(two.now_ns + 500 * MS, lambda: setattr(two.rails[rail], "works", True))
    before = two.rails[rail].sent_bytes
    two.run(lambda: two.now_ns > ONE_RAIL_NS // 2, LIMIT_NS)
    assert two.rails[rail].sent_bytes - before < SIZE // 8, "what nobody hears"
    finished(two)
    assert two.rails[rail].sent_bytes - before > SIZE // 8, "and what they do"
    assert sent(two) < 1.3


@pytest.mark.parametrize("seed", range(2))
def test_a_slow_rail_gets_what_it_can_carry_once_its_rate_is_known(seed: int) -> None:
    slow = world([RATE, RATE / 4], seed)
    assert finished(slow) < 1.4, "half of the chunks were meant for it"
    began_ns = slow.now_ns
    slow.want([began_ns] * READERS, keys(seed + 100))
    assert finished(slow) - began_ns / ONE_RAIL_NS < 1.0
    assert sent(slow) < 2.3


@pytest.mark.parametrize("seed", range(2))
def test_readers_that_start_apart(seed: int) -> None:
    chance = random.Random(seed)
    starts = [0, *(chance.randrange(ONE_RAIL_NS) for _ in range(READERS - 1))]
    two = world([RATE, RATE], seed, starts)
    two.run(lambda: not two.left_bytes, LIMIT_NS)
    took = [(node.done_ns - start) / ONE_RAIL_NS for node, start in zip(two.readers, starts, strict=True)]
    assert sum(took) / READERS < 0.95, took
    assert sent(two) < 3.0
