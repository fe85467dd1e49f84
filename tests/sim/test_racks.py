"""Casts across racks: a prefix crosses the core once a rack, whoever wants it there. Holders are in rack 0."""

from dataclasses import replace

import pytest

from kvproto.commands import Outcome
from kvproto.limits import MS
from kvproto.sim.link import Faults
from kvproto.sim.racks import tunnel
from kvproto.sim.world import Setting, World

RACKS = Setting(racks=4, tunnels=True, readers=16, chunks=4, segments=128)
PAYLOAD = RACKS.chunks * RACKS.segments * RACKS.segment_bytes


def run(setting: Setting, settled) -> tuple[World, list[float]]:
    """The world after everybody has everything, and what crossed the core into each rack, over the payload."""
    world = World(setting)
    report = settled(world)
    assert set(report.outcomes) == {Outcome.COMPLETE}
    return world, [world.core.way(rack).sent_bytes / PAYLOAD for rack in range(setting.racks)]


@pytest.mark.parametrize("seed", range(3))
def test_each_rack_gets_the_prefix_once(seed, settled) -> None:
    world, crossed = run(replace(RACKS, seed=seed), settled)
    assert all(share < 1.2 for share in crossed[1:]), crossed
    assert crossed[0] < 0.02  # control datagrams only
    assert world.holders[0].link.sent_bytes / PAYLOAD < 1.2


def test_one_reader_a_rack_shares_with_the_others(settled) -> None:
    world, crossed = run(replace(RACKS, readers=4), settled)
    assert world.holders[0].link.sent_bytes / PAYLOAD < 1.3
    assert all(share < 1.3 for share in crossed[1:]), crossed


def test_readers_of_the_holders_rack_are_served_beside_the_others(settled) -> None:
    world, _ = run(replace(RACKS, racks=2, readers=8), settled)
    assert world.holders[0].link.sent_bytes / PAYLOAD < 1.2


@pytest.mark.parametrize("seed", range(3))
def test_staggered_arrivals(seed, settled) -> None:
    transfer = int(PAYLOAD / RACKS.rate_bytes_per_s * 1e9)
    world, crossed = run(replace(RACKS, stagger_ns=transfer, seed=seed), settled)
    assert world.holders[0].link.sent_bytes / PAYLOAD < 2.5
    assert all(share < 2.5 for share in crossed[1:]), crossed


def test_loss_on_every_link(settled) -> None:
    world, _ = run(replace(RACKS, faults=Faults(loss=0.01)), settled)
    assert world.holders[0].link.sent_bytes / PAYLOAD < 1.6


@pytest.mark.parametrize("rack", [0, 1], ids=["of-the-holder", "of-readers"])
def test_a_switch_forgets_everything(rack, settled) -> None:
    world = World(RACKS)
    world.engine.at(100 * MS, world.switches[rack].reboot)
    report = settled(world)
    assert set(report.outcomes) == {Outcome.COMPLETE}


def test_interest_of_a_rack_ends_with_its_last_reader(settled) -> None:
    world, _ = run(RACKS, settled)
    assert all(switch.interest_left() == {} for switch in world.switches)


def test_racks_are_members_above_the_nodes() -> None:
    assert [tunnel(rack) for rack in range(3)] == [48, 49, 50]
