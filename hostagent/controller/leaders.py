"""Which of its controllers an agent follows: none that was deposed, none that stands still. The rules are pure.

A leader's epoch is above those of all leaders before it. An agent that has heard of one takes nothing of an earlier
one: a controller that slept may still believe that it leads.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence

from hostagent import limits


class DeposedLeaderError(Exception):
    """The controller leads no longer: this agent knows of a later leader."""


class LatestLeader:
    """The latest leader that this agent has heard of. It is forgotten when nothing was heard of it for long: a wrong
    clock once must not keep agents from all controllers for ever."""

    def __init__(self) -> None:
        self._epoch = 0
        self._heard_s = 0.0

    def heard(self, epoch: int, now_s: float) -> None:
        """A controller says that it leads under this epoch; 0: it is from before epochs. Raises DeposedLeaderError."""
        if epoch and epoch < self._epoch and now_s - self._heard_s < limits.LEADER_REMEMBERED_S:
            raise DeposedLeaderError(f"it leads no longer: its epoch is {epoch}, that of a later leader {self._epoch}")
        if epoch:
            self._epoch, self._heard_s = epoch, now_s


class Turns:
    """Whom to ask next, and after which pause."""

    def __init__(self, addresses: Sequence[str]) -> None:
        self._addresses = self._targets = addresses
        self._turn = 0
        self._failures = 0
        """Streams in a row on which nobody said anything."""
        self.found = ""
        """Who is to be asked next, because it leads; empty: whose turn it is."""

    def next(self) -> str:
        """Whom to ask now."""
        address, self.found = self.found or self._targets[self._turn], ""
        return address

    def ended(self, *, welcomed: bool) -> float:
        """A stream has ended. Returns for how many seconds to wait: longer from round to round; within a round the next
        one is asked without delay."""
        self._failures = 0 if welcomed else self._failures + 1
        rounds, within = divmod(self._failures, len(self._targets))
        self._turn = (self._turn + 1) % len(self._targets)
        pauses_s = limits.CONTROLLER_BACKOFF_S
        return pauses_s[0 if within else min(rounds, len(pauses_s) - 1)]

    @property
    def is_first_round(self) -> bool:
        """Not every controller has failed since one answered."""
        return self._failures <= len(self._addresses)

    @property
    def round_failed(self) -> bool:
        """All have been asked in vain: names may stand for others now."""
        return bool(self._failures and not self._turn)

    def ask(self, targets: Sequence[str]) -> None:
        """These are the controllers, from the first one on."""
        self._targets, self._turn = targets, 0


class Verdict(enum.Enum):
    """What to make of a stream at one look."""

    FINE = "fine"
    SILENT = "silent"
    UNSURE = "unsure"
    """The controller cannot tell whether it leads."""


class StreamSigns:
    """Signs of life on one stream. `look` is called so often that its controller may be silent for
    `limits.CONTROLLER_LOOKS` of them: an agent that stood still itself has not missed more than one."""

    def __init__(self) -> None:
        self._quiet_looks = 0
        self._unsure = False

    def message_received(self) -> None:
        """It said something."""
        self._quiet_looks = 0

    def leads(self, *, unsure: bool) -> None:
        """It said that it lives, and whether it knows that it leads."""
        self._unsure = unsure

    def look(self) -> Verdict:
        """How it is now."""
        self._quiet_looks += 1
        if self._quiet_looks > limits.CONTROLLER_LOOKS:
            return Verdict.SILENT
        return Verdict.UNSURE if self._unsure else Verdict.FINE
