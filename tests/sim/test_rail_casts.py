"""Casts by several rails, simulated: how long they take, what leaves the holder, and rails that fail or are slow."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from kvchunk.ids import ChunkKey
from tests.sim.rail_cast_world import SEGMENT_BYTES, CastWorld

RATE = 50e6 / 8
CHUNKS, SEGMENTS, READERS = 16, 256, 8
SIZE = CHUNKS * SEGMENTS * SEGMENT_BYTES
ONE_RAIL_NS = int(SIZE * 1e9 / RATE)
LIMIT_NS = 10 * ONE_RAIL_NS


def keys(seed: int) -> list[ChunkKey]:
    return [ChunkKey(bytes([1 + seed, index]) * 8) for index in range(CHUNKS)]


def world(rates: Sequence[float], seed: int, starts_ns: Sequence[int] = (0,) * READERS) -> CastWorld:
    made = CastWorld(rates, READERS, keys(seed), SEGMENTS)
    made.want(starts_ns)
    return made


def finished(made: CastWorld) -> float:
    """Time over that of one rail without anything else on it; the last reader counts."""
    made.run(lambda: not made.left_bytes, LIMIT_NS)
    return max(node.done_ns for node in made.readers) / ONE_RAIL_NS


def sent(made: CastWorld) -> float:
    return sum(rail.sent_bytes for rail in made.rails) / SIZE


@pytest.mark.parametrize("seed", range(4))
def test_two_rails_take_half_the_time(seed: int) -> None:
    one, two = world([RATE], seed), world([RATE, RATE], seed)
    assert finished(two) / finished(one) < 0.60
    assert sent(two) < 1.1


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("rail", [0, 1])
def test_a_rail_that_fails_half_way_costs_what_it_had_to_bring(seed: int, rail: int) -> None:
    one, two = world([RATE], seed), world([RATE, RATE], seed)
    two.run(lambda: two.left_bytes <= READERS * SIZE // 2, LIMIT_NS)
    two.rails[rail].works = False
    assert finished(two) / finished(one) < 0.85
