"""Relays over racks whose links to each other are slow: whole agents' cores on simulated links."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kvclient.messages import Status
from kvproto.limits import MS
from kvsim.world import Report, World
from tests.sim.test_relay import RELAYS

CORE_BYTES_PER_S = 6_250_000.0
RACKS = replace(RELAYS, racks=4, readers=15, chunks=4, named_racks=True, core_rate_bytes_per_s=CORE_BYTES_PER_S)
PAYLOAD = RACKS.chunks * RACKS.segments * RACKS.segment_bytes


def carried(world: World) -> list[tuple[float, float]]:
    """By rack: what its link carried out and in, over S."""
    into = [world.core.way(rack).sent_bytes / PAYLOAD for rack in range(4)]
    return [(out.sent_bytes / PAYLOAD, into[rack]) for rack, out in enumerate(world.core.ways_out)]


def of(report: Report, *but: int) -> float:
    """Mean ratio over S/B of the core, of all readers but these, which all have everything."""
    assert {one for reader, one in enumerate(report.outcomes) if reader not in but} == {Status.OK}
    return report.mean_without(*but) * CORE_BYTES_PER_S / RACKS.rate_bytes_per_s


def test_a_prefix_crosses_each_link_about_once(checked) -> None:
    world = World(RACKS)
    assert of(checked(world)) < 1.8
    assert all(max(ways) < 1.45 for ways in carried(world)), "unicast would be 4"


@pytest.mark.parametrize("reader", [0, 4])
def test_a_reader_of_another_rack_dies(checked, reader: int) -> None:
    world = World(RACKS)
    world.engine.at(400 * MS, world.readers[reader].kill)
    assert of(checked(world), reader) < 2.2
    assert not any(one.bad_copies for one in world.readers)
