"""Where residents lie in the slots, and which contiguous range of them is missed least.

The cost of a range is what is lost with the residents in it, each counted once: a resident that hangs on another one
in the range is part of that one's loss. So no range costs less than any resident in it, and looking at the ranges
around residents in order of their loss finds the cheapest after a few of them, however many there are.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field

from controlplane.core.ids import ChunkKey, Slot
from controlplane.core.switch.slots import SlotRange
from controlplane.core.switch_cache.eviction_order import EvictionOrder, Resident


@dataclass(frozen=True, slots=True)
class Placed:
    """A resident of the switch and where it lies."""

    resident: Resident
    slots: SlotRange


@dataclass(frozen=True, slots=True)
class Room:
    """Slots from `base` on, once `residents` (in order of address) are out."""

    cost: float
    base: Slot
    residents: tuple[Resident, ...]


@dataclass(slots=True)
class SlotLayout:
    """All residents of the switch."""

    order: EvictionOrder = field(default_factory=EvictionOrder)
    _slots: dict[ChunkKey, SlotRange] = field(default_factory=dict)
    _at: dict[int, ChunkKey] = field(default_factory=dict)
    """By first slot."""
    _until: dict[int, ChunkKey] = field(default_factory=dict)
    """By the slot behind the last one."""

    def __len__(self) -> int:
        return len(self._slots)

    def __contains__(self, key: object) -> bool:
        return key in self._slots

    def get(self, key: ChunkKey) -> Resident | None:
        """The resident of this key, if it is one."""
        return self.order.get(key)

    def put(self, resident: Resident, slots: SlotRange) -> None:
        """A resident that came, or is worth something else; it never moves. Raises ValueError if it did."""
        if self._slots.setdefault(resident.key, slots) != slots:
            raise ValueError(f"chunk {resident.key.hex()} lies at {self._slots[resident.key]}, not at {slots}")
        self._at[slots.base] = self._until[slots.end] = resident.key
        self.order.put(resident, slots.base)

    def remove(self, key: ChunkKey) -> None:
        """Raises KeyError for a key that is not a resident."""
        slots = self._slots.pop(key)
        del self._at[slots.base], self._until[slots.end]
        self.order.remove(key)

    def cheapest(self, need: int, keep: Collection[ChunkKey], gaps: Sequence[SlotRange]) -> Room | None:
        """The `need` slots whose residents are missed least, the first of equals; None if nothing may go.

        `keep` has to stay; `gaps` are the free ranges in order of address, none of them large enough by itself.
        """
        best: Room | None = None
        for loss, base, key in self.order.ascending():
            if best is not None and (loss, self._gap_before(Slot(base), gaps)) > (best.cost, best.base):
                break  # whatever was not looked at consists of residents from here on
            if key in keep:
                continue
            for first in self._starts(key, need, keep, gaps):
                room = self._room(first, need, keep, gaps)
                if room is not None and (best is None or (room.cost, room.base) < (best.cost, best.base)):
                    best = room
        return best

    def _starts(
        self, key: ChunkKey, need: int, keep: Collection[ChunkKey], gaps: Sequence[SlotRange]
    ) -> Iterator[Slot]:
        """Where ranges begin that reach into a resident: strips (residents and gaps) from it downwards."""
        at = self._slots[key].base
        last = at
        yield at
        while last - at < need:
            gap = _gap_until(gaps, at)
            if gap is not None:
                at = gap.base
            else:
                before = self._until.get(at)
                if before is None or not self._may_go(before, keep):
                    return
                at = self._slots[before].base
            if last - at < need:
                yield at

    def _room(self, first: Slot, need: int, keep: Collection[ChunkKey], gaps: Sequence[SlotRange]) -> Room | None:
        at, inside = int(first), []
        while at - first < need:
            gap = _gap_at(gaps, at)
            if gap is not None:
                at = gap.end
                continue
            key = self._at.get(at)
            if key is None or not self._may_go(key, keep):
                return None
            inside.append(key)
            at = self._slots[key].end
        residents = tuple(resident for key in inside if (resident := self.order.get(key)) is not None)
        among = set(inside)
        cost = math.fsum(self.order.loss(one.key) for one in residents if one.parent not in among)
        return Room(cost, first, residents)

    def _may_go(self, key: ChunkKey, keep: Collection[ChunkKey]) -> bool:
        resident = self.order.get(key)
        return resident is not None and resident.movable and key not in keep

    def _gap_before(self, base: Slot, gaps: Sequence[SlotRange]) -> Slot:
        gap = _gap_until(gaps, base)
        return base if gap is None else gap.base


def _gap_at(gaps: Sequence[SlotRange], base: int) -> SlotRange | None:
    """The gap that begins there."""
    at = bisect_left(gaps, base, key=lambda gap: gap.base)
    return gaps[at] if at < len(gaps) and gaps[at].base == base else None


def _gap_until(gaps: Sequence[SlotRange], end: int) -> SlotRange | None:
    """The gap that ends just before this slot."""
    at = bisect_left(gaps, end, key=lambda gap: gap.base) - 1
    return gaps[at] if at >= 0 and gaps[at].end == end else None
