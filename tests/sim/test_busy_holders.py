"""Readers of a holder whose uplink is too slow for all of them, with engines that could compute instead."""

import pytest

from hostagent.limits import GIVE_UP_S_MIN
from kvproto.limits import MS
from kvsim.world import Report, Setting, World

CHUNKS = 12
"""3 MiB: 0.26 s of the link."""


def setting(recompute_s: float, **changes) -> Setting:
    return Setting(
        readers=6,
        chunks=CHUNKS,
        segments=64,
        know_link=True,
        recompute_s=recompute_s,
        skew_ns=40 * MS,
        **changes,
    )


def seconds(report: Report, recompute_s: float) -> list[float]:
    """Until each engine has everything, what it computes included."""
    return [
        time_s + (1 - leading / CHUNKS) * recompute_s
        for time_s, leading in zip(report.times_s, report.leading, strict=True)
    ]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("recompute_s", [0.3, 0.6])
def test_unicast_readers_of_one_holder_compute_instead_of_queueing(recompute_s, seed, checked) -> None:
    """All six together take 1.6 s. Computing alone would be as quick for each as it ever gets."""
    world = World(setting(recompute_s, plain=True, seed=seed))
    report = checked(world)
    took = seconds(report, recompute_s)
    assert sum(took) / len(took) < 1.2 * recompute_s
    assert max(report.times_s) <= recompute_s + GIVE_UP_S_MIN, "nobody waits longer than computing takes"
    regret_s = sum(sum(node.core.gate.counts.regret_s.values()) for node in world.readers)
    assert regret_s < 0.2 * len(took) * recompute_s


@pytest.mark.parametrize("seed", range(3))
def test_a_cast_serves_all_of_them_and_nobody_gives_up(seed, checked) -> None:
    world = World(setting(0.6, seed=seed))
    report = checked(world)
    assert report.leading == (CHUNKS,) * 6
    assert [node.core.gate.counts.given_up for node in world.readers] == [0] * 6
