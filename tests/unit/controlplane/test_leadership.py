"""What a controller does that leads, that has lost its lease, that another one has replaced."""

from __future__ import annotations

import pytest

from controlplane.core import views
from controlplane.core.events import Deposed, Elected, LeadershipDoubted, Requested, TimerFired
from controlplane.core.leadership import LAPSED_WORDS
from controlplane.core.operations import OperatorError
from kvproto.rpc import control_pb2 as rpc
from tests.unit.controlplane.helpers import SECOND, Scene, key, record


def elected(scene: Scene, epoch: int = 7, lease_s: int = 3) -> None:
    scene.handle(Elected(epoch, scene.now + lease_s * SECOND, "it has the lease"))
    scene.advance()


def warm() -> Requested:
    return Requested("warm", rpc.WarmRequest(key_hex=key("a").hex()))


def scene_with_two(**options: object) -> Scene:
    scene = Scene(with_switch=False, silence_ms=3000, **options)
    elected(scene)
    scene.attach(1, [record("a")])
    scene.attach(2)
    return scene


def beats(scene: Scene, session: int) -> list[rpc.Leads]:
    return [one.leads for one in scene.sent[session] if one.HasField("leads")]


def test_agents_hear_the_epoch_with_their_welcome_and_with_each_task() -> None:
    scene = scene_with_two()
    welcome = scene.sent[2][0].welcome
    assert (welcome.epoch, welcome.silence_ms) == (7, 3000)
    scene.ask(warm())
    scene.advance()
    assert [task.epoch for task in scene.tasks(2, "fetch")] == [7]


def test_signs_of_life_come_three_times_in_the_time_that_a_controller_may_be_silent() -> None:
    scene = scene_with_two()
    before = len(beats(scene, 1))
    for _ in range(60):
        scene.now += SECOND // 10
        scene.handle(TimerFired())
        elected(scene)
    assert 5 <= len(beats(scene, 1)) - before <= 7
    assert not beats(scene, 1)[-1].unsure


def test_without_a_lease_it_serves_what_it_knows_and_starts_nothing() -> None:
    scene = scene_with_two()
    scene.now += 4 * SECOND
    scene.handle(TimerFired())
    assert [words for words in scene.warned if LAPSED_WORDS in words] == [
        f"{LAPSED_WORDS}. It serves what it knows, and starts nothing"
    ]
    assert beats(scene, 1)[-1].unsure
    with pytest.raises(OperatorError, match="lease has run out") as caught:
        scene.ask(warm())
    assert caught.value.code == "UNAVAILABLE"
    scene.announce(1, [record("b")])
    scene.advance()
    assert key("b") in {entry.key for one in scene.sent[2] for entry in one.directory.chunks}
    assert not scene.closed
    assert views.summary(scene.core, "none", "", scene.now).leadership == "lapsed"
    assert scene.core.leadership.lapses_count == 1


def test_work_that_waited_goes_out_when_the_lease_goes_on() -> None:
    scene = scene_with_two()
    scene.ask(warm())
    scene.now += 4 * SECOND
    scene.handle(TimerFired())
    scene.sent[2].clear()
    scene.core.tasks.add_for_each(scene.core.nodes.named("n2").index, "pin", [key("a")], _pins)  # type: ignore[union-attr]
    scene.handle(TimerFired())
    assert scene.tasks(2, "pin") == [], "whoever slept gives no task when it wakes"
    elected(scene)
    assert [task.epoch for task in scene.tasks(2, "pin")] == [7]
    assert any("leads again" in words for words in scene.informed)


def _pins(keys: object) -> rpc.Task:
    return rpc.Task(pin=rpc.PinChunks(keys=keys))  # type: ignore[arg-type]


def test_a_leader_that_slept_writes_nothing_to_the_switch() -> None:
    scene = Scene()
    elected(scene)
    scene.up()
    written = dict(scene.switch.contents)
    assert written
    scene.now += 50 * SECOND
    scene.attach(1, [record("a")])
    scene.advance()
    assert scene.switch.contents == written
    elected(scene, epoch=8)
    assert len(scene.switch.contents) > len(written)


def test_who_is_deposed_says_by_whom_and_refuses() -> None:
    scene = scene_with_two()
    scene.handle(Deposed("another one, c2, has the lease in etcd"))
    assert scene.core.leadership.standby_words == (
        "this controller is on standby: another one, c2, has the lease in etcd"
    )
    with pytest.raises(OperatorError, match="c2"):
        scene.ask(warm())
    assert views.status(scene.core, "none", "", scene.now).switch_view.state == "standby"


def test_doubts_are_told_to_agents_and_change_nothing_else() -> None:
    scene = scene_with_two()
    scene.handle(Elected(8, None, "it is the switch's primary"))
    scene.handle(LeadershipDoubted())
    scene.now += 2 * SECOND
    scene.handle(TimerFired())
    assert beats(scene, 1)[-1].unsure
    scene.ask(warm())
    scene.advance()
    assert [task.epoch for task in scene.tasks(2, "fetch")] == [8]
