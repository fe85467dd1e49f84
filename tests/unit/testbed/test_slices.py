"""Programs that ran by turns are compared within a round, whatever the machine did between rounds."""

from __future__ import annotations

from bmv2_testbed.bench.rdma.slices import Slice, Spread, rates, ratios, spread


def test_a_machine_that_changes_its_pace_does_not_change_the_ratio() -> None:
    paces = (1.0, 0.5, 2.0, 0.25, 1.0)
    rounds = [{"ours": Slice(3_000, 1 / pace), "theirs": Slice(4_000, 2 / pace)} for pace in paces]
    assert ratios(rounds, "ours", "theirs") == Spread(1.5, 1.5, 1.5)
    assert rates(rounds, "ours") == Spread(1_500, 3_000, 3_000)


def test_quartiles() -> None:
    assert spread([4.0, 1.0, 2.0, 5.0, 3.0]) == Spread(2.0, 3.0, 4.0)
    assert spread([7.0]) == Spread(7.0, 7.0, 7.0)


def test_cpu_time_is_told_by_the_byte() -> None:
    assert Slice(2**21, 1.0, 0.5).cpu_s_per_byte * 2**20 == 0.25
