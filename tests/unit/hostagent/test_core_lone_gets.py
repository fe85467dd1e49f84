"""Which chunks the core offers to lone gets, and what it makes of those that came so."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hostagent.core import effects, events
from hostagent.core.chunk_entry import ChunkEntry, Variant
from hostagent.core.directory import Delta
from kvchunk.ids import Digest
from kvchunk.sources import ChunkSource
from kvclient.lone import SLOT_BYTES
from kvproto.integrity import Integrity, digest_of
from tests.digests import digest, hashed
from tests.unit.hostagent.core_harness import ENGINE, PAGE, Scene, key


def entry(number: int, *holders: int, size_bytes: int = PAGE) -> ChunkEntry:
    return ChunkEntry(key(number), None, size_bytes, digest(number), 0, holders or (1,))


@pytest.fixture
def scene() -> Scene:
    made = Scene(lone_gets=True)
    made.say(events.EngineConnected(ENGINE, "red"))
    return made


def offered(scene: Scene) -> list[tuple[bytes, str]]:
    return [(one.key, one.node) for one in scene.take(effects.OfferLone)]


def got(number: int, buffer: int = 5, found: Digest | None = None) -> events.LoneGot:
    return events.LoneGot(ENGINE, key(number), PAGE, found or digest(number), "n1", 1e-4, buffer)


def test_a_small_chunk_of_one_other_node_is_offered(scene: Scene) -> None:
    scene.directory(entry(1))
    (offer,) = scene.take(effects.OfferLone)
    assert (offer.key, offer.size_bytes, offer.digest, offer.node) == (key(1), PAGE, digest(1), "n1")
    assert offer.endpoint == "0.0.0.1:1"
    assert len(scene.take(effects.TellLoneCosts)) == 1
    scene.directory(entry(1))
    assert not offered(scene), "nothing is said twice"


@pytest.mark.parametrize(
    "other",
    [
        entry(1, 1, 2),
        entry(1, 0),
        entry(1, size_bytes=SLOT_BYTES + 1),
        replace(entry(1), served=True),
        replace(entry(1), others=(Variant(PAGE, digest(2), (2,)),)),
        replace(entry(1), holders=(), disk_holders=(1,)),
        replace(entry(1), digest=digest_of(Integrity.XXH3, bytes(8))),
    ],
    ids=["two holders", "here alone", "large", "served", "other bytes", "on a disk", "xxh3"],
)
def test_what_needs_a_decision_is_not(scene: Scene, other: ChunkEntry) -> None:
    scene.directory(other)
    assert not offered(scene)
    scene.directory(entry(1))
    assert offered(scene) == [(key(1), "n1")]
    scene.directory(other)
    assert [one.key for one in scene.take(effects.WithdrawLone)] == [key(1)]


def test_a_holder_that_leaves_is_not_asked(scene: Scene) -> None:
    scene.directory(entry(1))
    assert offered(scene)
    scene.say(events.DirectoryChanged(Delta(scene.core.directory.sequence + 1, chunks_gone=(key(1),))))
    assert [one.key for one in scene.take(effects.WithdrawLone)] == [key(1)]


def test_what_lies_on_this_nodes_disk_is_not_offered() -> None:
    scene = Scene(lone_gets=True, disk_pages=8)
    assert scene.disk is not None
    scene.disk.store(1)
    scene.directory(entry(1))
    assert not offered(scene)


def test_without_a_thread_nothing_is_offered() -> None:
    scene = Scene()
    scene.directory(entry(1))
    assert not offered(scene)


def test_what_was_got_becomes_a_chunk_of_the_pool(scene: Scene) -> None:
    scene.directory(entry(1))
    scene.say(got(1))
    (taken,) = scene.take(effects.TakeLone)
    assert taken.buffer == 5
    chunk = taken.chunk
    assert chunk is not None
    assert scene.core.pool.find(key(1)) is None, "nobody finds it before its bytes are there"
    scene.say(events.LoneTaken(chunk, hashed(1)))
    assert scene.core.pool.find(key(1)) is chunk
    assert (chunk.tenant, chunk.digest) == ("red", digest(1))
    (ended,) = scene.take(effects.FetchEnded)
    assert ended.delivered == ((ChunkSource.HOLDER, 1, PAGE),)


def test_bytes_that_changed_on_the_way_are_no_chunk(scene: Scene) -> None:
    scene.directory(entry(1))
    scene.say(got(1))
    (taken,) = scene.take(effects.TakeLone)
    assert taken.chunk is not None
    scene.say(events.LoneTaken(taken.chunk, hashed(2)))
    assert scene.core.pool.find(key(1)) is None
    assert scene.core.pool.usage().filling_bytes == 0


def test_what_is_here_or_on_its_way_is_not_taken_twice(scene: Scene) -> None:
    scene.directory(entry(1), entry(2))
    scene.put(1)
    scene.fetch(2)
    for number in (1, 2):
        scene.say(got(number))
    assert [one.chunk for one in scene.take(effects.TakeLone)] == [None, None]
    scene.read()
    scene.compute(2)
    assert scene.core.pool.find(key(2)) is not None


def test_the_directory_may_know_others_by_then(scene: Scene) -> None:
    scene.directory(entry(1))
    scene.say(got(1, found=digest(7)))
    scene.say(got(3))
    assert [one.chunk for one in scene.take(effects.TakeLone)] == [None, None]


def test_of_an_engine_that_is_gone_the_pool_takes_it_all_the_same(scene: Scene) -> None:
    scene.directory(entry(1))
    scene.say(events.EngineDisconnected(ENGINE))
    scene.say(got(1))
    (taken,) = scene.take(effects.TakeLone)
    assert taken.chunk is not None
    scene.say(events.LoneTaken(taken.chunk, hashed(1)))
    assert scene.core.pool.find(key(1)) is not None


def test_costs_are_told_when_they_change(scene: Scene) -> None:
    scene.directory(entry(1), entry(2))
    scene.take(effects.TellLoneCosts)
    scene.fetch(2)
    scene.pass_ms(3)
    scene.read()
    scene.compute(2)
    scene.pass_ms(1)
    scene.directory(entry(3))
    assert len(scene.take(effects.TellLoneCosts)) == 1
