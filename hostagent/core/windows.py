"""Work on thousands of chunks, done in windows: one at each ring of an alarm, others have turns between. Pure.

A piece of work is a generator that yields where it may be interrupted. What has become of its subject in the meantime
it looks at itself, when it goes on. All pieces take turns.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Final

from hostagent import limits
from hostagent.core.clock import Alarms

WINDOW: Final = limits.FETCH_WINDOW_CHUNKS
Work = Iterator[None]


class Windows:
    """Of one node."""

    def __init__(self, alarms: Alarms) -> None:
        self._clock = alarms.clock
        self._alarm = alarms.add(self._go_on)
        self._waiting: deque[Work] = deque()

    @property
    def is_busy(self) -> bool:
        """Whether any work is left."""
        return bool(self._waiting)

    def begin(self, work: Work) -> None:
        """Its first window comes with the next ring."""
        self._waiting.append(work)
        self._alarm.set(self._clock.now_ns)

    def do(self, work: Work, count: int) -> None:
        """Work on `count` chunks: at once where that is one window."""
        if count > WINDOW:
            self.begin(work)
            return
        for _ in work:
            pass

    def finish(self) -> None:
        """Do all that is left: the process ends."""
        while self._waiting:
            for _ in self._waiting.popleft():
                pass
        self._alarm.due_ns = None

    def _go_on(self) -> None:
        work = self._waiting.popleft()
        try:
            for _ in work:
                self._waiting.append(work)
                break
        finally:  # work that fails stops no other
            if self._waiting:
                self._alarm.set(self._clock.now_ns)
