"""Chunks in fewer bytes on disk: they take less room, survive a restart, and come back byte for byte or not at all."""

from __future__ import annotations

import asyncio
import struct
from pathlib import Path

import pytest
import xxhash

from hostagent.core.events import LoadOutcome
from hostagent.pool.chunks import Chunk
from hostagent.pool.records import RECORD_BYTES, Record, pack_record, unpack_record
from hostagent.tree import hashed
from kvchunk.ids import ChunkKey
from kvchunk.kv_layout import parse_layout
from kvcodec.forms import Form, StoredForm
from kvproto.integrity import Integrity
from tests.digests import digest
from tests.unit.hostagent.disk_harness import PAGE, SLAB_NAME, Bench, flip, key, make_pool, play
from tests.unit.kvcodec.kv_content import kv_chunk

LAYOUT = parse_layout("bf16.l2.b2.p2.t16.h2.d64")
SIZE = LAYOUT.size_bytes
STORE = bytes(range(16))


class FormsBench(Bench):
    """With chunks of KV, each of its own seed."""

    async def save_kv(self, number: int, form: Form = Form.PLANES) -> bool:
        chunk = self.dram.reserve(key(number), None, SIZE)
        assert isinstance(chunk, Chunk)
        text = kv_chunk(LAYOUT, number)
        self.memory.view(chunk.offset, SIZE)[:] = text
        self.dram.commit(chunk, hashed(memoryview(text), Integrity.BLAKE3))
        done: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        accepted = self.store.save(chunk, done.set_result, form)
        stored = accepted and await done
        self.dram.drop(key(number))
        return stored

    async def comes_back(self, number: int) -> bool:
        outcome, found = await self.load(number, SIZE)
        return outcome is LoadOutcome.DONE and found == kv_chunk(LAYOUT, number)


@pytest.mark.parametrize("direct", [True, False])
def test_a_chunk_takes_less_room_and_survives_a_restart(tmp_path: Path, direct: bool) -> None:
    async def scenario() -> None:
        bench = FormsBench(tmp_path, direct=direct)
        await bench.store.open()
        assert await bench.save_kv(1)
        assert await bench.save_kv(2, Form.RAW)
        before = bench.store.pool.usage()
        fewer, whole = bench.store.find(key(1)), bench.store.find(key(2))
        assert fewer is not None
        assert whole is not None
        assert (fewer.size_bytes, whole.size_bytes) == (SIZE, SIZE)
        assert fewer.room_bytes < 0.8 * SIZE
        assert whole.room_bytes == SIZE
        assert before.ready_bytes == -(-fewer.room_bytes // PAGE) * PAGE + SIZE
        assert bench.store.counters.stored_bytes == fewer.room_bytes + SIZE
        assert await bench.comes_back(1)
        assert await bench.comes_back(2)
        await bench.close()

        again = FormsBench(tmp_path, direct=direct)
        await again.store.open()
        assert again.store.pool.usage() == before
        found = again.store.find(key(1))
        assert found is not None
        assert found.stored == fewer.stored
        assert await again.comes_back(1)
        assert await again.comes_back(2)
        await again.close()

    play(scenario)


def test_more_chunks_fit_than_as_they_are(tmp_path: Path) -> None:
    async def scenario() -> None:
        pages = 4 * SIZE // PAGE
        bench = FormsBench(tmp_path, disk_pages=pages)
        await bench.store.open()
        for number in range(1, 6):
            assert await bench.save_kv(number)
        assert bench.store.pool.evicted_count == 0
        assert [await bench.comes_back(number) for number in range(1, 6)] == [True] * 5
        for number in range(1, 6):
            assert bench.store.drop(key(number))
        assert bench.store.pool.usage().free_bytes == pages * PAGE
        await bench.close()

    play(scenario)


@pytest.mark.parametrize("place", [0, 20, 1000, 20_000])
def test_a_flipped_byte_of_a_form_is_a_miss(tmp_path: Path, place: int) -> None:
    async def scenario() -> None:
        bench = FormsBench(tmp_path, direct=False)
        await bench.store.open()
        assert await bench.save_kv(1)
        bench.patch(SLAB_NAME, place, flip)
        assert (await bench.load(1, SIZE))[0] is LoadOutcome.DAMAGED
        assert bench.store.find(key(1)) is None
        assert bench.store.counters.damaged_chunks == 1
        await bench.close()

    play(scenario)


def test_a_record_of_before_there_were_forms_is_read() -> None:
    old = struct.Struct("!4sHHQ16s16sQQI33s256s")
    body = old.pack(b"KVCR", 1, 0, 5, b"k" * 16, b"", 4096, 7000, 3, digest(9), b"m").ljust(RECORD_BYTES - 8, b"\0")
    sector = body + xxhash.xxh3_64_digest(body, int.from_bytes(STORE[:8], "big") ^ 2)
    assert unpack_record(sector, STORE, 2) == Record(ChunkKey(b"k" * 16), None, 3, "m", 4096, 7000, digest(9), 5)


def test_a_record_says_its_form() -> None:
    record = Record(ChunkKey(b"k" * 16), None, 3, "m", 4096, 7000, digest(9), 5, StoredForm(Form.PLANES, 5000))
    assert unpack_record(pack_record(record, STORE, 2), STORE, 2) == record
    assert record.stored_bytes == 5000


@pytest.mark.parametrize(("form", "stored_bytes"), [(7, 5000), (0, 5000), (1, 0), (1, 7000), (2, 1 << 63)])
def test_a_form_that_cannot_be_is_damage(form: int, stored_bytes: int) -> None:
    record = Record(ChunkKey(b"k" * 16), None, 3, "m", 4096, 7000, digest(9), 5)
    body = bytearray(pack_record(record, STORE, 2)[:-8])
    body[357:366] = struct.pack("!BQ", form, stored_bytes)
    sector = bytes(body) + xxhash.xxh3_64_digest(bytes(body), int.from_bytes(STORE[:8], "big") ^ 2)
    with pytest.raises(ValueError):
        unpack_record(sector, STORE, 2)


def test_a_chunk_shrinks_only_while_it_is_filled() -> None:
    pool = make_pool(8 * PAGE)
    chunk = pool.reserve(key(1), None, 4 * PAGE)
    assert isinstance(chunk, Chunk)
    pool.shrink(chunk, StoredForm(Form.PLANES, PAGE + 1))
    assert pool.usage().filling_bytes == 2 * PAGE
    assert pool.usage().free_bytes == 6 * PAGE
    with pytest.raises(ValueError, match="cannot shrink"):
        pool.shrink(chunk, StoredForm(Form.PLANES, 3 * PAGE))
    pool.abort(chunk)
    assert pool.usage().free_bytes == 8 * PAGE
    assert pool.usage().filling_bytes == 0
