"""Twins in an agent's core: what is encoded and when, what is asked for, and what a pool keeps of them."""

from __future__ import annotations

from dataclasses import replace

from hostagent.core import effects, events
from hostagent.core.chunk_entry import ChunkEntry
from hostagent.core.forms import is_twin
from hostagent.pool.chunks import Chunk
from hostagent.tree import NOT_HASHED
from kvchunk.ids import ChunkKey
from kvchunk.sources import ChunkSource
from kvclient.messages import Status
from kvcodec.forms import Form
from kvpolicy.tiers.form_costs import FormChoice, FormWork
from kvpolicy.value.costs import Tier
from kvproto.integrity import NO_DIGEST
from kvproto.twins import twin_key
from tests.digests import digest, hashed
from tests.unit.hostagent.core_harness import PAGE, Scene, key

PAGES = 32
SIZE = PAGES * PAGE
TWIN_PAGES = 20


def scene(form: FormChoice = FormChoice.LOSSLESS, pool_pages: int = 8 * PAGES) -> Scene:
    return Scene(pool_pages=pool_pages, wire=form)


def twin_of(number: int) -> ChunkKey:
    return twin_key(key(number), Form.PLANES)


def encoded(asked: effects.EncodeTwin, pages: int = TWIN_PAGES) -> events.TwinEncoded:
    work = FormWork(asked.form, asked.chunk.size_bytes, pages * PAGE, encode_s=0.001)
    return events.TwinEncoded(asked.chunk, asked.form, bytes(pages * PAGE), work)


def make(scene: Scene, number: int) -> Chunk:
    """Put a chunk and have its twin made."""
    scene.put(number, SIZE)
    scene.pass_ms(1)
    (asked,) = scene.take(effects.EncodeTwin)
    scene.say(encoded(asked))
    (place,) = scene.take(effects.PlaceTwin)
    scene.say(events.TwinPlaced(place.into, hashed(1000 + number)))
    made = scene.core.pool.find(twin_of(number))
    assert made is place.into
    return made


def deliver(one: Scene, number: int) -> None:
    """The peer delivers a chunk as it is, by however many reads."""
    for _ in range(8):
        one.read()
        one.pass_ms(5)
        one.compute(number)


def test_a_twin_hangs_on_its_chunk_and_leaves_first() -> None:
    one = scene()
    twin = make(one, 1)
    assert (twin.parent, twin.position, twin.size_bytes) == (key(1), 1, TWIN_PAGES * PAGE)
    assert is_twin(twin)
    assert one.core.pool.next_victims(1) == [twin.key]
    one.close()


def test_nothing_is_encoded_while_an_engine_waits() -> None:
    one = scene()
    one.directory(ChunkEntry(key(9), None, SIZE, digest(9), 0, (1,)))
    one.fetch(9)
    one.put(1, SIZE)
    one.pass_ms(100)
    assert one.take(effects.EncodeTwin) == []
    deliver(one, 9)
    assert [asked.chunk.key for asked in one.take(effects.EncodeTwin)] == [key(1)]
    one.close()


def test_what_others_have_encoded_is_not_encoded_again_nor_what_no_form_makes_smaller() -> None:
    one = scene()
    theirs = ChunkEntry(twin_of(1), key(1), TWIN_PAGES * PAGE, digest(1001), 1, (2,))
    one.directory(theirs)
    one.put(1, SIZE)
    one.pass_ms(1)
    assert one.take(effects.EncodeTwin) == []
    chunk = one.put(2, SIZE)
    one.pass_ms(1)
    (asked,) = one.take(effects.EncodeTwin)
    one.say(events.TwinEncoded(chunk, Form.RAW, b"", None))
    assert one.take(effects.PlaceTwin) == []
    one.core.twins.making.peer_asked(asked.chunk.key)
    one.pass_ms(1)
    assert one.take(effects.EncodeTwin) == []
    one.close()


def test_a_node_whose_chunks_become_no_smaller_soon_stops_trying() -> None:
    one = scene(FormChoice.AUTO)
    one.say(events.FormMeasured(FormWork(Form.PLANES, 1 << 20, 700_000, 0.000_001, 0.000_001)))
    for size_bytes in (PAGE, 1 << 20) * 20:
        one.core.gate.measured(Tier.REMOTE_DRAM, size_bytes, size_bytes / 1e7, one.now_ns)
    tried = 0
    for number in range(40):
        one.put(number, SIZE)
        one.core.twins.making.peer_asked(key(number))
        one.pass_ms(1)
        for asked in one.take(effects.EncodeTwin):
            tried += 1
            one.say(events.TwinEncoded(asked.chunk, Form.RAW, b"", None))
    assert 0 < tried < 10
    one.close()


def test_a_copy_with_other_bytes_than_those_that_all_are_offered_has_no_twin() -> None:
    one = scene()
    one.directory(ChunkEntry(key(1), None, SIZE, digest(77), 0, (1,)))
    one.put(1, SIZE)
    one.pass_ms(1)
    assert one.take(effects.EncodeTwin) == []
    one.close()


def test_a_chunk_that_goes_while_it_is_encoded_leaves_no_twin() -> None:
    one = scene()
    chunk = one.put(1, SIZE)
    one.pass_ms(1)
    (asked,) = one.take(effects.EncodeTwin)
    one.core.drop(key(1))
    one.say(encoded(asked))
    assert one.take(effects.PlaceTwin) == []
    assert chunk.pins == 0
    one.close()


def entries(number: int) -> tuple[ChunkEntry, ChunkEntry]:
    chunk = ChunkEntry(key(number), None, SIZE, digest(number), 0, (1,))
    return chunk, ChunkEntry(twin_of(number), key(number), TWIN_PAGES * PAGE, digest(1000 + number), 1, (1,))


def bring_twin(one: Scene, number: int) -> effects.DecodeTwin:
    """The peer delivers the twin; what is asked of the codec then."""
    (read,) = [asked for asked in one.made if isinstance(asked, effects.StartRead)]
    assert (read.chunk.key, read.size_bytes) == (twin_of(number), TWIN_PAGES * PAGE)
    one.read()
    one.compute(1000 + number)
    (decode,) = one.take(effects.DecodeTwin)
    return decode


def test_a_fetch_by_a_twin_is_told_as_what_the_twin_was() -> None:
    one = scene()
    one.directory(*entries(1))
    one.fetch(1)
    one.pass_ms(30)
    decode = bring_twin(one, 1)
    one.say(events.TwinDecoded(decode.into, whole=True, hashed=hashed(1), work=None))
    (answer,) = one.take(effects.FetchAnswered)
    assert (answer.status, [chunk.source for chunk in answer.chunks]) == (Status.OK, [ChunkSource.HOLDER])
    assert one.core.twins.decoded_count == 1
    one.close()


def test_after_a_wrong_twin_the_chunk_is_read_and_the_twin_never_again() -> None:
    one = scene()
    one.directory(*entries(1))
    one.fetch(1)
    one.pass_ms(30)
    decode = bring_twin(one, 1)
    one.say(events.TwinDecoded(decode.into, whole=True, hashed=hashed(5), work=None))
    one.pass_ms(30)
    assert {asked.chunk.key for asked in one.made if isinstance(asked, effects.StartRead)} == {key(1)}
    deliver(one, 1)
    assert one.take(effects.FetchAnswered)[0].status is Status.OK
    assert one.core.pool.find(twin_of(1)) is None
    one.core.drop(key(1))
    one.say(events.EngineDisconnected(events.EngineId(1)))
    one.fetch(1)
    one.pass_ms(30)
    assert {asked.chunk.key for asked in one.take(effects.StartRead)} == {key(1)}
    one.close()


def test_an_engine_that_gives_up_leaves_nothing_under_way() -> None:
    for after_decoding_began in (False, True):
        one = scene()
        one.directory(*entries(1))
        number = one.fetch(1)
        one.pass_ms(30)
        decode = bring_twin(one, 1) if after_decoding_began else None
        one.say(events.CancelRequested(events.EngineId(1), number))
        one.pass_ms(1)
        if decode is not None:
            one.say(events.TwinDecoded(decode.into, whole=False, hashed=NOT_HASHED, work=None))
        assert one.core.fetches.under_way_count == 0
        one.close()


def test_an_engine_that_puts_the_chunk_meanwhile_has_it() -> None:
    one = scene()
    one.directory(*entries(1))
    one.fetch(1)
    one.pass_ms(30)
    decode = bring_twin(one, 1)
    one.put(1, SIZE)
    assert one.take(effects.FetchAnswered)[0].status is Status.OK
    one.say(events.TwinDecoded(decode.into, whole=True, hashed=hashed(1), work=None))
    chunk = one.core.pool.find(key(1))
    assert chunk is not None
    assert chunk is not decode.into
    assert chunk.digest != NO_DIGEST
    one.close()


def test_a_pool_without_room_for_twins_reads_the_chunk() -> None:
    one = scene(pool_pages=2 * PAGES)
    one.directory(*entries(1))
    one.fetch(1)
    one.pass_ms(30)
    assert {asked.chunk.key for asked in one.take(effects.StartRead)} == {key(1)}
    one.close()


def test_the_switch_costs_no_holder_anything() -> None:
    one = scene()
    chunk, twin = entries(1)
    one.directory(replace(chunk, served=True), twin)
    one.fetch(1)
    one.pass_ms(1)
    assert twin.key not in one.core.fetches.arrivals.under_way
    two = scene()
    two.directory(replace(chunk, served=True), replace(twin, served=True))
    two.fetch(1)
    two.pass_ms(1)
    assert twin.key in two.core.fetches.arrivals.under_way
    one.close()
    two.close()
