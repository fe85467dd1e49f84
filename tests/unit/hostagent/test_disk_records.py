"""The format of the index: what is written is read again, and nothing else is."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hostagent.pool.records import (
    FORMAT,
    HEADER_BYTES,
    RECORD_BYTES,
    HeaderFault,
    Record,
    pack_header,
    pack_record,
    record_at,
    unpack_header,
    unpack_record,
)
from kvchunk.ids import ChunkKey
from kvproto.integrity import NO_DIGEST, Integrity, digest_of
from tests.digests import digest

STORE = bytes(range(16))
OTHER_STORE = bytes(range(1, 17))
RECORD = Record(ChunkKey(b"k" * 16), ChunkKey(b"p" * 16), 7, "llama/1", 8192, 12_345, digest(0xFEED), 99)
keys = st.binary(min_size=16, max_size=16).map(ChunkKey)
records = st.builds(
    Record,
    keys,
    st.none() | keys,
    st.integers(0, 2**32 - 1),
    st.text(max_size=64),
    st.integers(0, 2**64 - 1),
    st.integers(1, 2**64 - 1),
    st.sampled_from([NO_DIGEST, digest(1), digest(2**255), digest_of(Integrity.XXH3, b"12345678")]),
    st.integers(0, 2**64 - 1),
)


@given(records, st.integers(0, 2**32))
def test_a_record_comes_back(record: Record, slot: int) -> None:
    sector = pack_record(record, STORE, slot)
    assert len(sector) == RECORD_BYTES
    assert unpack_record(sector, STORE, slot) == record


def test_any_flipped_bit_is_damage() -> None:
    for bit in range(RECORD_BYTES * 8):
        sector = bytearray(pack_record(RECORD, STORE, 3))
        sector[bit // 8] ^= 1 << bit % 8
        with pytest.raises(ValueError, match="record 3"):
            unpack_record(bytes(sector), STORE, 3)


@given(st.integers(1, RECORD_BYTES - 1))
def test_half_a_record_is_damage(length: int) -> None:
    """Torn between the old record and the new one, or between nothing and the new one, wherever they differ there."""
    new = pack_record(RECORD, STORE, 3)
    for old in (
        bytes(RECORD_BYTES),
        pack_record(Record(ChunkKey(b"o" * 16), None, 0, "", 0, 1, digest(1), 98), STORE, 3),
    ):
        torn = new[:length] + old[length:]
        if torn not in (new, old):
            with pytest.raises(ValueError, match="record 3"):
                unpack_record(torn, STORE, 3)


def test_a_record_of_another_place_or_store_is_damage() -> None:
    sector = pack_record(RECORD, STORE, 3)
    for store, slot in ((STORE, 4), (OTHER_STORE, 3)):
        with pytest.raises(ValueError, match="does not match its checksum"):
            unpack_record(sector, store, slot)


def test_an_empty_slot_is_no_record() -> None:
    assert unpack_record(bytes(RECORD_BYTES), STORE, 0) is None


def test_a_label_that_is_too_long_is_refused() -> None:
    with pytest.raises(ValueError, match="at most 256"):
        pack_record(Record(RECORD.key, None, 0, "é" * 129, 0, 1, NO_DIGEST, 0), STORE, 0)


def test_headers() -> None:
    page = pack_header(STORE)
    assert len(page) == HEADER_BYTES == record_at(0)
    assert unpack_header(page) == STORE
    assert unpack_header(page[:100]) is HeaderFault.DAMAGED
    assert unpack_header(b"#!/bin/sh\n".ljust(HEADER_BYTES)) is HeaderFault.DAMAGED
    for place in range(40):
        damaged = bytearray(page)
        damaged[place] ^= 1
        assert unpack_header(bytes(damaged)) is HeaderFault.DAMAGED


def test_a_header_of_another_format_is_told_from_damage() -> None:
    import struct

    import xxhash

    head = struct.pack("!8sII16s", b"KVCASTDI", FORMAT + 1, RECORD_BYTES, STORE)
    page = (head + struct.pack("!Q", xxhash.xxh3_64_intdigest(head))).ljust(HEADER_BYTES, b"\0")
    assert unpack_header(page) is HeaderFault.FORMAT
