"""A chunk whose holder is busy waits for the switch: for the first holder that is free."""

from __future__ import annotations

from tests.unit.controlplane.helpers import Scene, key, record


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
