"""Slot ranges never overlap, and everything freed is one range again."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controlplane.core.ids import Slot
from controlplane.core.switch.slots import SlotAllocator, SlotRange

CAPACITY = 40


def occupied(ranges: list[SlotRange]) -> list[int]:
    return [slot for one in ranges for slot in range(one.base, one.end)]


@settings(derandomize=True, max_examples=200, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["free", "reserve"]), st.integers(1, 12), st.integers(0, 45))))
def test_invariants(steps: list[tuple[str, int, int]]) -> None:
    allocator, held = SlotAllocator(CAPACITY), []
    for action, count, at in steps:
        if action == "reserve":
            wanted = SlotRange(Slot(at), count)
            free = wanted.end <= CAPACITY and not set(occupied([wanted])) & set(occupied(held))
            assert allocator.reserve(wanted) == free
            held += [wanted] if free else []
        elif held:
            allocator.free(held.pop(at % len(held)))
        slots = occupied(held)
        assert len(slots) == len(set(slots)) == allocator.used_count
        assert all(slot < CAPACITY for slot in slots)
        gaps = allocator.free_ranges
        assert sorted(slots + occupied(list(gaps))) == list(range(CAPACITY))
        assert all(one.end < other.base for one, other in itertools.pairwise(gaps)), "neighbours are joined"
    for one in held:
        allocator.free(one)
    assert allocator.free_ranges == (SlotRange(Slot(0), CAPACITY),)


def test_freeing_what_is_not_taken_raises() -> None:
    allocator = SlotAllocator(8)
    taken = SlotRange(Slot(2), 4)
    assert allocator.reserve(taken)
    with pytest.raises(ValueError, match="not taken"):
        allocator.free(SlotRange(Slot(2), 3))
    allocator.free(taken)
    with pytest.raises(ValueError, match="not taken"):
        allocator.free(taken)
