"""Free space never overlaps, never leaks, and coalesces."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hostagent.pool.extents import ExtentAllocator

PAGE = 4096
POOL = 64 * PAGE


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 12 * PAGE), st.integers(0, 99)), max_size=80))
def test_taken_extents_are_disjoint_and_all_space_comes_back(steps: list[tuple[bool, int, int]]) -> None:
    allocator = ExtentAllocator(POOL, PAGE)
    taken: dict[int, int] = {}
    for allocate, size, pick in steps:
        if allocate:
            offset = allocator.allocate(size)
            if offset is None:
                assert max((gap for _, gap in allocator.gaps()), default=0) < allocator.extent_bytes(size)
            else:
                taken[offset] = size
        elif taken:
            offset = sorted(taken)[pick % len(taken)]
            allocator.free(offset, taken.pop(offset))
        spans = sorted((at, at + allocator.extent_bytes(length)) for at, length in taken.items())
        spans += [(at, at + length) for at, length in allocator.gaps()]
        spans.sort()
        assert spans[0][0] == 0
        assert spans[-1][1] == POOL
        assert all(before[1] == after[0] for before, after in itertools.pairwise(spans))
        assert allocator.free_bytes == sum(length for _, length in allocator.gaps())
    for offset, size in taken.items():
        allocator.free(offset, size)
    assert allocator.gaps() == [(0, POOL)]


def test_copy_is_independent() -> None:
    allocator = ExtentAllocator(POOL, PAGE)
    twin = allocator.copy()
    assert twin.allocate(POOL) == 0
    assert allocator.free_bytes == POOL


@pytest.mark.parametrize(("offset", "size"), [(0, PAGE), (PAGE, 1), (2 * PAGE, 2 * PAGE), (1, PAGE), (0, 4 * PAGE)])
def test_freeing_what_is_not_taken_is_refused(offset: int, size: int) -> None:
    allocator = ExtentAllocator(POOL, PAGE)
    first = allocator.allocate(PAGE)
    second = allocator.allocate(2 * PAGE)
    assert (first, second) == (0, PAGE)
    allocator.free(0, PAGE)
    with pytest.raises(ValueError, match="not taken"):
        allocator.free(offset if (offset, size) != (PAGE, 1) else 0, size)


def test_sizes_must_fit_the_alignment() -> None:
    with pytest.raises(ValueError, match="multiple"):
        ExtentAllocator(PAGE + 1, PAGE)
    with pytest.raises(ValueError, match="cannot allocate"):
        ExtentAllocator(PAGE, PAGE).allocate(0)
