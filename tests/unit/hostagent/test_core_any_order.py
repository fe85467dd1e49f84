"""Fetches in any order and locks, in one node's core alone."""

from __future__ import annotations

from hostagent import limits
from hostagent.core import effects, events
from hostagent.core.events import EngineId
from kvchunk.sources import ChunkSource
from kvclient.messages import Kind, Status
from kvproto.events import ReadDone, ReadFailed
from tests.counted_keys import CountedKey, counted
from tests.digests import hashed
from tests.unit.hostagent.core_harness import ENGINE, PAGE, Scene, entry, key

FIRST, SECOND = "0.0.0.1:1", "0.0.0.2:1"
"""Where nodes 1 and 2 are read from."""


def fetch_each(scene: Scene, *numbers: int, deadline_s: float = 10.0) -> int:
    scene.request += 1
    keys = tuple(key(number) for number in numbers)
    scene.say(events.ChunksRequested(ENGINE, scene.request, keys, deadline_s, None, any_order=True))
    return scene.request


def answer_of(scene: Scene) -> tuple[Status, tuple[int, ...] | None, list[ChunkSource]]:
    (answer,) = scene.take(effects.FetchAnswered)
    return answer.status, answer.places, [chunk.source for chunk in answer.chunks]


def lock(scene: Scene, *numbers: int, hold_s: float = 10.0, engine: EngineId = ENGINE) -> list[bool]:
    scene.say(events.KeysRequested(engine, 1, Kind.LOCK, tuple(map(key, numbers)), hold_s))
    (answer,) = scene.take(effects.KeysAnswered)
    assert answer.kind is Kind.LOCK
    return list(map(bool, answer.values))


def unlock(scene: Scene, *numbers: int) -> list[bool]:
    scene.say(events.KeysRequested(ENGINE, 1, Kind.UNLOCK, tuple(map(key, numbers))))
    (answer,) = scene.take(effects.KeysAnswered)
    return list(map(bool, answer.values))


def carry_on(scene: Scene, *, gone: tuple[str, ...] = (), silent: tuple[str, ...] = ()) -> None:
    """Answer every StartRead until there are no more; a chunk's checksum is its number."""
    while reads := scene.take(effects.StartRead):
        for read in reads:
            if read.endpoint in gone:
                scene.say(ReadFailed(read.read, gone=True))
            elif read.endpoint not in silent:
                scene.say(ReadDone(read.read))
        for asked in scene.take(effects.ComputeDigest):
            scene.say(events.DigestComputed(asked.chunk, hashed(int.from_bytes(asked.chunk.key, "big")), asked.use))


# ------------------------------------------------------------------ fetches


def test_a_chunk_that_nobody_has_drops_none_of_the_others() -> None:
    scene = Scene()
    scene.put(1)
    scene.put(3)
    fetch_each(scene, 1, 2, 3)
    assert answer_of(scene) == (Status.NOT_FOUND, (0, 2), [ChunkSource.LOCAL] * 2)
    scene.close()


def test_a_holder_that_is_gone_costs_its_chunk_alone() -> None:
    scene = Scene()
    scene.directory(entry(1, 1), entry(2, 2), entry(3, 1))
    scene.put(4)
    fetch_each(scene, 1, 2, 3, 4)
    carry_on(scene, gone=(SECOND,))
    status, places, sources = answer_of(scene)
    assert (status, places) == (Status.UNAVAILABLE, (0, 2, 3))
    assert sources == [ChunkSource.HOLDER, ChunkSource.HOLDER, ChunkSource.LOCAL]
    scene.close()


def test_the_deadline_leaves_out_only_what_is_late() -> None:
    scene = Scene()
    scene.directory(entry(1, 1), entry(2, 2))
    scene.put(3)
    fetch_each(scene, 2, 1, 3, deadline_s=0.1)
    for _ in range(10):
        carry_on(scene, silent=(FIRST,))
        scene.pass_ms(20)
    assert answer_of(scene) == (Status.DEADLINE, (0, 2), [ChunkSource.HOLDER, ChunkSource.LOCAL])
    scene.close()


def test_a_chunk_without_room_leaves_the_others() -> None:
    scene = Scene(pool_pages=4)
    scene.put(1)
    scene.directory(entry(2, 1, pages=8), entry(3, 1, pages=2))
    fetch_each(scene, 2, 3, 1)
    carry_on(scene)
    assert answer_of(scene) == (Status.POOL_FULL, (1, 2), [ChunkSource.HOLDER, ChunkSource.LOCAL])
    scene.close()


def test_many_chunks_without_room_cost_as_much_as_there_are_chunks() -> None:
    scene = Scene(pool_pages=8)
    scene.say(events.EngineConnected(ENGINE, "red"))
    for number in range(8):
        scene.put(number)
    fetch_each(scene, *range(8))
    scene.directory(*(entry(number, 1, pages=1) for number in range(100, 300)))
    scene.made.clear()
    before = CountedKey.compared_count
    keys = tuple(map(counted, range(100, 300)))
    scene.say(events.ChunksRequested(ENGINE, 1000, keys, 10.0, None, any_order=True))
    scene.pass_ms(0)
    assert answer_of(scene) == (Status.POOL_FULL, (), [])
    assert CountedKey.compared_count - before < 20 * 200
    scene.close()


def test_a_prefix_fetch_and_one_in_any_order_share_a_chunk_on_its_way() -> None:
    scene = Scene()
    scene.directory(entry(1, 1), entry(2, 2))
    scene.fetch(1, 2)
    fetch_each(scene, 2, 1)
    carry_on(scene, gone=(FIRST,))
    prefix, scattered = scene.take(effects.FetchAnswered)
    assert (prefix.status, prefix.chunks, prefix.places) == (Status.UNAVAILABLE, (), None)
    assert (scattered.status, scattered.places) == (Status.UNAVAILABLE, (0,))
    scene.close()


def test_another_segment_size_ends_a_fetch_in_any_order_with_what_is_here() -> None:
    scene = Scene()
    scene.put(2)
    scene.directory(entry(1, 1))
    fetch_each(scene, 1, 2)
    scene.say(events.Welcomed(1, 0, None, 2 * PAGE, None, 0, 0.0))
    assert answer_of(scene) == (Status.UNAVAILABLE, (1,), [ChunkSource.LOCAL])
    scene.close()


def test_chunks_without_parents_leave_in_the_order_in_which_they_were_used() -> None:
    scene = Scene(pool_pages=4)
    for number in (1, 2, 3, 4):
        scene.put(number)
        scene.pass_ms(10)
    fetch_each(scene, 3, 1)
    scene.pass_ms(10)
    assert scene.core.pool.next_victims(4)[:2] == [key(2), key(4)]
    scene.close()


# ------------------------------------------------------------------ locks


def test_a_lock_keeps_a_chunk_until_it_is_taken_back() -> None:
    scene = Scene(pool_pages=4)
    chunk = scene.put(1)
    assert lock(scene, 1, 2) == [True, False]
    assert lock(scene, 1) == [True]
    for number in range(2, 7):
        scene.put(number)
    assert scene.core.pool.find(key(1)) is chunk
    assert unlock(scene, 1, 1, 1) == [True, True, False]
    assert (chunk.holds, scene.core.engines.locks.locked_bytes, scene.core.engines.locks.count) == (0, 0, 0)
    scene.close()


def test_a_lock_ends_with_its_time() -> None:
    scene = Scene()
    chunk = scene.put(1)
    lock(scene, 1, hold_s=0.1)
    lock(scene, 1, hold_s=0.3)
    scene.pass_ms(200)
    assert chunk.holds == 1
    scene.pass_ms(200)
    assert (chunk.holds, scene.core.engines.locks.count) == (0, 0)
    assert unlock(scene, 1) == [False]
    scene.close()


def test_locks_end_with_their_engine_alone() -> None:
    scene = Scene()
    chunk = scene.put(1)
    lock(scene, 1)
    lock(scene, 1, 1, engine=EngineId(2))
    scene.say(events.EngineDisconnected(EngineId(2)))
    assert (chunk.holds, scene.core.engines.locks.count) == (1, 1)
    assert unlock(scene, 1) == [True]
    scene.close()


def test_locks_take_no_more_than_their_share_of_the_pool() -> None:
    scene = Scene(pool_pages=8)
    for number in range(6):
        scene.put(number)
    most = int(8 * limits.API_LOCKED_SHARE_MAX)
    assert lock(scene, *range(6)) == [True] * most + [False] * (6 - most)
    assert lock(scene, 0) == [True], "what is locked already takes no more"
    unlock(scene, 0, 0)
    assert lock(scene, 5) == [True]
    scene.close()


def test_a_locked_chunk_is_not_dropped() -> None:
    scene = Scene()
    scene.put(1)
    lock(scene, 1)
    scene.say(events.KeysRequested(ENGINE, 1, Kind.DROP, (key(1),)))
    assert scene.take(effects.KeysAnswered)[0].values == bytes([False])
    unlock(scene, 1)
    scene.say(events.KeysRequested(ENGINE, 2, Kind.DROP, (key(1),)))
    assert scene.take(effects.KeysAnswered)[0].values == bytes([True])
    scene.close()
