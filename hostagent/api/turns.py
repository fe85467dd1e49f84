"""Whose request the agent handles next: fairness among engines' connections by what requests cost, not by their number.

Fair queueing with virtual time, as SFQ has it (Goyal, Vin, Cheng, 1996): a request starts where its connection's last
one ended, or now if that is later, and ends by its cost later. What ends first is handled first. So an engine that asks
for less than its share waits for the request that is being handled and for no other; with deficit round robin it would
wait for as many dear ones as there are connections that have saved up for one. Of a dear request it waits for one slice
(`hostagent.api.slices`): whose request is not done stays in its place, and what ends before goes first. Pure.
"""

from __future__ import annotations

import heapq
from typing import Final, Generic, Protocol, TypeVar

from hostagent.limits import SLICE_KEYS
from kvclient.messages import Kind

AT_ONCE_US: Final = 600
"""What a connection may ask for without waiting for a turn while nobody else waits: more than a put takes."""
TURN_US: Final = 2000
"""Then the event loop sees to everything else."""

_KEY: Final = 4
"""What most requests take for a key, in us; measured on one core of 2026, rounded up."""
COSTS_US: Final[dict[int, tuple[int, int]]] = {
    Kind.RESERVE: (250, 0),
    Kind.COMMIT: (350, 0),
    Kind.ABORT: (100, 0),
    Kind.RELEASE: (100, 0),
    Kind.CANCEL: (100, 0),
    Kind.FETCH: (150, _KEY),
    Kind.FETCH_STREAM: (150, _KEY),
    Kind.FETCH_EACH: (150, _KEY),
    Kind.FETCH_PARTS: (150, _KEY),
    Kind.STATS: (2000, 0),
    Kind.DISCLAIM: (2000, _KEY),
    Kind.CLAIM: (100, 2 * _KEY),
    Kind.HINT: (100, 3 * _KEY),
}
"""us of a request, and of each of its keys."""
LONG_KEYS_US: Final[dict[int, int]] = dict.fromkeys((Kind.FETCH, Kind.FETCH_STREAM, Kind.FETCH_EACH), 4 * _KEY)
"""us of each key of a request that is worked in slices, where that is more: what the pools learn is in it."""
RELEASE_SLICE_US: Final = 200
"""What it takes to give back a slice of a lease."""
OTHER_US: Final = (100, _KEY)

assert COSTS_US[Kind.RESERVE][0] + COSTS_US[Kind.COMMIT][0] <= AT_ONCE_US
assert all(base + per_key * SLICE_KEYS > AT_ONCE_US for base, per_key in (*COSTS_US.values(), OTHER_US) if per_key), (
    "requests that are worked in slices wait for their turns"
)


class Asker(Protocol):
    """A connection that has requests waiting, or had."""

    paid_us: int
    """Where its last request ended, in virtual time."""

    @property
    def is_at_work(self) -> bool:
        """Whether its last request is not done: that has another turn, in the same place."""

    @property
    def next_us(self) -> int | None:
        """What its next request costs; None: there is none, or it may not be handled now."""


A = TypeVar("A", bound=Asker)


class Turns(Generic[A]):
    """Owns the order of those who wait, and virtual time. Falsy: nobody waits."""

    def __init__(self) -> None:
        self._waiting: list[tuple[int, int, int, A]] = []
        """Heap of (end of the next request, order of arrival, its start, whose it is)."""
        self._in: set[A] = set()
        self._served: tuple[int, int, int, A] | None = None
        """Whose turn was the last one, as it was in the heap; it is looked at again with the next."""
        self._now_us = 0
        """Start of the request that was handled last."""
        self._serial = 0

    def __bool__(self) -> bool:
        return bool(self._waiting) or self._served is not None

    def add(self, asker: A) -> None:
        """It has requests that wait. Idempotent."""
        if asker not in self._in:
            self._in.add(asker)
            self._line_up(asker)

    def take(self) -> tuple[A, int] | None:
        """Whose next request, or slice of one, is to be handled now, and what the request costs. None: nobody's."""
        if self._served is not None:
            served, self._served = self._served, None
            asker = served[3]
            if asker.is_at_work:
                heapq.heappush(self._waiting, served)
            else:
                self._line_up(asker)
        while self._waiting:
            served = end_us, _, start_us, asker = heapq.heappop(self._waiting)
            if asker.next_us is None:
                self._in.discard(asker)
                continue
            self._now_us, asker.paid_us, self._served = start_us, end_us, served
            return asker, end_us - start_us
        return None

    def _line_up(self, asker: A) -> None:
        cost_us = asker.next_us
        if cost_us is None:
            self._in.discard(asker)
            return
        start_us = max(self._now_us, asker.paid_us)
        self._serial += 1
        heapq.heappush(self._waiting, (start_us + cost_us, self._serial, start_us, asker))
