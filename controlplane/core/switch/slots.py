"""Contiguous ranges of slots. Which range to take is the policy's choice; this only knows which are free."""

from __future__ import annotations

from bisect import bisect_left, insort
from dataclasses import dataclass

from controlplane.core.ids import Slot


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
    """Keeps account of a pool of `capacity` slots. Freeing what was not taken raises."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._free: list[SlotRange] = [SlotRange(Slot(0), capacity)] if capacity > 0 else []
        self._used: dict[Slot, int] = {}
        self.used_count = 0
        """Slots that are taken."""

    @property
    def free_ranges(self) -> tuple[SlotRange, ...]:
        """In order of address, never adjacent."""
        return tuple(self._free)

    def reserve(self, wanted: SlotRange) -> bool:
        """Take exactly these slots; False, and no change, if any is not free."""
        for gap in self._free:
            if gap.base <= wanted.base and wanted.end <= gap.end and wanted.count > 0:
                self._take(gap, wanted)
                return True
        return False

    def free(self, given_back: SlotRange) -> None:
        """Give a range back. Raises ValueError for one that was not taken as such."""
        if self._used.get(given_back.base) != given_back.count:
            raise ValueError(f"slots {given_back.base}+{given_back.count} are not taken")
        del self._used[given_back.base]
        self.used_count -= given_back.count
        base, end = given_back.base, given_back.end
        at = bisect_left(self._free, given_back)
        if at < len(self._free) and self._free[at].base == end:
            end = self._free.pop(at).end
        if at > 0 and self._free[at - 1].end == base:
            base = self._free.pop(at - 1).base
        insort(self._free, SlotRange(base, end - base))

    def _take(self, gap: SlotRange, wanted: SlotRange) -> None:
        self._free.remove(gap)
        if gap.base < wanted.base:
            insort(self._free, SlotRange(gap.base, wanted.base - gap.base))
        if wanted.end < gap.end:
            insort(self._free, SlotRange(Slot(wanted.end), gap.end - wanted.end))
        self._used[wanted.base] = wanted.count
        self.used_count += wanted.count
