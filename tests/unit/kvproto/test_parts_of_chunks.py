"""Which bytes of a chunk hold some layers or tokens: against numpy's own indexing."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvchunk.kv_layout import parse_layout
from kvchunk.parts import ByteRange, check_ranges, merged, ranges_of

AXES = {"l": 3, "p": 2, "b": 2, "t": 4, "h": 2}


@given(
    st.permutations(list(AXES)),
    st.none() | st.sets(st.integers(0, 2), min_size=1),
    st.none() | st.sets(st.integers(0, 7), min_size=1),
)
def test_ranges_are_the_numbers_that_indexing_finds(
    order: list[str], layers: set[int] | None, tokens: set[int] | None
) -> None:
    layout = parse_layout(".".join(("fp32", *(f"{axis}{AXES[axis]}" for axis in order), "d5")))
    numbers = np.arange(layout.numbers, dtype=np.uint32).reshape([size for _, size in layout.axes])
    index = np.meshgrid(*(np.arange(AXES[axis]) for axis in order), indexing="ij")
    at = dict(zip(order, index, strict=True))
    chosen = np.ones(numbers.shape[:-1], bool)
    if layers is not None:
        chosen &= np.isin(at["l"], list(layers))
    if tokens is not None:
        chosen &= np.isin(at["b"] * AXES["t"] + at["t"], list(tokens))
    ranges = ranges_of(layout, layers=layers, tokens=tokens)
    check_ranges(ranges)
    assert merged(ranges) == ranges
    memory = numbers.tobytes()
    found = np.frombuffer(b"".join(memory[one.offset : one.end] for one in ranges), np.uint32)
    assert found.tolist() == numbers[chosen].ravel().tolist()


def test_what_a_chunk_does_not_have_is_named() -> None:
    layout = parse_layout("bf16.l4.t16.d8")
    with pytest.raises(ValueError, match=r"layer 4: the chunk has 4, counted from 0"):
        ranges_of(layout, layers=[4])
    with pytest.raises(ValueError, match=r"token -1: the chunk has 16"):
        ranges_of(layout, tokens=[-1])
    with pytest.raises(ValueError, match=r"no layers"):
        ranges_of(layout, layers=[])
    assert ranges_of(layout) == [ByteRange(0, layout.size_bytes)]
