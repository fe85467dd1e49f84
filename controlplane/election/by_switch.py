"""P4Runtime's arbitration elects: whoever is the switch's primary leads. Without a switch there is one controller."""

from __future__ import annotations

import asyncio
import time

from controlplane.core.events import Deposed, Elected, LeadershipDoubted
from controlplane.core.switch.target import Down, Standby, SwitchEvent, Up
from controlplane.election.contract import Sink, epoch_after


class SwitchElection:
    """`Election` by the session with the switch, which the daemon keeps: it passes on what it hears there.

    A controller leads until the switch says that another one is its primary: a network whose switch is away needs a
    controller, too.
    """

    def __init__(self) -> None:
        self._epoch = 0
        self._sink: Sink | None = None

    async def run(self, sink: Sink) -> None:
        """See `Election`."""
        self._sink = sink
        self._lead("")
        await asyncio.Event().wait()

    async def resign(self) -> None:
        """See `Election`: the end of the session is the end of the leadership."""

    def switch_event(self, event: SwitchEvent) -> None:
        """What the session with the switch says."""
        if self._sink is None:
            raise AssertionError("the session with the switch began before the election")
        match event:
            case Up():
                self._lead("it is the switch's primary")
            case Standby():
                self._sink(Deposed("another one is the switch's primary"))
            case Down():
                self._sink(LeadershipDoubted())

    def _lead(self, reason: str) -> None:
        self._epoch = epoch_after(self._epoch, time.time_ns() // 1_000_000)
        if self._sink is not None:
            self._sink(Elected(self._epoch, None, reason))


class NoElection:
    """`Election` of a controller that is the only one. It has no epoch, which agents would compare: its clock may go
    back between two starts."""

    async def run(self, sink: Sink) -> None:
        """See `Election`."""
        sink(Elected(0, None, ""))
        await asyncio.Event().wait()

    async def resign(self) -> None:
        """See `Election`."""
