"""Rails that fail, slow down and come back, simulated: how soon reads leave them, and what they take in all."""

from __future__ import annotations

import os

import pytest

from kvproto.limits import MS
from kvsim.chance import Chance
from tests.sim.rail_world import RailChange, RailState, RailWorld

RATE = 6_250_000.0
"""50 Mbit/s."""
STRIPE = 128 << 10
SIZE = 16 << 20
TRANSFER_NS = int(SIZE / RATE * 1e9)
"""On one rail."""
S = 1_000 * MS


def seeds(usual: str) -> range:
    """`KVCAST_MIX_SEEDS=4000-4999 pytest tests/sim/test_rails.py` looks at other seeds than the usual ones."""
    first, _, last = os.environ.get("KVCAST_MIX_SEEDS", usual).partition("-")
    return range(int(first), int(last or first) + 1)


def test_two_rails_halve_the_time() -> None:
    world = RailWorld([RATE, RATE], STRIPE)
    assert world.read(SIZE, 10 * S) == SIZE
    assert world.now_ns < 0.52 * TRANSFER_NS


@pytest.mark.parametrize("state", [RailState.SILENT, RailState.REFUSES])
@pytest.mark.parametrize("rail", [0, 1])
def test_one_is_cut_when_half_the_bytes_are_there(rail: int, state: RailState) -> None:
    """0.75 is what two networks can do then."""
    world = RailWorld([RATE, RATE], STRIPE, [RailChange(TRANSFER_NS // 4, rail, RATE, state)])
    assert world.read(SIZE, 10 * S) == SIZE
    assert world.now_ns < 0.83 * TRANSFER_NS


def test_rates_decide_how_much_a_rail_brings() -> None:
    world = RailWorld([RATE, RATE / 4], STRIPE)
    assert world.read(SIZE, 10 * S) == SIZE
    assert world.now_ns < 1.06 * TRANSFER_NS * 4 / 5
    fast, slow = (rail.brought_bytes for rail in world.rails)
    assert 3 < fast / slow < 6


def test_a_slow_rail_holds_nobody_up() -> None:
    """It is a hundredth of the other from some moment on."""
    world = RailWorld([RATE, RATE], STRIPE, [RailChange(TRANSFER_NS // 4, 1, RATE / 100)])
    assert world.read(SIZE, 10 * S) == SIZE
    assert world.now_ns < 0.75 * TRANSFER_NS + 300 * MS


@pytest.mark.parametrize("state", [RailState.SILENT, RailState.REFUSES])
def test_a_rail_that_is_back_is_taken_again(state: RailState) -> None:
    changes = [RailChange(100 * MS, 1, RATE, state), RailChange(900 * MS, 1, RATE)]
    world = RailWorld([RATE, RATE], STRIPE, changes)
    assert world.read(SIZE, 900 * MS) < SIZE
    before = world.rails[1].brought_bytes
    world.read(SIZE, 2 * S)
    assert world.rails[1].brought_bytes - before > 0.3 * S / 1e9 * RATE
    assert world.choice.left == ()


def test_a_peer_that_pauses_is_no_rail_that_fails() -> None:
    """Both rails are silent at once: the reads stay, and nothing is lost when both go on."""
    changes = [RailChange(200 * MS, rail, RATE, RailState.SILENT) for rail in (0, 1)]
    changes += [RailChange(600 * MS, rail, RATE) for rail in (0, 1)]
    world = RailWorld([RATE, RATE], STRIPE, changes)
    assert world.read(SIZE, 10 * S) == SIZE
    assert world.now_ns < TRANSFER_NS // 2 + 700 * MS


@pytest.mark.parametrize("seed", seeds("0-19"))
def test_random_rails_that_fail(seed: int) -> None:
    """One rail works all the time. The others do as they like, and cost at most 0.3 s for each change."""
    chance = Chance(seed)
    rails = 2 + int(chance.fraction() * 3)
    rates = [RATE * 4 ** (chance.fraction() * 2 - 1) for _ in range(rails)]
    steady = int(chance.fraction() * rails)
    changes = []
    for _ in range(int(chance.fraction() * 8)):
        rail = (steady + 1 + int(chance.fraction() * (rails - 1))) % rails
        state = list(RailState)[int(chance.fraction() * 3)]
        rate = rates[rail] * (0.01 if chance.fraction() < 0.2 else 1)
        changes.append(RailChange(int(chance.fraction() * 3 * S), rail, rate, state))
    world = RailWorld(rates, STRIPE, changes)
    came = 0
    for _ in range(200):
        came += world.read(SIZE, world.now_ns + 20 * MS)
        for index, rail in enumerate(world.rails):
            gone = rail.state is not RailState.WORKS and world.now_ns - rail.since_ns > 300 * MS
            assert not (gone and rail.left_bytes), f"rail {index} holds reads {world.now_ns / 1e9} s, seed {seed}"
    alone = rates[steady] * (world.now_ns - 300 * MS * (1 + len(changes))) / 1e9
    assert came >= 0.9 * alone, f"seed {seed}"
