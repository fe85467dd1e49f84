"""A new controller hears once what its predecessors heard."""

from __future__ import annotations

from hostagent.core import effects, events
from kvchunk.ids import ChunkKey
from tests.unit.hostagent.core_harness import MS, PAGE, Scene, key


def welcome(scene: Scene, controller: int) -> None:
    scene.say(events.Welcomed(controller, 0, None, PAGE, None, 0, 0.0))


def told(scene: Scene) -> list[tuple[list[ChunkKey], dict[ChunkKey, int]]]:
    """(chunks used, fetches of the past by chunk) of each report since the last look."""
    reports = scene.take(effects.ReportUsage)
    return [([use.key for use in one.uses], {k: past.touches for k, past in one.past}) for one in reports]


def use(scene: Scene, *numbers: int) -> None:
    scene.fetch(*numbers)
    scene.pass_ms(300)


def test_a_new_controller_hears_of_fetches_that_were_reported_to_another() -> None:
    scene = Scene()
    for number in (1, 2):
        scene.put(number)
    welcome(scene, 100)
    scene.take(effects.ReportUsage)
    use(scene, 1, 2)
    use(scene, 1)
    assert [past for _, past in told(scene)] == [{}, {}], "it hears of each as it happens"
    scene.say(events.ControllerLost())
    welcome(scene, 100)
    assert not told(scene), "the same one knows"
    scene.say(events.ControllerLost())
    use(scene, 2)
    welcome(scene, 200)
    scene.pass_ms(300)
    assert told(scene) == [([], {key(1): 2, key(2): 1}), ([key(2)], {})], "what nobody heard is told as it always is"
    scene.say(events.ControllerLost())
    welcome(scene, 200)
    assert not told(scene)
    scene.say(events.ControllerLost())
    welcome(scene, 100)
    assert not told(scene), "told twice it would count twice"
    welcome(scene, 300)
    [(_, past)] = told(scene)
    assert past == {key(1): 2, key(2): 2}


def test_times_are_told_as_of_now() -> None:
    scene = Scene()
    scene.put(1)
    welcome(scene, 1)
    use(scene, 1)
    first_ns = scene.now_ns - 300 * MS
    use(scene, 1)
    second_ns = scene.now_ns - 300 * MS
    scene.pass_ms(5000)
    scene.take(effects.ReportUsage)
    welcome(scene, 2)
    [report] = scene.take(effects.ReportUsage)
    [(_, past)] = report.past
    assert abs(past.idle_s * 1e9 - (scene.now_ns - second_ns)) < MS
    assert past.gap_s is not None
    assert abs(past.gap_s * 1e9 - (second_ns - first_ns)) < MS
