"""An engine puts a chunk that a fetch has under way: its bytes are here, so it wins and all who wait are served."""

from __future__ import annotations

from hostagent.core import effects, events
from hostagent.core.events import EngineId, LoadOutcome
from kvchunk.sources import ChunkSource
from kvclient.messages import Status
from kvproto.commands import AbortRead
from tests.unit.hostagent.core_harness import ENGINE, PAGE, Scene, entry, key

OTHER = EngineId(2)


def fetching(scene: Scene, *numbers: int) -> int:
    """An engine waits for chunks that another node has, one page each."""
    scene.directory(*(entry(number, 1, pages=1) for number in numbers))
    return scene.fetch(*numbers)


def reserve(scene: Scene, number: int, size_bytes: int = PAGE, engine: EngineId = OTHER) -> effects.ReserveAnswered:
    scene.say(events.ReserveRequested(engine, 0, key(number), None, size_bytes, None, ""))
    return scene.take(effects.ReserveAnswered)[-1]


def commit(scene: Scene, number: int, reserved: effects.ReserveAnswered) -> effects.CommitAnswered:
    scene.say(events.CommitRequested(OTHER, 0, reserved.lease))
    scene.compute(number)
    return scene.take(effects.CommitAnswered)[-1]


def answered(scene: Scene) -> list[tuple[Status, list[ChunkSource]]]:
    made = scene.take(effects.FetchAnswered)
    for one in made:
        scene.say(events.LeaseReleased(one.engine, one.lease))
    return [(one.status, [chunk.source for chunk in one.chunks]) for one in made]


def test_the_put_ends_the_fetch_of_that_chunk_and_serves_all_who_wait() -> None:
    scene = Scene()
    fetching(scene, 1, 2)
    scene.fetch(1)
    assert len(scene.take(effects.StartRead)) == 1
    reserved = reserve(scene, 1)
    assert reserved.status is Status.OK
    assert answered(scene) == [], "nothing is here yet"
    assert commit(scene, 1, reserved).status is Status.OK
    assert answered(scene) == [(Status.OK, [ChunkSource.LOCAL])], "the one who wants the other one too waits on"
    assert len(scene.take(AbortRead)) == 1
    assert commit(scene, 2, reserve(scene, 2)).status is Status.OK
    assert answered(scene) == [(Status.OK, [ChunkSource.LOCAL] * 2)]
    assert [one.key for one in scene.core.pool.ready_chunks()] == [key(1), key(2)]
    scene.close()


def test_a_fetch_that_is_quicker_than_the_put_keeps_its_chunk() -> None:
    scene = Scene()
    fetching(scene, 1)
    reserved = reserve(scene, 1)
    scene.read()
    scene.compute(1)
    assert answered(scene) == [(Status.OK, [ChunkSource.HOLDER])]
    before = scene.core.pool.find(key(1))
    assert commit(scene, 1, reserved).status is Status.OK
    assert scene.core.pool.find(key(1)) is before
    scene.close()


def test_a_put_that_is_given_up_leaves_the_fetch_alone() -> None:
    scene = Scene()
    fetching(scene, 1)
    reserved = reserve(scene, 1)
    scene.say(events.AbortRequested(OTHER, reserved.lease))
    scene.read()
    scene.compute(1)
    assert answered(scene) == [(Status.OK, [ChunkSource.HOLDER])]
    scene.close()


def test_an_engine_that_goes_away_while_it_writes_leaves_the_fetch_alone() -> None:
    scene = Scene()
    fetching(scene, 1)
    reserve(scene, 1)
    scene.say(events.EngineDisconnected(OTHER))
    scene.read()
    scene.compute(1)
    assert answered(scene) == [(Status.OK, [ChunkSource.HOLDER])]
    scene.close()


def test_a_fetch_that_is_cancelled_leaves_the_put_alone() -> None:
    scene = Scene()
    request = fetching(scene, 1)
    reserved = reserve(scene, 1)
    scene.say(events.CancelRequested(ENGINE, request))
    assert reserve(scene, 1, engine=ENGINE).status is Status.FILLING, "it is the engine's chunk now"
    assert commit(scene, 1, reserved).status is Status.OK
    assert scene.core.pool.find(key(1)) is not None
    assert answered(scene) == [(Status.CANCELLED, [])]
    scene.close()


def test_the_put_wins_while_the_fetched_copy_is_being_verified() -> None:
    scene = Scene()
    fetching(scene, 1)
    scene.read()
    (verifying,) = scene.take(effects.ComputeDigest)
    assert commit(scene, 1, reserve(scene, 1)).status is Status.OK
    assert answered(scene) == [(Status.OK, [ChunkSource.LOCAL])]
    scene.made.append(verifying)
    scene.compute(1)
    assert len(scene.core.pool.ready_chunks()) == 1
    scene.close()


def test_the_put_wins_while_the_disk_reads_the_chunk() -> None:
    scene = Scene(disk_pages=4)
    assert scene.disk is not None
    scene.disk.store(1)
    scene.fetch(1)
    assert commit(scene, 1, reserve(scene, 1)).status is Status.OK
    assert answered(scene) == [(Status.OK, [ChunkSource.LOCAL])]
    scene.load(LoadOutcome.DONE)
    assert len(scene.core.pool.ready_chunks()) == 1
    scene.close()


def test_one_engine_at_a_time_and_of_the_same_size_only() -> None:
    scene = Scene()
    fetching(scene, 1)
    assert reserve(scene, 1, 2 * PAGE).status is Status.FILLING
    reserved = reserve(scene, 1)
    assert reserved.status is Status.OK
    assert reserve(scene, 1, engine=ENGINE).status is Status.FILLING
    commit(scene, 1, reserved)
    answered(scene)
    scene.close()


def test_without_room_for_two_the_fetch_goes_on() -> None:
    scene = Scene(pool_pages=1)
    fetching(scene, 1)
    assert reserve(scene, 1).status is Status.FILLING
    scene.read()
    scene.compute(1)
    assert answered(scene) == [(Status.OK, [ChunkSource.HOLDER])]
    scene.close()
