"""Chunks in fewer bytes in the cold store: what lies there, what comes back, and who may round numbers."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace

import numpy as np
import pytest

from hostagent.cold.cold_options import ColdConfig
from hostagent.cold.objects import RECORD_BYTES, object_name, packed_record, record_of
from hostagent.core import effects, events
from hostagent.core.chunk_entry import ChunkEntry
from hostagent.core.events import ColdState, LoadOutcome, SaveOutcome
from hostagent.pool.chunks import Chunk
from hostagent.tree import hashed
from kvchunk.kv_layout import KvTerms, parse_layout, with_terms
from kvcodec.forms import Form, StoredForm
from kvproto.integrity import Integrity
from tests.unit.hostagent.cold_harness import Bench, BrokenStore, bench, key
from tests.unit.kvcodec.kv_content import kv_chunk, unpacked

LAYOUT = parse_layout("bf16.l2.b2.p2.t16.h2.d64")
EXACT, LOSSY = (with_terms("model@1", KvTerms(LAYOUT, may_lose)) for may_lose in (False, True))
CHUNK = kv_chunk(LAYOUT)
DIGEST = hashed(memoryview(CHUNK), Integrity.BLAKE3).digest


class FormsBench:
    """A tier over a dictionary, and one chunk of KV."""

    def __init__(self, made: Bench, store: BrokenStore) -> None:
        self.made = made
        self.store = store

    @property
    def stored(self) -> bytes:
        return self.store.objects[object_name(key(1))]

    async def save(self, form: Form, label: str) -> events.ColdSaveEnded:
        chunk = self.made.pool.reserve(key(1), None, len(CHUNK), 1, label)
        assert isinstance(chunk, Chunk)
        self.made.memory.view(chunk.offset, len(CHUNK))[:] = CHUNK
        self.made.pool.commit(chunk, hashed(memoryview(CHUNK), Integrity.BLAKE3))
        self.made.tier.save(effects.SaveCold(chunk, form))
        ended = await self.made.hear(events.ColdSaveEnded)
        assert isinstance(ended, events.ColdSaveEnded)
        assert ended.outcome is SaveOutcome.STORED
        self.made.pool.drop(key(1))
        return ended

    async def look(self) -> ChunkEntry | None:
        self.made.tier.look_up(effects.LookUpCold(1, (key(1),)))
        answer = await self.made.hear(events.ColdLookedUp)
        assert isinstance(answer, events.ColdLookedUp)
        return answer.found[0] if answer.found else None

    async def load(self, digest: object, stored: StoredForm | None) -> tuple[LoadOutcome, bytes]:
        into = self.made.pool.reserve(key(1), None, len(CHUNK))
        assert isinstance(into, Chunk)
        view = self.made.memory.view(into.offset, len(CHUNK))
        view[:] = bytes(len(CHUNK))
        self.made.tier.load(effects.LoadCold(into, digest, stored))  # type: ignore[arg-type]
        ended = await self.made.hear(events.ColdLoadEnded)
        assert isinstance(ended, events.ColdLoadEnded)
        found = bytes(view)
        self.made.pool.abort(into)
        return ended.outcome, found


def play(scenario: Callable[[FormsBench], Awaitable[None]]) -> None:
    async def main() -> None:
        store = BrokenStore()
        async with bench(ColdConfig("memory", timeout_s=5), store) as made:
            await made.until(ColdState.ON)
            await scenario(FormsBench(made, store))

    asyncio.run(main())


def test_a_lossless_object_is_smaller_and_comes_back_byte_for_byte() -> None:
    async def scenario(made: FormsBench) -> None:
        ended = await made.save(Form.PLANES, EXACT)
        assert ended.stored == StoredForm(Form.PLANES, len(made.stored) - RECORD_BYTES)
        assert len(made.stored) < 0.8 * len(CHUNK)
        entry = await made.look()
        assert entry is not None
        assert (entry.size_bytes, entry.digest, entry.stored) == (len(CHUNK), DIGEST, ended.stored)
        assert await made.load(DIGEST, entry.stored) == (LoadOutcome.DONE, CHUNK)
        measured = [one.work for one in made.made.events if isinstance(one, events.FormMeasured)]
        assert [work.encode_s is None for work in measured] == [False, True]

    play(scenario)


def test_a_lossy_object_is_a_quarter_and_has_a_digest_of_its_own() -> None:
    async def scenario(made: FormsBench) -> None:
        ended = await made.save(Form.LOSSY, LOSSY)
        assert ended.stored is not None
        assert ended.stored.form is Form.LOSSY
        assert len(made.stored) < len(CHUNK) / 2.5
        assert ended.digest != DIGEST
        entry = await made.look()
        assert entry is not None
        assert entry.digest == ended.digest
        outcome, found = await made.load(entry.digest, entry.stored)
        assert outcome is LoadOutcome.DONE
        error = unpacked(found, "bf16") - unpacked(CHUNK, "bf16")
        assert 0 < np.sqrt(np.mean(error**2)) < 0.2 * unpacked(CHUNK, "bf16").std()

    play(scenario)


@pytest.mark.parametrize("label", [EXACT, "model@1", LOSSY.replace("h2", "h4")])
def test_numbers_of_others_are_never_rounded(label: str) -> None:
    async def scenario(made: FormsBench) -> None:
        ended = await made.save(Form.LOSSY, label)
        assert ended.stored is not None
        assert ended.stored.form is Form.PLANES
        assert await made.load(DIGEST, ended.stored) == (LoadOutcome.DONE, CHUNK)

    play(scenario)


def test_an_exact_request_takes_no_rounded_bytes() -> None:
    async def scenario(made: FormsBench) -> None:
        ended = await made.save(Form.LOSSY, LOSSY)
        outcome, _ = await made.load(DIGEST, ended.stored)
        assert outcome is LoadOutcome.DAMAGED

    play(scenario)


@pytest.mark.parametrize("believed", [None, StoredForm(Form.PLANES, 999), StoredForm(Form.LOSSY, 2000)])
def test_another_form_than_believed_is_read_all_the_same(believed: StoredForm | None) -> None:
    async def scenario(made: FormsBench) -> None:
        for form in (Form.PLANES, Form.RAW):
            await made.save(form, EXACT)
            assert await made.load(DIGEST, believed) == (LoadOutcome.DONE, CHUNK)

    play(scenario)


@pytest.mark.parametrize("at", [RECORD_BYTES, RECORD_BYTES + 20, -1])
def test_a_damaged_form_is_a_miss(at: int) -> None:
    async def scenario(made: FormsBench) -> None:
        ended = await made.save(Form.PLANES, EXACT)
        content = bytearray(made.stored)
        content[at] ^= 0x41
        made.store.objects[object_name(key(1))] = bytes(content)
        outcome, _ = await made.load(DIGEST, ended.stored)
        assert outcome is LoadOutcome.DAMAGED

    play(scenario)


def test_a_form_cut_short_is_a_miss() -> None:
    async def scenario(made: FormsBench) -> None:
        ended = await made.save(Form.PLANES, EXACT)
        made.store.objects[object_name(key(1))] = made.stored[:-5]
        outcome, _ = await made.load(DIGEST, ended.stored)
        assert outcome is LoadOutcome.DAMAGED

    play(scenario)


def test_an_object_that_lies_about_its_form_is_a_miss() -> None:
    async def scenario(made: FormsBench) -> None:
        ended = await made.save(Form.PLANES, EXACT)
        record = record_of(key(1), made.stored[:RECORD_BYTES])
        assert record is not None
        assert ended.stored is not None
        lie = replace(record, stored=StoredForm(Form.LOSSY, ended.stored.size_bytes))
        made.store.objects[object_name(key(1))] = packed_record(lie) + made.stored[RECORD_BYTES:]
        outcome, _ = await made.load(DIGEST, ended.stored)
        assert outcome is LoadOutcome.DAMAGED

    play(scenario)
