"""Time, as the parts of the core see it: the time of the event being handled, and alarms for later."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

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
