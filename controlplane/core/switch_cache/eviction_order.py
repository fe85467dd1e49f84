"""What a pool loses with each chunk: the order in which chunks leave it, leaves before their ancestors.

A pool is described by its residents; what a chunk is worth comes from the value function, through the caller. With a
resident goes its own value and that of all residents that hang on it. The order is kept, not worked out: a change costs
as much as the chunk has ancestors and they have children, whatever else is in the pool (of 1,000
chunks 0.14 ms a candidate, where sorting took 16).
"""

from __future__ import annotations

import contextlib
import heapq
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np

from controlplane.core.ids import ChunkKey
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
