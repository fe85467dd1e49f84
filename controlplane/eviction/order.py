"""What a pool loses with each chunk: the order in which chunks leave it, leaves before their ancestors.

A pool is described by its residents; what a chunk is worth comes from the value function, through the caller. With a
resident goes its own value and that of all residents that hang on it. The order is kept, not worked out: a change costs
as much as the chunk has ancestors and they have children, whatever else is in the pool.
"""

from __future__ import annotations

import heapq
import math
from bisect import bisect_left, insort
from collections.abc import Iterator
from dataclasses import dataclass

from controlplane.ids import ChunkKey


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


class EvictionOrder:
    """Residents of one pool by what is lost with them."""

    def __init__(self) -> None:
        self._residents: dict[ChunkKey, Resident] = {}
        self._children: dict[ChunkKey, set[ChunkKey]] = {}
        """Residents by parent, whether that is one or not."""
        self._kept: dict[ChunkKey, _Kept] = {}
        self._movable: list[tuple[float, int, ChunkKey]] = []
        """(loss, rank, key), ascending."""
        self._stale: set[ChunkKey] = set()

    def __len__(self) -> int:
        return len(self._residents)

    def get(self, key: ChunkKey) -> Resident | None:
        return self._residents.get(key)

    def put(self, resident: Resident, rank: int) -> None:
        """A resident that came, or is different now. `rank` orders those with equal loss and stays as it was."""
        key = resident.key
        before = self._residents.get(key)
        if before == resident:
            return
        if before is not None:
            self._unlink(before)
            if before.movable and not resident.movable:
                self._withdraw(key)
        else:
            self._kept[key] = _Kept(math.nan, math.nan, rank)
        self._residents[key] = resident
        if resident.parent is not None:
            self._children.setdefault(resident.parent, set()).add(key)
            self._stale.add(resident.parent)
        self._stale.add(key)

    def remove(self, key: ChunkKey) -> None:
        """Raises KeyError for a key that is no resident."""
        resident = self._residents[key]
        self._unlink(resident)
        self._withdraw(key)
        del self._residents[key], self._kept[key]
        self._stale.discard(key)

    def loss(self, key: ChunkKey) -> float:
        """Value of a resident and of all residents below it, in seconds saved per second."""
        self._settle()
        return self._kept[key].loss

    def ascending(self) -> Iterator[tuple[float, int, ChunkKey]]:
        """(loss, rank, key) of what may go, smallest first. Nothing may change meanwhile."""
        self._settle()
        return iter(self._movable)

    def _unlink(self, resident: Resident) -> None:
        if resident.parent is None:
            return
        siblings = self._children[resident.parent]
        siblings.discard(resident.key)
        if not siblings:
            del self._children[resident.parent]
        self._stale.add(resident.parent)

    def _withdraw(self, key: ChunkKey) -> None:
        """Take a resident out of the list, if it is there."""
        kept = self._kept[key]
        at = bisect_left(self._movable, (kept.loss, kept.rank, key))
        if at < len(self._movable) and self._movable[at][2] == key:
            del self._movable[at]

    def _settle(self) -> None:
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
            self._withdraw(resident.key)
            self._kept[resident.key] = _Kept(worth, loss, before.rank)
        if resident.movable:
            entry = (loss, before.rank, resident.key)
            at = bisect_left(self._movable, entry)
            if at == len(self._movable) or self._movable[at] != entry:
                insort(self._movable, entry)
        return not same
