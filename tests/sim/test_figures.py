"""The figures that the protocol must reach, N = 8, 100 Mbit/s, 16 MiB, in the simulator, where they are exact.

Limits here lie between what issue and design ask of the product on real clocks and what the simulator gives, so that a
change of the rules that costs some per cent is seen.
"""

from dataclasses import replace

import pytest

from kvclient.messages import Status
from kvproto.fanout import Fanout
from kvproto.limits import MS
from kvsim.incast import Hosts, Incast, IncastResult, combine, simulate
from kvsim.link import Faults
from kvsim.node import Scheduling
from kvsim.world import Setting, World
from tests.seeds import also_long

TRANSFER_NS = 1_342 * MS
"""S/B: 16 MiB at 100 Mbit/s."""
INCAST = Setting()
HALF_RATE = 6_250_000.0
BUSY = Scheduling(base_ns=300_000, mean_ns=1_500_000, stall_probability=0.02, stall_ns=20 * MS)
"""A host whose processes are often some milliseconds late."""


def run(setting: Setting, checked):
    report = checked(World(setting))
    assert set(report.outcomes) == {Status.OK}
    return report


@pytest.mark.parametrize("seed", also_long(0, long=(1, 2)))
@pytest.mark.parametrize("scheduling", [Scheduling(), BUSY], ids=["quiet", "busy"])
def test_at_once(seed, scheduling, checked) -> None:
    report = run(replace(INCAST, seed=seed, scheduling=scheduling), checked)
    assert report.mean < 1.05
    assert report.holder_tx < 1.06
    assert report.readers_tx < 0.01


@pytest.mark.parametrize("seed", also_long(0, long=(1, 2)))
@pytest.mark.parametrize("scheduling", [Scheduling(), BUSY], ids=["quiet", "busy"])
def test_staggered(seed, scheduling, checked) -> None:
    report = run(replace(INCAST, seed=seed, scheduling=scheduling, stagger_ns=TRANSFER_NS), checked)
    assert report.mean < 1.11
    assert report.holder_tx < 2.1
    assert report.readers_tx < 0.02


@pytest.mark.parametrize("seed", also_long(2, long=(1, 3)))
def test_readers_that_know_their_links_do_not_probe_them(seed, checked) -> None:
    # One that does not know leads a chunk beside the first cast that it follows: with seed 2 the mean is 1.100 then.
    starts = [0, 180, 1_137, 1_025, 342, 665, 603, 875]

    class Staggered(World):
        def _start(self) -> int:
            return starts.pop(0) * MS

    report = checked(Staggered(replace(INCAST, seed=seed, scheduling=BUSY, know_link=True)))
    assert report.mean < 1.06
    assert report.worst < 1.1


@pytest.mark.parametrize(
    ("rate", "at_most"),
    [(125e6, 1.06), (1250e6, 1.4), (12500e6, 6)],
    ids=["1 Gbit/s", "10 Gbit/s", "100 Gbit/s"],
)
def test_fast_links_do_not_pay_for_slow_ones(rate, at_most, checked) -> None:
    # A newcomer's wait of 12 ms, which is nothing at 100 Mbit/s, makes these 1.12, 2.1 and 13.
    report = run(replace(INCAST, rate_bytes_per_s=rate), checked)
    assert report.mean < at_most
    assert report.holder_tx < 1.06


@pytest.mark.parametrize("stagger_ns", [0, TRANSFER_NS], ids=["at-once", "staggered"])
def test_served_by_the_switch(stagger_ns, checked) -> None:
    report = run(replace(INCAST, cached=True, stagger_ns=stagger_ns), checked)
    assert report.mean < 1.04
    assert report.holder_tx == 0
    assert report.readers_tx < 0.02


@pytest.mark.parametrize("slow", [0, 3], ids=["first", "fourth"])
@pytest.mark.parametrize("seed", also_long(0, long=(1,)))
def test_one_slow_reader(slow, seed, checked) -> None:
    report = run(replace(INCAST, slow={slow: HALF_RATE}, seed=seed), checked)
    assert report.mean_without(slow) < 1.12
    assert report.ratios[slow] < 2.3
    assert report.holder_tx < 2.0


@pytest.mark.parametrize("seed", also_long(1, long=(0, 2)))
def test_one_per_cent_of_everything_is_lost(seed, checked) -> None:
    report = run(replace(INCAST, faults=Faults(loss=0.01), seed=seed), checked)
    assert report.mean < 1.22
    assert report.holder_tx < 1.2


def test_staggered_over_four_transfers(checked) -> None:
    report = run(replace(INCAST, stagger_ns=4 * TRANSFER_NS), checked)
    assert report.mean < 1.1
    assert report.holder_tx < 4.3


@pytest.mark.parametrize("stagger_ns", [0, TRANSFER_NS // 4], ids=["at-once", "staggered"])
def test_thirty_two_readers(stagger_ns, checked) -> None:
    report = run(replace(INCAST, readers=32, chunks=8, segments=128, stagger_ns=stagger_ns), checked)
    assert report.mean < 1.3
    assert report.holder_tx < 2.1


def test_two_hundred_readers_in_four_racks(checked) -> None:
    report = run(replace(INCAST, readers=208, racks=4, chunks=4, segments=64, stagger_ns=100 * MS), checked)
    assert report.mean < 1.6
    assert report.holder_tx < 3
    assert report.readers_tx / 208 < 0.05


def test_alone(checked) -> None:
    report = run(replace(INCAST, readers=1), checked)
    assert report.mean < 1.03
    assert report.holder_tx < 1.02


def test_without_our_switch(checked) -> None:
    report = run(replace(INCAST, plain=True, chunks=4), checked)
    assert report.mean == pytest.approx(8, rel=0.05)


# --- rates that no testbed has: what issue and design ask for, as assertions ---


def fast(rate_gbit: int, transfer_ms: float, seeds: int = 2, **more) -> list[IncastResult]:
    """Some seeds of 8 readers, whose prefix takes one link this long."""
    size = int(rate_gbit * 1e9 / 8 * transfer_ms / 1e3)
    incast = Incast(rate_gbit * 10**9, size, chunk_bytes=max(256 << 10, size // 32), **more)
    return [simulate(replace(incast, seed=seed)) for seed in range(1, seeds + 1)]


def mean(results: list[IncastResult]) -> float:
    assert all(result.complete for result in results)
    assert all(result.readers_tx_S < 0.02 for result in results)
    return combine(results).mean_ratio


@pytest.mark.parametrize("fanout", [Fanout.SWITCH, Fanout.MULTICAST])
@pytest.mark.parametrize("rate_gbit", also_long(100, 400, long=(25,)))
@pytest.mark.parametrize(("stagger", "at_most"), [(False, 1.25), (True, 1.5)], ids=["at-once", "staggered"])
def test_quick_hosts_with_transfers_of_a_millisecond(
    rate_gbit: int, stagger: bool, at_most: float, fanout: Fanout
) -> None:
    # One wake in 2,000 stalls a host for up to a millisecond: where that hits the holder, the transfer takes twice as
    # long whatever the protocol does. Enough seeds make that the exception that it is.
    seeds = {Fanout.SWITCH: 8, Fanout.MULTICAST: 4}[fanout] if rate_gbit == 100 else 2
    assert mean(fast(rate_gbit, 1.35, seeds, stagger=stagger, fanout=fanout)) <= at_most


@pytest.mark.parametrize(("stagger", "at_most"), [(False, 1.05), (True, 1.15)], ids=["at-once", "staggered"])
def test_quick_hosts_with_transfers_of_ten_milliseconds(stagger: bool, at_most: float) -> None:
    assert mean(fast(25, 10.8, stagger=stagger)) <= at_most


@pytest.mark.parametrize("stagger", [False, True], ids=["at-once", "staggered"])
def test_late_hosts_do_not_make_quick_ones_wait(stagger: bool) -> None:
    results = fast(25, 10.8, stagger=stagger, hosts=Hosts.MIXED)
    assert mean(results) <= 1.6
    assert combine(results).quick_mean_ratio <= 1.3


@pytest.mark.parametrize(("stagger", "at_most"), [(False, 1.45), (True, 1.7)], ids=["at-once", "staggered"])
def test_slow_hosts_on_fast_links(stagger: bool, at_most: float) -> None:
    # Times in milliseconds made these 1.33 and 2.6.
    assert mean(fast(25, 10.8, stagger=stagger, hosts=Hosts.SLOW)) <= at_most
