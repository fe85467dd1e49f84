"""Where residents lie in the slots, and which contiguous range of them is missed least.

The cost of a range is what is lost with the residents in it, each counted once: a resident that hangs on another one
in the range is part of that one's loss. So no range costs less than any resident in it, and looking at the ranges
around residents in order of their loss finds the cheapest after a few of them, however many there are.

What the chunks in the switch are worth, kept up to date as news comes, not worked out for each decision. Pure.

All rates shrink alike with time, so values stand as of one moment, the origin, and change only with an event: a fetch
or a hint (reported by `ClusterValues`), one holder more or less or another ancestor (reported by `Directory`), a pin.
No event reports the costs of sources: each time a few residents, and those about to go, are looked at again.

What a pool loses with each chunk: the order in which chunks leave it, leaves before their ancestors.

A pool is described by its residents; what a chunk is worth comes from the value function, through the caller. With a
resident goes its own value and that of all residents that hang on it. The order is kept, not worked out: a change costs
as much as the chunk has ancestors and they have children, whatever else is in the pool (of 1,000
chunks 0.14 ms a candidate, where sorting took 16).
"""

from __future__ import annotations

import contextlib
import heapq
import math
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from controlplane.core.directory import Directory
from controlplane.core.ids import ChunkKey, Slot
from controlplane.core.switch.slots import SlotRange
from controlplane.core.values import ClusterValues
from kvpolicy.value.lowest import LowestFirst

_QUEUE_MIN: Final = 64
_QUEUE_SHARE: Final = 16


@dataclass(frozen=True, slots=True)
class Resident:
    """A chunk in a pool."""

    key: ChunkKey
    parent: ChunkKey | None
    size_bytes: int
    position: int
    """In the prefix: larger than the parent's. A link that contradicts it is ignored."""
    value: float
    """Per byte, from the value function."""
    movable: bool = True
    """False for what is pinned, in use, or on its way in or out."""


@dataclass(frozen=True, slots=True)
class _Kept:
    worth: float
    """Value per byte, never below that of a resident that hangs below: to lose an ancestor is to lose their use too."""
    loss: float
    rank: int
    place: int


class EvictionOrder:
    """Residents of one pool by what is lost with them."""

    def __init__(self) -> None:
        self._residents: dict[ChunkKey, Resident] = {}
        self._children: dict[ChunkKey, set[ChunkKey]] = {}
        """Residents by parent, whether that is one or not."""
        self._kept: dict[ChunkKey, _Kept] = {}
        self._occupants: list[ChunkKey | None] = []
        """Keys by place: residents are numbers to `LowestFirst`."""
        self._vacant: list[int] = []
        self._movable = LowestFirst(self._is_movable, _QUEUE_MIN, _QUEUE_SHARE)
        self._stale: set[ChunkKey] = set()

    def __len__(self) -> int:
        return len(self._residents)

    def get(self, key: ChunkKey) -> Resident | None:
        """The resident of this key, if it is one."""
        return self._residents.get(key)

    def put(self, resident: Resident, rank: int) -> None:
        """A resident that came, or is different now. `rank` orders those with equal loss and stays as it was."""
        key = resident.key
        before = self._residents.get(key)
        if before == resident:
            return
        if before is not None:
            self._unlink(before)
        else:
            self._kept[key] = _Kept(math.nan, math.nan, rank, self._take_place(key))
        self._residents[key] = resident
        if resident.parent is not None:
            self._children.setdefault(resident.parent, set()).add(key)
            self._stale.add(resident.parent)
        self._stale.add(key)

    def remove(self, key: ChunkKey) -> None:
        """Raises KeyError for a key that is not a resident."""
        resident = self._residents[key]
        self._unlink(resident)
        place = self._kept[key].place
        self._occupants[place] = None
        self._vacant.append(place)
        del self._residents[key], self._kept[key]
        self._stale.discard(key)

    def loss(self, key: ChunkKey) -> float:
        """Value of a resident and of all residents below it, in seconds saved per second."""
        self._work_out_stale()
        return self._kept[key].loss

    def ascending(self) -> Iterator[tuple[float, int, ChunkKey]]:
        """(loss, rank, key) of what may go, smallest first. Nothing may change meanwhile."""
        self._work_out_stale()
        with contextlib.closing(self._movable.ascending(self._fill)) as entries:
            for loss, rank, place in entries:
                key = self._occupants[place]
                if key is None:
                    raise AssertionError("what may go has a key")
                yield loss, rank, key

    def _take_place(self, key: ChunkKey) -> int:
        if self._vacant:
            place = self._vacant.pop()
            self._occupants[place] = key
        else:
            place = len(self._occupants)
            self._occupants.append(key)
        return place

    def _is_movable(self, loss: float, place: int) -> bool:
        key = self._occupants[place]
        return key is not None and self._residents[key].movable and self._kept[key].loss == loss

    def _fill(self, seen: set[int]) -> bool:
        movable = [kept for key, kept in self._kept.items() if self._residents[key].movable and kept.place not in seen]
        return self._movable.fill(
            np.array([kept.loss for kept in movable], np.float64),
            np.array([kept.rank for kept in movable], np.int64),
            np.array([kept.place for kept in movable], np.int64),
        )

    def _unlink(self, resident: Resident) -> None:
        if resident.parent is None:
            return
        siblings = self._children[resident.parent]
        siblings.discard(resident.key)
        if not siblings:
            del self._children[resident.parent]
        self._stale.add(resident.parent)

    def _work_out_stale(self) -> None:
        """Work out what changes made stale, descendants first."""
        if not self._stale:
            return
        due = [(-resident.position, key) for key in self._stale if (resident := self._residents.get(key)) is not None]
        self._stale.clear()
        heapq.heapify(due)
        queued = {key for _, key in due}
        while due:
            _, key = heapq.heappop(due)
            resident = self._residents[key]
            if not self._work_out(resident):
                continue
            parent = None if resident.parent is None else self._residents.get(resident.parent)
            if parent is not None and parent.position < resident.position and parent.key not in queued:
                queued.add(parent.key)
                heapq.heappush(due, (-parent.position, parent.key))

    def _work_out(self, resident: Resident) -> bool:
        """Put one resident where it belongs. False if what its parent sees of it is as before."""
        below = [
            self._kept[child]
            for child in self._children.get(resident.key, ())
            if self._residents[child].position > resident.position
        ]
        worth = max([resident.value, *(child.worth for child in below)])
        loss = math.fsum([worth * resident.size_bytes, *(child.loss for child in below)])
        before = self._kept[resident.key]
        same = before.worth == worth and before.loss == loss
        if not same:
            self._kept[resident.key] = _Kept(worth, loss, before.rank, before.place)
        if resident.movable:
            self._movable.changed(loss, before.rank, before.place)
        return not same


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


_HALF_LIVES_MAX: Final = 256
"""From one origin to the next: far below the range of a float."""
_SAME: Final = 1e-9
"""Values that differ by less, relatively, differ by rounding."""
_LOOKED_AT_AGAIN: Final = 32


class Residents:
    """Owns layout and order of the switch's residents; `now_ns` never goes back."""

    def __init__(self, directory: Directory, values: ClusterValues, is_kept: Callable[[ChunkKey], bool]) -> None:
        """`is_kept(key)`: nobody may displace it."""
        self._directory = directory
        self._values = values
        self._is_kept = is_kept
        self.layout = SlotLayout()
        self._slots: dict[ChunkKey, SlotRange] = {}
        self._serving: set[ChunkKey] = set()
        self._origin_ns = 0
        self._changed: set[ChunkKey] = set()
        self._roots_changed: set[ChunkKey] = set()
        """Chunks that came to the directory or left it: what hangs on them has its ancestors back, or lost them."""
        self._round: list[ChunkKey] = []
        directory.watch(self._directory_changed)
        values.watch(self.changed)

    def scale(self, now_ns: int) -> float:
        """The factor that turns a value of this moment into one of the origin's."""
        return math.exp2((now_ns - self._origin_ns) / 1e9 / self._values.cache.parameters.half_life_s)

    def put(self, key: ChunkKey, slots: SlotRange, serving: bool) -> None:
        """A chunk came, or began or ceased to serve."""
        self._slots[key] = slots
        if serving:
            self._serving.add(key)
        else:
            self._serving.discard(key)
        self._changed.add(key)

    def remove(self, key: ChunkKey) -> None:
        """A chunk left the switch. Raises KeyError for one that was not there."""
        del self._slots[key]
        self._serving.discard(key)
        self._changed.discard(key)
        if key in self.layout:
            self.layout.remove(key)

    def changed(self, key: ChunkKey) -> None:
        """Something that its value or its staying depends on is different."""
        if key in self._slots:
            self._changed.add(key)

    def refresh(self, now_ns: int) -> None:
        """Take in the news."""
        if (now_ns - self._origin_ns) / 1e9 / self._values.cache.parameters.half_life_s > _HALF_LIVES_MAX:
            self._origin_ns = now_ns
            self._changed.update(self._slots)
        self._follow_roots()
        for key in self._changed:
            self._look_at(key, now_ns)
        self._changed.clear()

    def look_round(self, now_ns: int) -> None:
        """Take in the news, and look at the next few residents without any."""
        if not self._round:
            self._round = list(self._slots)
        due, self._round = self._round[-_LOOKED_AT_AGAIN:], self._round[:-_LOOKED_AT_AGAIN]
        self._changed.update(key for key in due if key in self._slots)
        self.refresh(now_ns)

    def are_as_kept(self, keys: Iterable[ChunkKey], now_ns: int) -> bool:
        """Look at these again. True if nothing about them was different."""
        different = [key for key in keys if self._look_at(key, now_ns)]
        return not different

    def worked_out_anew(self, now_ns: int) -> dict[ChunkKey, Resident]:
        """All residents recomputed the slow way, as a check on the ones that are kept up to date."""
        return {key: self._resident(key, now_ns) for key in self._slots}

    def _directory_changed(self, keys: Sequence[ChunkKey], are_new_or_lost: bool) -> None:
        if self._slots:
            self._changed.update(key for key in keys if key in self._slots)
            self._roots_changed.update(keys if are_new_or_lost else ())

    def _follow_roots(self) -> None:
        seen, below = set(self._roots_changed), list(self._roots_changed)
        self._roots_changed.clear()
        while below:
            for child in self._directory.children(below.pop()):
                if child not in seen:
                    seen.add(child)
                    below.append(child)
        self._changed.update(key for key in seen if key in self._slots)

    def _look_at(self, key: ChunkKey, now_ns: int) -> bool:
        """True if the resident is different from what was kept."""
        kept, now = self.layout.get(key), self._resident(key, now_ns)
        if kept is not None and math.isclose(kept.value, now.value, rel_tol=_SAME):
            now = Resident(now.key, now.parent, now.size_bytes, now.position, kept.value, now.movable)
            if now == kept:
                return False
        self.layout.put(now, self._slots[key])
        return True

    def _resident(self, key: ChunkKey, now_ns: int) -> Resident:
        movable = key in self._serving and not self._is_kept(key)
        known = self._directory.get(key)
        if known is None:
            return Resident(key, None, 0, 0, 0.0, movable)
        facts = known.facts
        value = self._values.value(key, facts.size_bytes, self._directory.is_rooted(key), now_ns) * self.scale(now_ns)
        return Resident(key, facts.parent, facts.size_bytes, facts.position, value, movable)
