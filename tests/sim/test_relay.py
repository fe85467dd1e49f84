"""Readers that pass on what arrives, without a switch's help: whole agents' cores on simulated links."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kvclient.messages import Status
from kvproto.fanout import Fanout
from kvproto.limits import MS
from kvsim.incast import QUICK
from kvsim.link import Faults
from kvsim.world import Report, Setting, World

RELAYS = Setting(
    readers=4,
    chunks=6,
    plain=True,
    is_known_plain=True,
    fanout=Fanout.RELAY,
    scheduling=QUICK,
    deadline_ns=20_000 * MS,
)
TRANSFER_NS = 500 * MS


def of(report: Report, *but: int) -> float:
    """Mean ratio of all readers but these, which all have everything."""
    assert {one for reader, one in enumerate(report.outcomes) if reader not in but} == {Status.OK}
    return report.mean_without(*but)


def with_(**changes: object) -> World:
    return World(replace(RELAYS, **changes))  # type: ignore[arg-type]


def test_at_once(checked) -> None:
    report = checked(with_())
    assert of(report) < 1.3
    assert report.holder_tx < 1.2


def test_staggered(checked) -> None:
    report = checked(with_(stagger_ns=TRANSFER_NS))
    assert of(report) < 1.3
    assert report.holder_tx < 1.3


@pytest.mark.parametrize("slow", [0, 3])
def test_a_reader_at_half_rate_is_a_leaf(checked, slow: int) -> None:
    report = checked(with_(slow={slow: 6_250_000.0}))
    assert of(report, slow) < 1.5, "first in a chain it costs the others 2.3"


def test_loss(checked) -> None:
    report = checked(with_(faults=Faults(loss=0.01)))
    assert of(report) < 2.0
    assert report.holder_tx < 2.0


@pytest.mark.parametrize("seed", range(3))
def test_a_reader_dies(checked, seed: int) -> None:
    world = with_(seed=seed)
    world.engine.at(TRANSFER_NS // 2, world.readers[1].kill)
    report = checked(world)
    assert of(report, 1) < 2.0
    assert not any(reader.bad_copies for reader in world.readers)


def test_the_keeper_dies_and_another_holder_goes_on(checked) -> None:
    world = with_(holders=2)
    world.engine.at(TRANSFER_NS // 2, world.holders[0].kill)
    assert of(checked(world)) < 2.5


def test_only_the_holder_that_lies_is_blamed() -> None:
    world = with_(holders=2)
    for index, key in enumerate(world.keys):
        world.holders[1].hold(key, RELAYS.segments, index, wrong=True)
    report = world.run()
    assert set(report.outcomes) == {Status.OK}
    blamed = {bad.holder for reader in world.readers for bad in reader.bad_copies}
    assert blamed == {world.holders[1].name}
