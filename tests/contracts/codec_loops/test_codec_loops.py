"""The codec's loops in C, with the instructions of each level, and in numpy: the same bytes, and the same refusals."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvchunk.kv_layout import parse_layout
from kvcodec import lossy, planes
from kvcodec.loops import ESCAPE, PROBS, Coded, Element, Loops, Place, Quantised
from kvcodec.native import native_loops
from tests.contracts.codec_loops.reference import NumpyLoops, table_of
from tests.unit.kvcodec.kv_content import kv_chunk

REFERENCE = NumpyLoops()
LEVELS = ("every processor's", "AVX2", "AVX-512")
"""enum cpu_level of kvcodec/src/cpu.h, in order."""


@pytest.fixture(autouse=True, params=LEVELS, scope="module")
def level(request: pytest.FixtureRequest) -> Iterator[None]:
    wanted = LEVELS.index(request.param)
    if native_loops().use_level(wanted) != wanted:
        pytest.skip(f"this processor has no {request.param}")
    yield
    native_loops().use_level(len(LEVELS) - 1)


def native() -> Loops:
    return native_loops()


LAYOUTS = ("bf16.l2.b3.p2.t16.h2.d64", "fp16.l2.p2.h3.t11.d8", "fp32.l1.t25.h2.d9", "bf16.l2.t7.d33")


@pytest.mark.parametrize("text", LAYOUTS)
def test_native_gives_the_references_bytes_both_ways(text: str) -> None:
    layout = parse_layout(text)
    for seed in range(4):
        chunk = memoryview(kv_chunk(layout, seed))
        ways = (native(), REFERENCE)
        for encode, decode in (
            (lambda one: lossy.encode(chunk, layout, one), lossy.decode),  # noqa: B023
            (lambda one: planes.encode(chunk, one), planes.decode),  # noqa: B023
        ):
            stored = [encode(one) for one in ways]
            assert stored[0] == stored[1]
            if stored[0] is None:
                continue
            found = [bytearray(len(chunk)) for _ in ways]
            for one, out in zip(ways, found, strict=True):
                decode(memoryview(stored[0]), memoryview(out), one)
            assert found[0] == found[1]


@given(st.integers(0, 2000), st.integers(0, 2**32), st.integers(1, 255))
def test_native_range_code_of_any_symbols(count: int, seed: int, spread: int) -> None:
    random = np.random.default_rng(seed)
    symbols = (random.standard_exponential(count) * spread / 8).clip(0, 255).astype(np.uint8)
    frequency = lossy.frequencies(np.bincount(symbols, minlength=256))
    coded = [one.rans_encode(symbols, frequency) for one in (native(), REFERENCE)]
    assert np.array_equal(coded[0].words, coded[1].words)
    assert np.array_equal(coded[0].states, coded[1].states)
    for one in (native(), REFERENCE):
        found, states, used = one.rans_decode(coded[0], frequency, count)
        assert np.array_equal(found, symbols)
        assert used == len(coded[0].words)
        assert np.all(states == 1 << 16)


@given(st.integers(0, 2**32), st.integers(0, 400), st.integers(0, 500))
def test_native_reads_garbage_as_the_reference_does(seed: int, words_count: int, count: int) -> None:
    random = np.random.default_rng(seed)
    coded = Coded(random.integers(0, 1 << 32, 32, np.uint32), random.integers(0, 1 << 16, words_count, np.uint16))
    frequency = lossy.frequencies(random.integers(0, 50, 256))
    found = []
    for one in (native(), REFERENCE):
        try:
            symbols, states, used = one.rans_decode(coded, frequency, count)
            found.append((symbols.tobytes(), states.tobytes(), used))
        except ValueError as error:
            found.append(str(error))  # type: ignore[arg-type]
    assert found[0] == found[1]


@pytest.mark.parametrize("escapes", [0, 1, 63, 64, 65])
def test_native_counts_escapes_as_the_reference_does(escapes: int) -> None:
    place = Place(np.arange(8, dtype=np.int64) * 16, np.array([0, 8], np.int64), 8)
    symbols = np.full(8 * 16, 127, np.uint8)
    symbols[::2] = ESCAPE
    found = Quantised(symbols[: 2 * 16], symbols[2 * 16 :], np.arange(escapes, dtype=np.int16))
    outs, results = [], []
    for one in (native(), REFERENCE):
        out = np.zeros(8 * 16 * 4, np.uint8)
        try:
            results.append(one.restore(found, lossy.STEPS[:16], 4, place, Element.FP32, out))
        except ValueError:
            results.append(-1)
        outs.append(out.tobytes())
    assert results[0] == results[1] == (64 if escapes >= 64 else -1)
    assert escapes < 64 or outs[0] == outs[1]


def test_tables_have_every_slot() -> None:
    frequency = lossy.frequencies(np.arange(256))
    table = table_of(frequency)
    assert len(table) == PROBS
    assert np.array_equal(np.bincount(table & 255, minlength=256), frequency)
