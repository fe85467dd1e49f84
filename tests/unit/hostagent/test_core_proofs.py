"""Reads that were hashed on their way: the core takes chunks in without having them hashed again, or does not."""

from __future__ import annotations

import pytest

from hostagent.core import effects, events
from hostagent.core.chunk_entry import ChunkEntry
from hostagent.core.events import ReadProven, ReadsProven
from hostagent.tree import LEAF_BYTES, PIECE_BYTES, Hashed, root_of
from kvchunk.sources import ChunkSource
from kvclient.messages import Status
from kvproto.commands import SendControl
from kvproto.events import ControlReceived, ReadDone
from kvproto.ids import Address, Member
from kvproto.integrity import Integrity, digest_of
from kvproto.wire.control import Control, Flag, Op
from tests.unit.hostagent.core_harness import ENGINE, PAGE, Scene, key

PIECES = 16
SIZE = PIECES * PIECE_BYTES
LEAVES = bytes(range(PIECES)) * LEAF_BYTES


def entry(number: int, *holders: int, leaves: bytes = LEAVES, size_bytes: int = SIZE) -> ChunkEntry:
    return ChunkEntry(key(number), None, size_bytes, root_of(leaves, size_bytes), 0, holders)


def scene_with(*chunks: ChunkEntry) -> Scene:
    scene = Scene(pool_pages=8 * SIZE // PAGE)
    scene.directory(*chunks)
    return scene


def prove(scene: Scene, leaves: bytes = LEAVES) -> list[effects.StartRead]:
    """The peer delivers all that it is asked for; those reads."""
    reads = scene.take(effects.StartRead)
    assert all(read.is_provable for read in reads)
    scene.say(ReadsProven(tuple(proven(read, leaves) for read in reads)))
    return reads


def proven(read: effects.StartRead, leaves: bytes) -> ReadProven:
    first, end = read.offset // PIECE_BYTES, -(-(read.offset + read.size_bytes) // PIECE_BYTES)
    return ReadProven(read.read, read.offset, leaves[first * LEAF_BYTES : end * LEAF_BYTES])


def bring(scene: Scene) -> None:
    while not scene.core.idle and prove(scene):
        pass


def test_chunks_that_were_proven_on_their_way_are_not_hashed_again() -> None:
    scene = scene_with(entry(1, 1), entry(2, 1))
    scene.fetch(1, 2)
    bring(scene)
    (answer,) = scene.take(effects.FetchAnswered)
    assert (answer.status, [chunk.source for chunk in answer.chunks]) == (Status.OK, [ChunkSource.HOLDER] * 2)
    assert [one.chunk.key for one in scene.take(effects.ChunkProven)] == [key(1), key(2)]
    assert scene.take(effects.ComputeDigest) == []
    found = scene.core.pool.find(key(1))
    assert found is not None and (found.digest, found.leaves) == (root_of(LEAVES, SIZE), LEAVES)
    scene.close()


def test_reads_that_end_together_bring_their_chunks_at_once() -> None:
    scene = scene_with(entry(1, 1))
    scene.fetch(1)
    bring(scene)  # The reader knows a rate from here on, and has several reads under way.
    scene.say(events.EngineDisconnected(ENGINE))
    scene.core.drop(key(1))
    scene.directory(*(entry(number, 1) for number in range(2, 6)))
    scene.fetch(2, 3, 4, 5)
    while len(reads := scene.take(effects.StartRead)) < 2:
        scene.say(ReadsProven(tuple(proven(read, LEAVES) for read in reads)))
    scene.made.clear()
    whole = [read for read in reads if read.size_bytes == SIZE]
    scene.say(ReadsProven(tuple(proven(read, LEAVES) for read in reads)))
    assert len(scene.take(effects.ChunkProven)) >= len(whole) >= 2
    bring(scene)
    assert scene.take(effects.FetchAnswered)[0].status is Status.OK
    scene.close()


@pytest.mark.parametrize("size_bytes", [1, PIECE_BYTES - 1, PIECE_BYTES + 1, SIZE - PAGE, SIZE - 1])
def test_the_last_piece_may_be_short(size_bytes: int) -> None:
    leaves = LEAVES[: -(-size_bytes // PIECE_BYTES) * LEAF_BYTES]
    scene = scene_with(entry(1, 1, leaves=leaves, size_bytes=size_bytes))
    scene.fetch(1)
    bring(scene)
    assert scene.take(effects.FetchAnswered)[0].status is Status.OK
    assert scene.take(effects.ComputeDigest) == []
    scene.close()


def test_wrong_bytes_are_found_and_their_holder_is_left() -> None:
    scene = scene_with(entry(1, 1, 2))
    scene.fetch(1)
    wrong = bytes(SIZE // PIECE_BYTES * LEAF_BYTES)
    while not (whole := scene.take(effects.ComputeDigest)):
        prove(scene, wrong)
    # Leaves that do not make the digest prove nothing: it is hashed as a whole.
    scene.say(events.DigestComputed(whole[0].chunk, Hashed(root_of(wrong, SIZE), wrong), whole[0].use))
    assert scene.take(effects.FetchAnswered) == []
    (asked,) = scene.take(effects.ReadLeaves)
    scene.say(events.LeavesRead(asked.read, LEAVES))
    # All of it is read again; its bytes are hashed as a whole, because some of them were proven before.
    while reads := scene.take(effects.StartRead):
        scene.say(ReadsProven(tuple(proven(read, LEAVES) for read in reads)))
    (again,) = scene.take(effects.ComputeDigest)
    scene.say(events.DigestComputed(again.chunk, Hashed(root_of(LEAVES, SIZE), LEAVES), again.use))
    assert scene.take(effects.FetchAnswered)[0].status is Status.OK
    scene.close()


def test_a_read_that_nobody_hashed_has_the_whole_chunk_hashed() -> None:
    scene = scene_with(entry(1, 1))
    scene.fetch(1)
    (first,) = scene.take(effects.StartRead)
    assert first.size_bytes < SIZE
    scene.say(ReadDone(first.read))
    bring(scene)
    assert scene.take(effects.ChunkProven) == []
    (asked,) = scene.take(effects.ComputeDigest)
    scene.say(events.DigestComputed(asked.chunk, Hashed(root_of(LEAVES, SIZE), LEAVES), asked.use))
    assert scene.take(effects.FetchAnswered)[0].status is Status.OK
    scene.close()


def test_what_casts_may_have_written_counts_for_nothing() -> None:
    """A JOIN has casts expected; its chunk is hashed when it is whole, whoever brought it in the end."""
    scene = Scene(pool_pages=8 * SIZE // PAGE)
    scene.say(events.MemberGiven(Member(0)))
    scene.directory(entry(1, 1))
    scene.fetch(1)
    joins = [sent.message for sent in scene.take(SendControl) if sent.message.op is Op.JOIN]
    assert len(joins) == 1 and len(scene.take(effects.ExpectCasts)) == 1
    alone = Control(Op.NOTICE, key(1), joins[0].segments, flags=Flag.NO_SWITCH)
    scene.say(events.ControlsReceived((ControlReceived(alone, Address(1)),)))
    scene.pass_ms(1)
    while reads := scene.take(effects.StartRead):
        assert not any(read.is_provable for read in reads)
        scene.say(ReadsProven(tuple(proven(read, LEAVES) for read in reads)))
    assert scene.take(effects.ChunkProven) == []
    assert [one.chunk.key for one in scene.take(effects.ComputeDigest)] == [key(1)]
    assert len(scene.take(effects.ForgetCasts)) == 1


def test_what_is_proven_of_a_read_that_was_aborted_comes_too_late() -> None:
    scene = scene_with(entry(1, 1))
    request = scene.fetch(1)
    reads = scene.take(effects.StartRead)
    scene.say(events.CancelRequested(ENGINE, request))
    scene.say(ReadsProven(tuple(proven(read, LEAVES) for read in reads)))
    assert scene.take(effects.FetchAnswered)[0].status is Status.CANCELLED
    assert scene.core.idle
    scene.close()


def test_digests_without_a_tree_are_not_proven() -> None:
    chunk = ChunkEntry(key(1), None, SIZE, digest_of(Integrity.XXH3, bytes(8)), 0, (1,))
    scene = scene_with(chunk)
    scene.fetch(1)
    assert not any(read.is_provable for read in scene.take(effects.StartRead))
