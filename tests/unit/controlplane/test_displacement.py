"""The benchmark of displacement: every chunk that comes in does so for one that goes."""

from __future__ import annotations

from bmv2_testbed.bench.policy.displacement import measure_displacement
from tests.unit.controlplane.helpers import Scene, key, record


def test_a_full_switch_takes_dearer_chunks() -> None:
    cost = measure_displacement(residents=32, displaced=20, waiting=4)
    assert (cost.residents, cost.displaced) == (32, 20)
    assert cost.displacement_us > 0


def test_a_candidate_waits_for_its_holder_and_no_longer() -> None:
    scene = Scene(slots=64)
    names = ["a", "b", "c", "d"]
    scene.attach(1, [record(name) for name in names])
    scene.attach(2)
    scene.up()
    for name in names:
        scene.heat(name)
    filling = [task.fill.key for task in scene.tasks(1, "fill")]
    assert len(filling) == 2, "a holder fills two at once"
    waits = next(name for name in names if key(name) not in filling)
    scene.announce(2, [record(waits)])
    scene.wait(0.1)
    assert [task.fill.key for task in scene.tasks(2, "fill")] == [key(waits)], "another holder is found at once"
    scene.finish(1, scene.tasks(1, "fill")[0])
    assert len(scene.tasks(1, "fill")) == 3, "the last one begins as soon as a fill is done, in no time at all"
