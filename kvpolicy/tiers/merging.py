"""What somebody computes at this moment, and whether to wait for it. Pure.

An engine that computes a prefix *claims* its chunks: it says when each will be there. For another engine a claimed
chunk is one that can be had, only not before that time. Waiting pays by itself when it is sooner than the engine's own
queue and computation (`gate_plan`). When others wait for the same engine, waiting spares them the computation, too:

    spared_s = min(wait_max_s, behind * (computing that waiting makes unnecessary - transfer that it makes necessary))

and the gate may take a plan that is later by that much. `behind` is how many wait at this moment, as the engine says,
or how many wait on average behind a request where engines compute for a share `load` of the time, load / (1 - load) (a
queue with random arrivals and one server, M/M/1). On a quiet node both are 0, and nothing is waited for that is not
sooner.

A claim is a promise of somebody who may die, fall behind or lie. It counts until its time and a slack have passed. Who
breaks promises is not believed for a while, twice as long each time, until one is kept.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Final

WAIT_MAX_S: Final = 0.25
"""Default of how much later than by computing itself an engine may get its chunks, to spare those behind it."""
NOTICE_S: Final = 0.008
"""From a chunk's put at one node to the beginning of its cast at another: two hops over the controller, which collects
changes for some milliseconds."""
SLACK_S_MIN: Final = 0.05
"""A claim that is late by less is not late: the jitter of a busy host."""
SLACK_SHARE: Final = 0.25
"""The same of the time that a claim was made for: who computes for long may err by more."""
LOAD_MEMORY_S: Final = 5.0
LOAD_MAX: Final = 0.9
"""Beyond it the mean number of those who wait is no use: it grows without end."""
DISTRUST_S_MIN: Final = 1.0
DISTRUST_S_MAX: Final = 60.0


def due_ns(now_ns: int, eta_s: float) -> int:
    """When a claim made now for `eta_s` from now has been broken if the chunk is not there."""
    return now_ns + int((eta_s + max(SLACK_S_MIN, SLACK_SHARE * eta_s)) * 1e9)


def spared_s(behind: float, unnecessary_s: float, wait_max_s: float) -> float:
    """How much later a plan may be that spares an engine `unnecessary_s` with `behind` others waiting for it."""
    return min(wait_max_s, behind * max(0.0, unnecessary_s))


class Load:
    """The share of time for which something is going on, weighing a moment LOAD_MEMORY_S ago by 1/e."""

    def __init__(self) -> None:
        self._share = 0.0
        self._busy = False
        self._since_ns: int | None = None

    def observe(self, busy: bool, now_ns: int) -> None:
        """Whether it goes on from now on."""
        self._share = self.share(now_ns)
        self._busy, self._since_ns = busy, now_ns

    def share(self, now_ns: int) -> float:
        """0 to 1; nothing was going on before the first observation."""
        if self._since_ns is None:
            return 0.0
        kept = math.exp((self._since_ns - now_ns) / 1e9 / LOAD_MEMORY_S)
        return self._share * kept + self._busy * (1 - kept)

    def behind(self, now_ns: int) -> float:
        """How many wait behind a request on average."""
        share = min(LOAD_MAX, self.share(now_ns))
        return share / (1 - share)


@dataclass(slots=True)
class _Record:
    broken: int = 0
    """In a row."""
    until_ns: int = 0
    """Not believed before."""


@dataclass(slots=True)
class Trust:
    """Who is believed. Names are whatever tells claimers apart."""

    _records: dict[str, _Record] = field(default_factory=dict)

    def believes(self, name: str, now_ns: int) -> bool:
        """Whether claims of this one count now."""
        record = self._records.get(name)
        return record is None or now_ns >= record.until_ns

    def kept(self, name: str) -> None:
        """A claimed chunk is there."""
        self._records.pop(name, None)

    def broken(self, name: str, now_ns: int) -> None:
        """A claimed chunk did not come in time. Several of one moment count once."""
        record = self._records.setdefault(name, _Record())
        if now_ns < record.until_ns:
            return
        seconds = min(DISTRUST_S_MAX, DISTRUST_S_MIN * 2**record.broken)
        record.broken += 1
        record.until_ns = now_ns + int(seconds * 1e9)

    def forget(self, name: str) -> None:
        """It is gone."""
        self._records.pop(name, None)
