"""Casts across racks: a prefix crosses the core once a rack, whoever wants it there. Holders are in rack 0."""

from dataclasses import replace
from statistics import mean

import pytest

from kvclient.messages import Status
from kvproto.limits import MS
from kvsim.link import Faults
from kvsim.racks import tunnel
from kvsim.world import Setting, World
from tests.seeds import also_long

RACKS = Setting(racks=4, tunnels=True, readers=16, chunks=4, segments=128)
PAYLOAD = RACKS.chunks * RACKS.segments * RACKS.segment_bytes


def run(setting: Setting, checked) -> tuple[World, list[float]]:
    """The world after everybody has everything, and what crossed the core into each rack, over the payload."""
    world = World(setting)
    report = checked(world)
    assert set(report.outcomes) == {Status.OK}
    return world, [world.core.way(rack).sent_bytes / PAYLOAD for rack in range(setting.racks)]


@pytest.mark.parametrize("seeds", also_long(3, long=(6,)))
def test_each_rack_gets_the_prefix_once(seeds: int, checked) -> None:
    """Chance moves a single run by some ten per cent either way; the mean is what a change of the rules moves."""
    sent, into_racks = [], []
    for seed in range(seeds):
        world, crossed = run(replace(RACKS, seed=seed), checked)
        assert crossed[0] < 0.02  # control datagrams only
        into_racks += crossed[1:]
        sent.append(world.holders[0].uplink.sent_bytes / PAYLOAD)
    assert mean(sent) < 1.12, sent
    assert mean(into_racks) < 1.12, into_racks


def test_one_reader_a_rack_shares_with_the_others(checked) -> None:
    world, crossed = run(replace(RACKS, readers=4), checked)
    assert world.holders[0].uplink.sent_bytes / PAYLOAD < 1.3
    assert all(share < 1.3 for share in crossed[1:]), crossed


def test_readers_of_the_holders_rack_are_served_beside_the_others(checked) -> None:
    world, _ = run(replace(RACKS, racks=2, readers=8), checked)
    assert world.holders[0].uplink.sent_bytes / PAYLOAD < 1.2


@pytest.mark.parametrize("seed", also_long(0, long=(1, 2)))
def test_staggered_arrivals(seed, checked) -> None:
    transfer = int(PAYLOAD / RACKS.rate_bytes_per_s * 1e9)
    world, crossed = run(replace(RACKS, stagger_ns=transfer, seed=seed), checked)
    assert world.holders[0].uplink.sent_bytes / PAYLOAD < 2.5
    assert all(share < 2.5 for share in crossed[1:]), crossed


@pytest.mark.parametrize("seeds", also_long(3, long=(6,)))
def test_loss_on_every_link(seeds: int, checked) -> None:
    worlds = [run(replace(RACKS, faults=Faults(loss=0.01), seed=seed), checked)[0] for seed in range(seeds)]
    # In one seed of eight two readers lead beside each other for a while.
    assert mean(world.holders[0].uplink.sent_bytes / PAYLOAD for world in worlds) < 1.4


@pytest.mark.parametrize("rack", [0, 1], ids=["of-the-holder", "of-readers"])
def test_a_switch_forgets_everything(rack, checked) -> None:
    world = World(RACKS)
    world.engine.at(100 * MS, world.switches[rack].reboot)
    report = checked(world)
    assert set(report.outcomes) == {Status.OK}


def test_interest_of_a_rack_ends_with_its_last_reader(checked) -> None:
    world, _ = run(RACKS, checked)
    assert all(switch.interest_left() == {} for switch in world.switches)


def test_racks_are_members_above_the_nodes() -> None:
    assert [tunnel(rack) for rack in range(3)] == [48, 49, 50]
