"""Chunks that several want come by the way that ends first: whole agents' cores, a switch that casts slowly or not."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kvclient.messages import Status
from kvproto.limits import MS
from kvproto.session.choice import Way
from kvsim.incast import QUICK
from kvsim.world import Report, Setting, World

FAST = Setting(
    readers=4,
    chunks=12,
    rate_bytes_per_s=1.25e9,
    delay_ns=2_000,
    queue_ns=6 * MS,
    scheduling=QUICK,
    know_link=True,
)
SLOW_CASTS_NS = 4096 * 1_000 // 150
"""150 MB/s where the links take 1,250."""


def run(setting: Setting, checked) -> tuple[World, Report]:
    world = World(setting)
    report = checked(world)
    assert set(report.outcomes) == {Status.OK}
    return world, report


@pytest.mark.parametrize("readers", [2, 4])
def test_where_casts_are_slow_all_read(readers: int, checked) -> None:
    setting = replace(FAST, readers=readers, cast_ns=SLOW_CASTS_NS)
    _, cast = run(replace(setting, chooses_way=False), checked)
    world, chosen = run(setting, checked)
    assert chosen.mean < 0.75 * cast.mean
    choices = [one for reader in world.readers for one in reader.core.fetches.arrivals.reader.choice.standing()]
    assert any(one.way is Way.READ and one.read_bytes_per_s > one.fanout_bytes_per_s for one in choices)


@pytest.mark.parametrize(("readers", "stagger_ns"), [(2, 0), (8, 0), (6, 335 * MS)])
def test_where_the_link_is_slow_all_is_cast_as_ever(readers: int, stagger_ns: int, checked) -> None:
    setting = Setting(readers=readers, chunks=4, stagger_ns=stagger_ns, scheduling=QUICK, know_link=True)
    _, cast = run(replace(setting, chooses_way=False), checked)
    _, chosen = run(setting, checked)
    assert chosen == cast
