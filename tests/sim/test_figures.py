"""The figures that the protocol must reach, N = 8, 100 Mbit/s, 16 MiB, in the simulator, where they are exact.

Limits here lie between what issue and design ask of the product on real clocks and what the simulator gives, so that a
change of the rules that costs some per cent is seen.
"""

from dataclasses import replace

import pytest

from kvproto.commands import Outcome
from kvproto.limits import MS
from kvproto.sim.link import Faults
from kvproto.sim.node import Scheduling
from kvproto.sim.world import Setting, World

TRANSFER_NS = 1_342 * MS
"""S/B: 16 MiB at 100 Mbit/s."""
INCAST = Setting()
HALF_RATE = 6_250_000.0
BUSY = Scheduling(base_ns=300_000, mean_ns=1_500_000, stall_probability=0.02, stall_ns=20 * MS)
"""A host whose processes are often some milliseconds late."""


def run(setting: Setting, settled):
    report = settled(World(setting))
    assert set(report.outcomes) == {Outcome.COMPLETE}
    return report


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("scheduling", [Scheduling(), BUSY], ids=["quiet", "busy"])
def test_at_once(seed, scheduling, settled) -> None:
    report = run(replace(INCAST, seed=seed, scheduling=scheduling), settled)
    assert report.mean < 1.05
    assert report.holder_tx < 1.06
    assert report.readers_tx < 0.01


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("scheduling", [Scheduling(), BUSY], ids=["quiet", "busy"])
def test_staggered(seed, scheduling, settled) -> None:
    report = run(replace(INCAST, seed=seed, scheduling=scheduling, stagger_ns=TRANSFER_NS), settled)
    assert report.mean < 1.11
    assert report.holder_tx < 2.1
    assert report.readers_tx < 0.02


@pytest.mark.parametrize(
    ("rate", "at_most"),
    [(125e6, 1.06), (1250e6, 1.4), (12500e6, 6)],
    ids=["1 Gbit/s", "10 Gbit/s", "100 Gbit/s"],
)
def test_fast_links_do_not_pay_for_slow_ones(rate, at_most, settled) -> None:
    # A newcomer's wait of 12 ms, which is nothing at 100 Mbit/s, makes these 1.12, 2.1 and 13.
    report = run(replace(INCAST, rate_bytes_per_s=rate), settled)
    assert report.mean < at_most
    assert report.holder_tx < 1.06


@pytest.mark.parametrize("stagger_ns", [0, TRANSFER_NS], ids=["at-once", "staggered"])
def test_served_by_the_switch(stagger_ns, settled) -> None:
    report = run(replace(INCAST, cached=True, stagger_ns=stagger_ns), settled)
    assert report.mean < 1.04
    assert report.holder_tx == 0
    assert report.readers_tx < 0.02


@pytest.mark.parametrize("slow", [0, 3], ids=["first", "fourth"])
@pytest.mark.parametrize("seed", range(2))
def test_one_slow_reader(slow, seed, settled) -> None:
    report = run(replace(INCAST, slow={slow: HALF_RATE}, seed=seed), settled)
    assert report.mean_without(slow) < 1.12
    assert report.ratios[slow] < 2.3
    assert report.holder_tx < 2.0


@pytest.mark.parametrize("seed", range(3))
def test_one_per_cent_of_everything_is_lost(seed, settled) -> None:
    report = run(replace(INCAST, faults=Faults(loss=0.01), seed=seed), settled)
    assert report.mean < 1.22
    assert report.holder_tx < 1.2


def test_staggered_over_four_transfers(settled) -> None:
    report = run(replace(INCAST, stagger_ns=4 * TRANSFER_NS), settled)
    assert report.mean < 1.1
    assert report.holder_tx < 4.3


@pytest.mark.parametrize("stagger_ns", [0, TRANSFER_NS // 4], ids=["at-once", "staggered"])
def test_thirty_two_readers(stagger_ns, settled) -> None:
    report = run(replace(INCAST, readers=32, chunks=8, segments=128, stagger_ns=stagger_ns), settled)
    assert report.mean < 1.3
    assert report.holder_tx < 2.1


def test_two_hundred_readers_in_four_racks(settled) -> None:
    report = run(replace(INCAST, readers=208, racks=4, chunks=4, segments=64, stagger_ns=100 * MS), settled)
    assert report.mean < 1.6
    assert report.holder_tx < 3
    assert report.readers_tx / 208 < 0.05


def test_alone(settled) -> None:
    report = run(replace(INCAST, readers=1), settled)
    assert report.mean < 1.03
    assert report.holder_tx < 1.02


def test_without_our_switch(settled) -> None:
    report = run(replace(INCAST, plain=True, chunks=4), settled)
    assert report.mean == pytest.approx(8, rel=0.05)
