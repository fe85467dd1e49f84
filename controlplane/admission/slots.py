"""Contiguous ranges of slots: best fit, neighbours joined when freed."""

from __future__ import annotations

from bisect import bisect_left, insort
from dataclasses import dataclass

from controlplane.ids import Slot


@dataclass(frozen=True, slots=True, order=True)
class SlotRange:
    """Slots base .. base + count - 1."""

    base: Slot
    count: int

    @property
    def end(self) -> int:
        """The first slot behind it."""
        return self.base + self.count


class SlotAllocator:
    """Hands out ranges of a pool of `capacity` slots. Freeing what was not allocated raises."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._free: list[SlotRange] = [SlotRange(Slot(0), capacity)] if capacity > 0 else []
        self._used: dict[Slot, int] = {}

    @property
    def used_count(self) -> int:
        return sum(self._used.values())

    @property
    def free_ranges(self) -> tuple[SlotRange, ...]:
        """In order of address, never adjacent."""
        return tuple(self._free)

    @property
    def used_ranges(self) -> tuple[SlotRange, ...]:
        return tuple(sorted(SlotRange(base, count) for base, count in self._used.items()))

    @property
    def largest_free(self) -> int:
        return max((gap.count for gap in self._free), default=0)

    def allocate(self, count: int) -> SlotRange | None:
        """The smallest gap that fits, its beginning; None (and no change) if none does."""
        if count <= 0:
            raise ValueError(f"a range has at least one slot, not {count}")
        fitting = [gap for gap in self._free if gap.count >= count]
        if not fitting:
            return None
        gap = min(fitting, key=lambda one: (one.count, one.base))
        return self._take(gap, SlotRange(gap.base, count))

    def reserve(self, wanted: SlotRange) -> bool:
        """Take exactly these slots (found in use in a switch); False, and no change, if any is not free."""
        for gap in self._free:
            if gap.base <= wanted.base and wanted.end <= gap.end and wanted.count > 0:
                self._take(gap, wanted)
                return True
        return False

    def free(self, given_back: SlotRange) -> None:
        """Give a range back. Raises ValueError for one that is not allocated as such."""
        if self._used.get(given_back.base) != given_back.count:
            raise ValueError(f"slots {given_back.base}+{given_back.count} are not allocated")
        del self._used[given_back.base]
        base, end = given_back.base, given_back.end
        at = bisect_left(self._free, given_back)
        if at < len(self._free) and self._free[at].base == end:
            end = self._free.pop(at).end
        if at > 0 and self._free[at - 1].end == base:
            base = self._free.pop(at - 1).base
        insort(self._free, SlotRange(base, end - base))

    def _take(self, gap: SlotRange, wanted: SlotRange) -> SlotRange:
        self._free.remove(gap)
        if gap.base < wanted.base:
            insort(self._free, SlotRange(gap.base, wanted.base - gap.base))
        if wanted.end < gap.end:
            insort(self._free, SlotRange(Slot(wanted.end), gap.end - wanted.end))
        self._used[wanted.base] = wanted.count
        return wanted
