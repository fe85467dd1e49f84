"""Fills of the switch that ride on a cast: six readers want a chunk while the controller has it filled."""

from dataclasses import replace

import pytest

from hostagent.core.events import SwitchStateGiven
from hostagent.core.work import TaskStatus
from kvclient.messages import Status
from kvproto.limits import MS
from kvsim.link import Faults
from kvsim.world import Setting, World
from tests.seeds import also_long

ONE = Setting(readers=6, chunks=1, segments=512, ttl_ns=2_000 * MS, deadline_ns=10_000 * MS, seed=5)
"""2 MiB: about 170 ms of the link."""
MIDDLE_NS = 60 * MS


def sent(world: World) -> float:
    """What left the holder, as a multiple of the prefix."""
    setting = world.setting
    return world.holders[0].uplink.sent_bytes / (setting.chunks * setting.segments * setting.segment_bytes)


def run(world: World, checked) -> None:
    """Until the fetches are over, and then the fills."""
    assert set(checked(world).outcomes) == {Status.OK}
    ended = world.holders[0].tasks_ended
    world.engine.run(world.engine.now_ns + 3_000 * MS, lambda: bool(ended))


def stored_right(world: World) -> None:
    """The switch has every segment, each as its holder has it."""
    for key in world.keys:
        cached = world.switch.cache[key]
        assert sorted(cached.slots) == list(range(world.setting.segments))
        assert all(cached.slots[segment] == world.holders[0].data(key, segment) for segment in cached.slots)


@pytest.mark.parametrize("seed", range(4))
def test_a_chunk_comes_into_the_switch_with_its_cast(seed, checked) -> None:
    world = World(replace(ONE, seed=seed))
    world.engine.at(0, lambda: world.fill(0, readers=2))
    run(world, checked)
    assert [task.status for task in world.holders[0].tasks_ended] == [TaskStatus.DONE]
    stored_right(world)
    assert 1.0 < sent(world) < 1.1


@pytest.mark.parametrize("seed", range(3))
def test_a_fill_just_behind_the_first_gets_sends_their_segments_once_more(seed, checked) -> None:
    world = World(replace(ONE, segments=1024, seed=seed))
    world.engine.at(5 * MS, lambda: world.fill(0, readers=2))
    run(world, checked)
    stored_right(world)
    assert 1.05 < sent(world) < 1.2


@pytest.mark.parametrize("seed", range(3))
def test_the_same_fill_for_a_program_that_does_not_know_the_flag_costs_the_chunk_once_more(seed, checked) -> None:
    world = World(replace(ONE, seed=seed))
    world.engine.at(0, lambda: world.fill(0, cast_too=False, readers=2))
    run(world, checked)
    stored_right(world)
    assert 1.9 < sent(world) < 2.2


@pytest.mark.parametrize("seed", range(3))
def test_a_fill_in_the_middle_of_a_cast_sends_only_what_has_left_already(seed, checked) -> None:
    world = World(replace(ONE, seed=seed))
    world.engine.at(MIDDLE_NS, lambda: world.fill(0, readers=6))
    run(world, checked)
    stored_right(world)
    assert 1.3 < sent(world) < 1.7


@pytest.mark.parametrize("seed", range(3))
def test_chunks_of_a_prefix_ride_one_after_the_other(seed, checked) -> None:
    world = World(replace(ONE, chunks=4, segments=256, seed=seed))
    for index in range(4):
        world.engine.at(0, lambda index=index: world.fill(index, readers=6))
    assert set(checked(world).outcomes) == {Status.OK}
    ended = world.holders[0].tasks_ended
    world.engine.run(world.engine.now_ns + 3_000 * MS, lambda: len(ended) == 4)
    assert [task.status for task in ended] == [TaskStatus.DONE] * 4
    stored_right(world)
    assert sent(world) < 1.1


@pytest.mark.parametrize("loss", also_long(0.05, long=(0.01,)))
def test_losses_are_filled_in(loss, checked) -> None:
    """With few more segments than the readers' repairs take without a fill."""
    more = []
    for seed in range(4):
        setting = replace(ONE, seed=seed, faults=Faults(loss=loss, reordering=loss))
        without = World(setting)
        checked(without)
        world = World(setting)
        world.engine.at(0, lambda world=world: world.fill(0, readers=2))
        run(world, checked)
        assert [task.status for task in world.holders[0].tasks_ended] == [TaskStatus.DONE]
        stored_right(world)
        more.append(sent(world) - sent(without))
    assert sum(more) / len(more) < 0.1 + 10 * loss


@pytest.mark.parametrize("seed", range(3))
def test_a_cancelled_fill_leaves_the_cast_alone(seed, checked) -> None:
    """The controller takes its entry out, too: FILLs under way are refused and not cast, so readers ask again."""
    world = World(replace(ONE, seed=seed))

    def cancel() -> None:
        world.switch.cache.clear()
        world.holders[0].cancel_fill()

    world.engine.at(0, lambda: world.fill(0, readers=2))
    world.engine.at(MIDDLE_NS, cancel)
    report = checked(world)
    assert set(report.outcomes) == {Status.OK}
    assert [task.status for task in world.holders[0].tasks_ended] == [TaskStatus.CANCELLED]
    assert world.holders[0].core.idle
    assert sent(world) < 1.4


@pytest.mark.parametrize("told", [True, False], ids=["told", "not-told"])
@pytest.mark.parametrize("seed", range(3))
def test_a_switch_that_restarts_in_the_middle(told, seed, checked) -> None:
    """It waits for no FILL any more and casts none; readers get the chunk all the same, and the fill fails in time."""
    world = World(replace(ONE, seed=seed))

    def restart() -> None:
        world.switch.reboot()
        if told:
            for node in world.readers:
                node.tell(SwitchStateGiven(1))

    world.engine.at(0, lambda: world.fill(0, timeout_s=1.0, readers=2))
    world.engine.at(MIDDLE_NS, restart)
    report = checked(world)
    assert set(report.outcomes) == {Status.OK}
    assert max(report.times_s) < (0.5 if told else 0.8)
    ended = world.holders[0].tasks_ended
    world.engine.run(world.engine.now_ns + 2_000 * MS, lambda: bool(ended))
    assert [task.status for task in ended] == [TaskStatus.FAILED]
    assert world.holders[0].core.idle
