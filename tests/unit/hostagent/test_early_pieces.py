"""Pieces of a chunk are hashed while the rest comes: which ones, and what becomes of their leaves."""

import asyncio
from collections.abc import Iterator

import numpy as np
import pytest

from hostagent.core.arrivals import CHUNK_PIECES_MIN, PIECES_MIN, InboundChunk
from hostagent.core.chunk_entry import ChunkEntry
from hostagent.hashing import Hashing
from hostagent.limits import HASH_INLINE_BYTES_MAX
from hostagent.memory.pool_memory import PoolMemory
from hostagent.pool.chunks import Chunk, ChunkPool
from hostagent.tree import PIECE_BYTES, Hashed, hashed
from kvchunk.ids import ChunkKey, Digest
from kvpolicy.value import Tier
from kvproto.integrity import Integrity

SEGMENT = 4096
PER_PIECE = PIECE_BYTES // SEGMENT
PIECES = 16


def digest(integrity: Integrity = Integrity.BLAKE3) -> Digest:
    return hashed(memoryview(b"any"), integrity).digest


def arriving(pieces: int = PIECES, integrity: Integrity = Integrity.BLAKE3, less_bytes: int = 0) -> InboundChunk:
    size_bytes = pieces * PIECE_BYTES - less_bytes
    pool = ChunkPool(64 * PIECE_BYTES, 4096, lambda: 0)
    chunk = pool.reserve(ChunkKey(bytes(16)), None, size_bytes, 0)
    assert isinstance(chunk, Chunk)
    entry = ChunkEntry(chunk.key, None, size_bytes, digest(integrity), 0, ())
    return InboundChunk(chunk, entry, -(-size_bytes // SEGMENT), Tier.REMOTE_DRAM, 1)


def pieces(inbound: InboundChunk, *busy_segments: int, of: int = SEGMENT) -> list[int]:
    unsettled = np.zeros(-(-inbound.chunk.size_bytes // of), np.bool_)
    unsettled[list(busy_segments)] = True
    return list(inbound.pieces_to_hash(unsettled, of))


def test_pieces_are_given_once_and_only_when_nobody_writes_to_them() -> None:
    inbound = arriving()
    all_but = [piece * PER_PIECE + piece for piece in range(3, PIECES)]
    assert pieces(inbound, *all_but) == [], f"fewer than {PIECES_MIN} are not worth it"
    assert pieces(inbound, *all_but[2:]) == [0, 1, 2, 3, 4]
    assert pieces(inbound, *all_but[2:]) == [], "they have been given"
    assert pieces(inbound, all_but[-1]) == list(range(5, PIECES - 1))


def test_a_short_last_piece_is_one() -> None:
    inbound = arriving(less_bytes=PIECE_BYTES - SEGMENT - 1)
    assert pieces(inbound) == list(range(PIECES))


@pytest.mark.parametrize(
    ("inbound", "segment_bytes"),
    [
        (arriving(CHUNK_PIECES_MIN - 1), SEGMENT),
        (arriving(integrity=Integrity.XXH3), SEGMENT),
        (arriving(), 3000),
    ],
    ids=["small", "xxh3", "segments across pieces"],
)
def test_where_it_does_not_pay_or_cannot_be_nothing_is_given(inbound: InboundChunk, segment_bytes: int) -> None:
    assert pieces(inbound, of=segment_bytes) == []


def test_what_was_begun_is_forgotten_with_the_chunk() -> None:
    inbound = arriving()
    assert not inbound.forget_pieces()
    assert pieces(inbound)
    assert inbound.forget_pieces()
    assert pieces(inbound), "all of them are given again"


@pytest.fixture
def memory() -> Iterator[PoolMemory]:
    made = PoolMemory(32 * PIECE_BYTES, prefault=False)
    made.view(0, 20 * PIECE_BYTES)[:] = np.random.default_rng(1).bytes(20 * PIECE_BYTES)
    yield made
    made.close()


def test_the_digest_takes_the_leaves_that_are_there(memory: PoolMemory) -> None:
    view = memory.view(PIECE_BYTES, PIECES * PIECE_BYTES - 5)
    right = hashed(view, Integrity.BLAKE3)

    async def run() -> list[Hashed]:
        hashing, found = Hashing(memory, asyncio.get_running_loop()), []

        async def digest_now() -> Hashed:
            ready: asyncio.Future[Hashed] = asyncio.get_running_loop().create_future()
            hashing.start(PIECE_BYTES, len(view), Integrity.BLAKE3, ready.set_result)
            return await ready

        def begin(*pieces: int) -> None:
            hashing.begin(PIECE_BYTES, len(view), pieces)

        for early in ((), (3,), tuple(range(0, PIECES, 2)), tuple(range(PIECES))):
            begin(*early)
            begin(*early[:1])
            found.append(await digest_now())
        begin(0, 1)
        begin(2)
        view[0] ^= 1
        hashing.forget(PIECE_BYTES)
        found.append(await digest_now())
        hashing.close()
        return found

    *found, changed = asyncio.run(run())
    assert found == [right] * 4
    assert changed == hashed(view, Integrity.BLAKE3) != right, "forgotten leaves are not used"


def test_a_few_pieces_are_hashed_at_once(memory: PoolMemory) -> None:
    view = memory.view(0, PIECES * PIECE_BYTES)
    few = HASH_INLINE_BYTES_MAX[Integrity.BLAKE3] // PIECE_BYTES
    right = hashed(view, Integrity.BLAKE3)

    async def run() -> list[Hashed]:
        found: list[Hashed] = []
        hashing = Hashing(memory, asyncio.get_running_loop())
        for first in range(0, PIECES, few):
            hashing.begin(0, len(view), range(first, min(first + few, PIECES)))
        view[:] = bytes(len(view))  # Too late for what is hashed already.
        hashing.start(0, len(view), Integrity.BLAKE3, found.append)
        await asyncio.sleep(0)
        hashing.close()
        return found

    assert asyncio.run(run()) == [right]
