"""Time, as the parts of the core see it: the time of the event being handled, and alarms for later.

Work on thousands of chunks, done in windows: one at each ring of an alarm, others have turns between. Pure.

A piece of work is a generator that yields where it may be interrupted. What has become of its subject in the meantime
it looks at itself, when it goes on. All pieces take turns.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from typing import Final

from hostagent import limits

NEVER: Final = 1 << 63


class Clock:
    """Stands still while an event is handled."""

    __slots__ = ("now_ns", "read")

    def __init__(self) -> None:
        self.now_ns = 0
        """Nanoseconds of the shell's monotonic clock."""
        self.read: Callable[[], int] = partial(getattr, self, "now_ns")
        """For parts that know no more of a clock; no function of Python, because pools ask at every turn."""


class Alarms:
    """All alarms of a core. `due_ns`: nothing is due before this time, which may be too early but never too late."""

    __slots__ = ("_alarms", "clock", "due_ns")

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.due_ns = NEVER
        self._alarms: list[Alarm] = []

    def add(self, action: Callable[[], None]) -> Alarm:
        """A new alarm; `action` is called by `ring` when it is due."""
        alarm = Alarm(self, action)
        self._alarms.append(alarm)
        return alarm

    def ring(self) -> None:
        """Run the alarms that are due; any that they make due at once run with the next call."""
        for alarm in self._alarms:
            if alarm.due_ns is not None and alarm.due_ns <= self.clock.now_ns:
                alarm.due_ns = None
                alarm.action()
        due_ns = NEVER
        for alarm in self._alarms:
            if alarm.due_ns is not None and alarm.due_ns < due_ns:
                due_ns = alarm.due_ns
        self.due_ns = due_ns


class Alarm:
    """Something that is due at one time, or not at all."""

    __slots__ = ("_all", "action", "due_ns")

    def __init__(self, alarms: Alarms, action: Callable[[], None]) -> None:
        self._all = alarms
        self.action = action
        self.due_ns: int | None = None

    def set(self, due_ns: int | None) -> None:
        """Ring at this time, or not at all (None); replaces the time set before. To cancel it, None in `due_ns` is
        enough."""
        self.due_ns = due_ns
        if due_ns is not None and due_ns < self._all.due_ns:
            self._all.due_ns = due_ns


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
