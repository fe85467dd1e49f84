"""When each of very many things is due, most of which go before their time. Pure.

A heap of things keeps what has gone until its turn comes, and has to be made anew now and then: a tenth of a second for
100,000 things. Here times are rounded up to moments. What goes is forgotten at once, and only moments are in a heap.
"""

from __future__ import annotations

import heapq
from itertools import islice
from typing import Final, Generic, TypeVar

FINEST_BITS: Final = 19
"""Moments are at least 2^19 ns apart, 0.5 ms,"""
RELATIVE_BITS: Final = 12
"""and a 4096th of the time until then. So there are some 100,000 at most within ten minutes, whoever sets the times."""

T = TypeVar("T")


class Deadlines(Generic[T]):
    """Owns which things are due at which moment. Things are told apart by their hash; their owner remembers the moment
    that `add` returns."""

    def __init__(self) -> None:
        self._moments: dict[int, dict[T, None]] = {}
        """A moment whose things have gone stays until it comes: else one that is used again and again would be in the
        heap as often."""
        self._order: list[int] = []
        """Heap of the moments."""

    def add(self, thing: T, due_ns: int, now_ns: int) -> int:
        """A thing is due at `due_ns` or a little later; returns when exactly."""
        bits = max(FINEST_BITS, (due_ns - now_ns).bit_length() - RELATIVE_BITS)
        moment = -(-due_ns >> bits) << bits
        things = self._moments.get(moment)
        if things is None:
            things = self._moments[moment] = {}
            heapq.heappush(self._order, moment)
        things[thing] = None
        return moment

    def discard(self, thing: T, moment: int) -> None:
        """A thing is due no more."""
        del self._moments[moment][thing]

    @property
    def next_ns(self) -> int | None:
        """When the first of them is due."""
        while self._order:
            moment = self._order[0]
            if self._moments[moment]:
                return moment
            heapq.heappop(self._order)
            del self._moments[moment]
        return None

    def due(self, now_ns: int, count_max: int) -> list[T]:
        """Some of the first that are due by now. They stay: whoever is done with one discards it."""
        moment = self.next_ns
        return [] if moment is None or moment > now_ns else list(islice(self._moments[moment], count_max))
