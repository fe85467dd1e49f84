"""A queue of background work that stays below what engines wait for. Pure.

Background work (demotions, promotions, fetches that the controller asks for) is offered to a lane and taken from it one
item at a time. Nothing is taken while an engine waits for something, except that the oldest item may go once it has
waited `patience_ns`, and then one more each `patience_ns`: a node that is never idle still gets its background work
done, slowly. What does not fit into the queue is refused at once, for the caller to offer again or to forget.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

Item = TypeVar("Item", bound=Hashable)


@dataclass(frozen=True, slots=True)
class LaneLimits:
    """How much, how fast, how patient."""

    waiting_max: int = 256
    at_once: int = 1
    patience_ns: int = 1_000_000_000
    bytes_per_s: int = 0
    """Of the items taken; 0: no limit."""

    def __post_init__(self) -> None:
        if self.waiting_max < 1 or self.at_once < 1 or self.patience_ns < 0 or self.bytes_per_s < 0:
            raise ValueError(f"limits of a lane must be positive: {self}")


@dataclass(slots=True)
class LaneCounts:
    """Running totals, for metrics."""

    offered: int = 0
    refused: int = 0
    """No room in the queue."""
    taken: int = 0
    forced: int = 0
    """Taken although an engine was waiting, because they had waited long enough."""
    waited_ns: int = 0
    """From offer to start, all together."""


@dataclass(slots=True)
class Waiting:
    """An item that was offered."""

    size_bytes: int
    since_ns: int


class Lane(Generic[Item]):
    """Items are hashable and distinct; offering one that waits or runs already changes nothing."""

    def __init__(self, limits: LaneLimits) -> None:
        self.limits = limits
        self.counts = LaneCounts()
        self.waiting: OrderedDict[Item, Waiting] = OrderedDict()
        """Items that were offered and not taken, the oldest first."""
        self._running: set[Item] = set()
        self._forced_ns: int | None = None
        self._paid_until_ns = 0
        """When the bytes that were taken are paid for, at the rate of the lane."""

    def __len__(self) -> int:
        return len(self.waiting)

    def __contains__(self, item: Item) -> bool:
        return item in self.waiting or item in self._running

    @property
    def running_count(self) -> int:
        """Items taken and not ended."""
        return len(self._running)

    @property
    def has_room(self) -> bool:
        """Whether an offer would be taken up."""
        return len(self.waiting) < self.limits.waiting_max

    def offer(self, item: Item, size_bytes: int, now_ns: int) -> bool:
        """Queue an item; False when there is no room for it."""
        if item in self:
            return True
        self.counts.offered += 1
        if not self.has_room:
            self.counts.refused += 1
            return False
        self.waiting[item] = Waiting(size_bytes, now_ns)
        return True

    def take(self, busy: bool, now_ns: int) -> Item | None:
        """The item to start now; None: none. `busy`: an engine waits for something."""
        due_ns = self.due_ns(busy, now_ns)
        if due_ns is None or due_ns > now_ns:
            return None
        item, waiting = self.waiting.popitem(last=False)
        self._running.add(item)
        self.counts.taken += 1
        self.counts.waited_ns += now_ns - waiting.since_ns
        if busy:
            self.counts.forced += 1
            self._forced_ns = now_ns
        if self.limits.bytes_per_s:
            start_ns = max(now_ns, self._paid_until_ns)
            self._paid_until_ns = start_ns + waiting.size_bytes * 1_000_000_000 // self.limits.bytes_per_s
        return item

    def due_ns(self, busy: bool, now_ns: int) -> int | None:
        """When `take` should be called; `now_ns` when at once, None when not before something ends or is offered."""
        if not self.waiting or len(self._running) >= self.limits.at_once:
            return None
        due_ns = max(now_ns, self._paid_until_ns if self.limits.bytes_per_s else 0)
        if busy:
            oldest = next(iter(self.waiting.values()))
            since_ns = oldest.since_ns if self._forced_ns is None else max(oldest.since_ns, self._forced_ns)
            due_ns = max(due_ns, since_ns + self.limits.patience_ns)
        return due_ns

    def ended(self, item: Item) -> None:
        """An item that was taken is done, one way or the other."""
        self._running.discard(item)

    def drop(self, unwanted: Callable[[Item], bool]) -> list[Item]:
        """Take items out of the queue that have become pointless; returns them."""
        dropped = [item for item in self.waiting if unwanted(item)]
        for item in dropped:
            del self.waiting[item]
        return dropped
