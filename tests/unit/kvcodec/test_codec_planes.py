"""The lossless form: every byte comes back, noise stays as it is, damage is told from a chunk."""

from __future__ import annotations

import struct

import numpy as np
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from kvchunk.kv_layout import parse_layout
from kvcodec import planes
from kvcodec.forms import CodecError
from kvcodec.native import native_loops
from tests.unit.kvcodec.kv_content import kv_chunk

LOOPS = native_loops()
LAYOUT = parse_layout("bf16.l2.p2.b4.t16.h2.d64")


def back(stored: bytes, size_bytes: int) -> bytes:
    chunk = bytearray(size_bytes)
    planes.decode(memoryview(stored), memoryview(chunk), LOOPS)
    return bytes(chunk)


@pytest.mark.parametrize(("element", "width"), [("bf16", 2), ("fp16", 2), ("fp32", 4)])
def test_kv_shrinks_and_every_byte_comes_back(element: str, width: int) -> None:
    chunk = kv_chunk(parse_layout(f"{element}.l2.p2.b4.t16.h2.d64"))
    assert planes.likely_width(np.frombuffer(chunk, np.uint8), LOOPS) == width
    stored = planes.encode(memoryview(chunk), LOOPS)
    assert stored is not None
    assert len(stored) < 0.9 * len(chunk)
    assert back(stored, len(chunk)) == chunk


def test_bf16_shrinks_to_three_quarters() -> None:
    chunk = kv_chunk(LAYOUT)
    stored = planes.encode(memoryview(chunk), LOOPS, 2)
    assert stored is not None
    assert len(stored) < 0.75 * len(chunk)


def test_noise_is_left_as_it_is() -> None:
    assert planes.encode(memoryview(np.random.default_rng(1).bytes(1 << 17)), LOOPS) is None


@given(st.binary(max_size=64), st.integers(0, 2000), st.sampled_from([None, *planes.WIDTHS]))
def test_any_bytes_of_any_size_come_back(pattern: bytes, size_bytes: int, width: int | None) -> None:
    chunk = (pattern * (1 + size_bytes // max(1, len(pattern))))[:size_bytes]
    stored = planes.encode(memoryview(chunk), LOOPS, width)
    assert stored is None or back(stored, len(chunk)) == chunk


def test_another_width_is_refused() -> None:
    with pytest.raises(CodecError, match="numbers of 3 bytes; 1, 2, 4 are known"):
        planes.encode(memoryview(bytes(10)), LOOPS, 3)


@given(st.data())
def test_damage_is_an_error_or_other_bytes_and_nothing_else(data: st.DataObject) -> None:
    chunk = kv_chunk(LAYOUT)
    stored = bytearray(planes.encode(memoryview(chunk), LOOPS) or b"")
    for _ in range(data.draw(st.integers(1, 3))):
        stored[data.draw(st.integers(0, len(stored) - 1))] ^= data.draw(st.integers(1, 255))
    try:
        found = back(bytes(stored), len(chunk))
    except CodecError:
        pass
    else:
        assert len(found) == len(chunk)


@pytest.mark.parametrize("cut", [0, 1, 15, 16, 31, 40, -1])
def test_what_is_cut_off_is_an_error(cut: int) -> None:
    chunk = kv_chunk(LAYOUT)
    stored = planes.encode(memoryview(chunk), LOOPS) or b""
    with pytest.raises(CodecError):
        back(stored[:cut], len(chunk))


def test_another_chunks_planes_are_an_error() -> None:
    chunk = kv_chunk(LAYOUT)
    stored = planes.encode(memoryview(chunk), LOOPS) or b""
    with pytest.raises(CodecError, match="not of"):
        back(stored, len(chunk) - 2)


def test_a_plane_that_claims_to_be_huge_takes_no_memory() -> None:
    frame = zstandard.ZstdCompressor().compress(bytes(1 << 26))
    size_bytes = 1 << 20
    head = struct.pack("!4sBB2xQ", b"KVCP", 1, planes.VERSION, size_bytes) + struct.pack("!Q", len(frame))
    with pytest.raises(CodecError, match="a plane of another size"):
        back(head + frame, size_bytes)
