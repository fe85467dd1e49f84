"""The salt of the interest table: kept over a restart of the controller, new with the epoch, told once written."""

from __future__ import annotations

from controlplane.core.effects import WriteTheSwitch
from controlplane.core.events import TimerFired
from controlplane.core.switch.entries import SaltEntry
from tests.unit.controlplane.helpers import SECOND, Scene


def salted(**changes: object) -> Scene:
    scene = Scene(secret=bytes(32), salt_interval_ns=100 * SECOND, **changes)
    scene.attach(1)
    scene.attach(2)
    scene.up()
    return scene


def salt(scene: Scene) -> object:
    return scene.switch.contents.get(("salt", None))


def epochs(scene: Scene) -> list[int]:
    """As node 1 is told."""
    return [one.switch_state.epoch for one in scene.sent[1] if one.WhichOneof("message") == "switch_state"]


def test_a_switch_gets_a_salt_before_it_becomes_a_kvcast_switch() -> None:
    scene = salted()
    assert isinstance(salt(scene), SaltEntry)
    written = list(scene.switch.contents)
    assert written.index(("salt", None)) < written.index(("fabric", None))


def test_the_salt_changes_with_the_epoch_and_readers_hear_of_it_at_once() -> None:
    scene = salted()
    first, epoch = salt(scene), scene.core.link.epoch
    restarts = scene.core.link.restarts_count
    scene.wait(99)
    assert (salt(scene), scene.core.link.epoch) == (first, epoch)
    scene.wait(2)
    assert salt(scene) != first
    assert scene.core.link.epoch == epoch + 1
    assert epochs(scene)[-1] == epoch + 1, "agents join again"
    assert scene.core.link.restarts_count == restarts, "the switch has lost nothing else"
    assert scene.core.link.present
    scene.wait(100)
    assert scene.core.link.epoch == epoch + 2


def test_agents_hear_of_an_epoch_only_when_the_switch_has_the_salt() -> None:
    """Who joined before would be in an entry that nobody finds any more."""
    scene = salted()
    link, epoch = scene.core.link, scene.core.link.epoch
    scene.wait(99)
    scene.now += 2 * SECOND
    effects = scene.core.handle(TimerFired(), scene.now)
    assert any(isinstance(effect, WriteTheSwitch) for effect in effects)
    assert scene.core.handle(TimerFired(), scene.now) == [], "not written yet"
    assert link.epoch == epoch
    scene.carry_out(effects)
    scene.advance()
    assert link.epoch == epoch + 1
    assert epochs(scene)[-1] == epoch + 1


def test_a_controller_keeps_the_salt_of_its_predecessor() -> None:
    """Casts are under way."""
    scene = salted()
    before = salt(scene)
    second = Scene(secret=bytes([1]) * 32, salt_interval_ns=100 * SECOND, incarnation=2000)
    second.switch = scene.switch
    second.attach(1)
    second.up()
    assert salt(second) == before
    second.wait(101)
    assert salt(second) != before


def test_no_two_controllers_or_epochs_have_the_same_salt() -> None:
    found = set()
    for secret in (bytes(32), bytes([1]) * 32):
        scene = salted(incarnation=1000) if secret == bytes(32) else Scene(secret=secret, salt_interval_ns=SECOND)
        if secret != bytes(32):
            scene.attach(1)
            scene.up()
        found.add(salt(scene))
        scene.wait(101)
        found.add(salt(scene))
    assert len(found) == 4
