"""The lossy form: how far numbers may be from what they were, on any layout, and what damage does."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvchunk.kv_layout import KvLayout, parse_layout
from kvcodec import lossy
from kvcodec.codec import decode, encode
from kvcodec.forms import CodecError, Form
from kvcodec.native import native_loops
from tests.unit.kvcodec.kv_content import kv_chunk, kv_numbers, packed, unpacked

LOOPS = native_loops()
LAYOUTS = (
    "bf16.l3.b4.p2.t16.h2.d64",
    "bf16.l3.p2.h2.b4.t16.d64",
    "fp16.l3.p2.b4.t16.h2.d64",
    "fp32.p2.l3.t64.h2.d64",
    "bf16.l3.b4.t16.d576",
    "bf16.l1.t1.d128",
    "bf16.l2.p2.t13.h3.d5",
)
LAYOUT = parse_layout(LAYOUTS[0])


def back(stored: bytes, layout: KvLayout) -> bytes:
    chunk = bytearray(layout.size_bytes)
    lossy.decode(memoryview(stored), memoryview(chunk), LOOPS)
    return bytes(chunk)


def channels_of(numbers: np.ndarray, layout: KvLayout) -> np.ndarray:
    """Shape (layers, parts, channels, tokens)."""
    sizes = [size for _, size in layout.axes]
    whole = numbers.reshape(sizes)
    names = [axis for axis, _ in layout.axes]
    for axis in "lpbthd":
        if axis not in names:
            whole = whole[..., None]
            names.append(axis)
    ordered = whole.transpose([names.index(axis) for axis in "lphdbt"])
    return ordered.reshape(layout.size("l"), layout.size("p"), -1, layout.size("b") * layout.size("t"))


@pytest.mark.parametrize("text", LAYOUTS)
@pytest.mark.parametrize("level", lossy.LEVELS)
def test_no_number_moves_by_more_than_half_a_step(text: str, level: str) -> None:
    layout = parse_layout(text)
    chunk = kv_chunk(layout)
    stored = lossy.encode(memoryview(chunk), layout, LOOPS, lossy.LEVELS[level])
    if stored is None:
        assert layout.numbers < 1000
        return
    before, after = (channels_of(unpacked(one, layout.element), layout) for one in (chunk, back(stored, layout)))
    deviation = np.abs(before - before.mean(axis=3, keepdims=True)).mean(axis=3, keepdims=True) * 1.25
    share = max(lossy.LEVELS[level].shares)
    # A bf16 that holds a restored number rounds it once more.
    limit = share * deviation / 2 + np.abs(before) / 128 + 1e-6
    assert np.all(np.abs(after - before) <= limit)


def test_kv_is_a_quarter_of_its_size() -> None:
    layout = parse_layout("bf16.l4.b16.p2.t16.h4.d64")
    stored = lossy.encode(memoryview(kv_chunk(layout)), layout, LOOPS)
    assert stored is not None
    assert layout.size_bytes / len(stored) > 3.5


@pytest.mark.parametrize("text", ["bf16.l3.b4.p2.t16.h2.d64", "fp16.l3.p2.b4.t16.h2.d64", "fp32.p2.l3.t64.h2.d64"])
def test_what_was_rounded_once_stays_close_to_itself(text: str) -> None:
    layout = parse_layout(text)
    stored = lossy.encode(memoryview(kv_chunk(layout)), layout, LOOPS) or b""
    assert back(stored, layout) == back(stored, layout)


@pytest.mark.parametrize("text", ["fp32.l3.b2.h2.p2.t32.d64", "fp16.l3.p2.b4.h2.t16.d64", "bf16.l2.p2.t32.d64"])
def test_keys_that_lie_across_are_the_same_numbers(text: str) -> None:
    plain = parse_layout(text)
    across = parse_layout(f"{text}.kdt")

    def turned(content: bytes) -> bytes:
        numbers = unpacked(content, plain.element).reshape([size for _, size in plain.axes]).copy()
        keys = np.moveaxis(numbers, [axis for axis, _ in plain.axes].index("p"), 0)[0]
        for place in np.ndindex(keys.shape[:-2]):
            keys[place] = keys[place].T.reshape(keys[place].shape)
        return packed(numbers.ravel(), plain.element)

    chunk = kv_chunk(plain)
    stored = lossy.encode(memoryview(turned(chunk)), across, LOOPS) or b""
    assert back(stored, across) == turned(back(lossy.encode(memoryview(chunk), plain, LOOPS) or b"", plain))
    assert turned(chunk) != chunk


def test_outliers_stand_beside_the_symbols() -> None:
    numbers = kv_numbers(LAYOUT)
    numbers[7], numbers[5000] = 900.0, -900.0
    chunk = packed(numbers, "bf16")
    after = unpacked(back(lossy.encode(memoryview(chunk), LAYOUT, LOOPS) or b"", LAYOUT), "bf16")
    assert abs(after[7] - 900) < 10
    assert abs(after[5000] + 900) < 10


@pytest.mark.parametrize("odd", [np.inf, -np.inf, np.nan, 3e38])
def test_numbers_that_no_grid_holds_leave_the_chunk_without_loss(odd: float) -> None:
    numbers = kv_numbers(LAYOUT)
    numbers[1234] = odd
    chunk = packed(numbers, "bf16")
    assert lossy.encode(memoryview(chunk), LAYOUT, LOOPS) is None
    form, stored = encode(memoryview(chunk), Form.LOSSY, LOOPS, LAYOUT)
    assert form is Form.PLANES
    found = bytearray(len(chunk))
    decode(form, memoryview(stored), memoryview(found), LOOPS)
    assert found == chunk


def test_zeros_and_constants() -> None:
    for value in (0.0, 3.0, -0.001, 65504.0):
        layout = parse_layout("fp16.l2.p2.t64.h2.d64")
        chunk = packed(np.full(layout.numbers, value, np.float32), "fp16")
        stored = lossy.encode(memoryview(chunk), layout, LOOPS)
        assert stored is not None
        after = unpacked(back(stored, layout), "fp16")
        assert np.allclose(after, value, rtol=2e-3)


def test_a_layout_of_another_size_is_refused() -> None:
    with pytest.raises(CodecError, match="a chunk of 100 bytes with a layout"):
        lossy.encode(memoryview(bytes(100)), LAYOUT, LOOPS)
    with pytest.raises(CodecError, match="needs its layout"):
        encode(memoryview(bytes(100)), Form.LOSSY, LOOPS)


@given(st.data())
def test_damage_is_an_error_or_other_numbers_and_nothing_else(data: st.DataObject) -> None:
    layout = parse_layout("bf16.l2.p2.t32.h2.d64")
    stored = bytearray(lossy.encode(memoryview(kv_chunk(layout)), layout, LOOPS) or b"")
    for _ in range(data.draw(st.integers(1, 3))):
        stored[data.draw(st.integers(0, len(stored) - 1))] ^= data.draw(st.integers(1, 255))
    try:
        found = back(bytes(stored), layout)
    except CodecError:
        pass
    else:
        assert len(found) == layout.size_bytes


@pytest.mark.parametrize("cut", [0, 3, 8, 20, 60, 1000, -1])
def test_what_is_cut_off_is_an_error(cut: int) -> None:
    stored = lossy.encode(memoryview(kv_chunk(LAYOUT)), LAYOUT, LOOPS) or b""
    with pytest.raises(CodecError):
        back(stored[:cut], LAYOUT)


@given(st.lists(st.integers(0, 10_000_000), min_size=256, max_size=256))
def test_frequencies_sum_up_and_leave_out_no_symbol(counts: list[int]) -> None:
    found = lossy.frequencies(np.array(counts))
    assert found.sum() == 4096
    assert found.max() < 4096
    assert np.all((found > 0) >= (np.array(counts) > 0))
