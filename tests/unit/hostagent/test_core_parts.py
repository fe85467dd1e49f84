"""Parts of chunks in one node's core alone: deadlines, cancelling, room, holders that answer nothing."""

from __future__ import annotations

import numpy as np

from hostagent.core import effects, events
from hostagent.core.chunk_entry import ChunkEntry
from hostagent.tree import PIECE_BYTES, PieceRun, hashed, leaves_in, piece_runs
from kvchunk.parts import ByteRange
from kvclient.messages import Status
from kvproto.commands import AbortRead
from kvproto.events import ReadDone, ReadFailed
from kvproto.integrity import Integrity
from tests.counted_keys import CountedKey, counted
from tests.unit.hostagent.core_harness import ENGINE, Scene, key

BODY = np.random.default_rng(1).integers(0, 256, 5 * PIECE_BYTES + 100, np.uint8).tobytes()
WHOLE = hashed(memoryview(BODY), Integrity.BLAKE3)
RANGES = (ByteRange(10, 20), ByteRange(PIECE_BYTES + 1, 1), ByteRange(5 * PIECE_BYTES + 99, 1))
RUNS = [PieceRun(0, 2, 2 * PIECE_BYTES), PieceRun(5, 1, 100)]


def scene(*holders: int, pool_pages: int = 256) -> Scene:
    made = Scene(pool_pages=pool_pages)
    made.directory(ChunkEntry(key(1), None, len(BODY), WHOLE.digest, 0, holders))
    return made


def ask(made: Scene, deadline_s: float = 10.0) -> int:
    made.request += 1
    made.say(events.PartsRequested(ENGINE, made.request, (key(1),), RANGES, deadline_s))
    return made.request


def deliver(made: Scene) -> list[effects.ReadPieces]:
    """The peer answers all that it is asked."""
    reads = made.take(effects.ReadPieces)
    for leaves in made.take(effects.ReadLeaves):
        made.say(events.LeavesRead(leaves.read, WHOLE.leaves))
    for read in reads:
        made.say(ReadDone(read.read))
    for asked in made.take(effects.ComputeDigest):
        parts = b"".join(BODY[read.offset : read.offset + read.size_bytes] for read in reads)
        made.say(events.DigestComputed(asked.chunk, hashed(memoryview(parts), Integrity.BLAKE3), asked.use))
    return reads


def test_ranges_become_pieces_one_behind_the_other() -> None:
    assert piece_runs(RANGES, len(BODY)) == RUNS
    assert leaves_in(WHOLE.leaves, RUNS) == WHOLE.leaves[:64] + WHOLE.leaves[160:]
    made = scene(1)
    ask(made)
    reads = deliver(made)
    assert [(read.offset, read.size_bytes) for read in reads] == [(run.offset, run.size_bytes) for run in RUNS]
    start = reads[0].into.offset
    assert [read.pool_offset - start for read in reads] == [0, 2 * PIECE_BYTES]
    (answer,) = made.take(effects.PartsAnswered)
    assert answer.status is Status.OK
    assert [at - start for at in answer.parts[0].offsets] == [10, PIECE_BYTES + 1, 2 * PIECE_BYTES + 99]
    made.say(events.LeaseReleased(ENGINE, answer.lease))
    assert made.core.pool.usage().free_bytes == made.core.pool.usage().size_bytes
    made.close()


def test_the_deadline_ends_reads_and_gives_memory_back() -> None:
    made = scene(1)
    ask(made, deadline_s=0.05)
    reads = made.take(effects.ReadPieces)
    made.pass_ms(60)
    (answer,) = made.take(effects.PartsAnswered)
    assert (answer.status, answer.parts) == (Status.DEADLINE, ())
    assert len(made.take(AbortRead)) == len(reads) + 1
    made.say(ReadDone(reads[0].read))
    assert made.core.pool.usage().filling_bytes == 0
    assert made.core.idle
    made.close()


def test_a_request_is_cancelled_while_its_pieces_are_hashed() -> None:
    made = scene(1)
    request = ask(made)
    for leaves in made.take(effects.ReadLeaves):
        made.say(events.LeavesRead(leaves.read, WHOLE.leaves))
    for read in made.take(effects.ReadPieces):
        made.say(ReadDone(read.read))
    (asked,) = made.take(effects.ComputeDigest)
    made.say(events.CancelRequested(ENGINE, request))
    (answer,) = made.take(effects.PartsAnswered)
    assert answer.status is Status.CANCELLED
    made.say(events.DigestComputed(asked.chunk, WHOLE, asked.use))
    assert made.take(effects.PartsAnswered) == []
    made.close()


def test_a_holder_that_refuses_is_followed_by_the_next() -> None:
    made = scene(1, 2)
    ask(made)
    first = made.take(effects.ReadPieces)
    (leaves,) = made.take(effects.ReadLeaves)
    assert leaves.node == "n1"
    made.say(ReadFailed(leaves.read, gone=True))
    assert {one.read for one in made.take(AbortRead)} == {read.read for read in first}
    assert {read.node for read in deliver(made)} == {"n2"}
    (answer,) = made.take(effects.PartsAnswered)
    assert answer.status is Status.OK
    made.close()


def test_no_room_is_an_answer() -> None:
    made = scene(1, pool_pages=4)
    ask(made)
    (answer,) = made.take(effects.PartsAnswered)
    assert (answer.status, answer.parts) == (Status.POOL_FULL, ())
    made.close()


def test_a_process_that_ends_has_given_all_back() -> None:
    made = scene(1)
    ask(made)
    made.say(events.Stopped())
    assert made.core.pool.usage().filling_bytes == 0
    made.close()


def test_parts_of_many_chunks_cost_as_much_as_there_are_chunks() -> None:
    made = Scene(pool_pages=256)
    for number in range(200):
        made.put(number)
    before = CountedKey.compared_count
    keys = tuple(map(counted, range(200)))
    made.say(events.PartsRequested(ENGINE, 1000, keys, (ByteRange(0, 8),), 10.0))
    made.pass_ms(0)
    (answer,) = made.take(effects.PartsAnswered)
    assert [one.place for one in answer.parts] == list(range(200))
    assert CountedKey.compared_count - before < 10 * 200
    made.close()
