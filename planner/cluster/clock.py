"""Virtual time. Timers run in order; those of one moment in the order they were set."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable
from functools import partial


class Timer:
    """Something that is due; `cancel` may come at any time."""

    __slots__ = ("action",)

    def __init__(self, action: Callable[[], object] | None) -> None:
        self.action = action

    def cancel(self) -> None:
        """It will not run."""
        self.action = None


class VirtualClock:
    """Seconds since the replay began."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.now_ns = 0
        self._timers: list[tuple[float, int, Timer]] = []
        self._counter = itertools.count()

    def call_at(self, at_s: float, action: Callable[..., object], *args: object) -> Timer:
        """Run `action(*args)` at this time, or now if it is past."""
        timer = Timer(partial(action, *args) if args else action)
        heapq.heappush(self._timers, (max(at_s, self.now_s), next(self._counter), timer))
        return timer

    def call_later(self, delay_s: float, action: Callable[..., object], *args: object) -> Timer:
        return self.call_at(self.now_s + delay_s, action, *args)

    @property
    def next_s(self) -> float:
        """When the next timer is due; infinity if there is none."""
        while self._timers and self._timers[0][2].action is None:
            heapq.heappop(self._timers)
        return self._timers[0][0] if self._timers else float("inf")

    def advance(self, now_s: float) -> None:
        """Go to this time and run everything due by then."""
        while self.next_s <= now_s:
            at_s, _, timer = heapq.heappop(self._timers)
            self._go(at_s)
            if timer.action is not None:
                timer.action()
        self._go(now_s)

    def _go(self, to_s: float) -> None:
        self.now_s = max(self.now_s, to_s)
        self.now_ns = int(self.now_s * 1e9)
