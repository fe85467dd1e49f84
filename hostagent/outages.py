"""What of an agent does not work, why, and since when: one place for the log, the metric and /readyz. Pure.

Parts that fail are worked around, so an agent goes on serving when its casts, its network or its cold store are gone,
and nobody notices. Here that has a name. What fails for less than a minute is left to the parts themselves.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final


class Part(enum.Enum):
    """What can fail by itself. The values are labels of the metric, and begin lines."""

    CONTROLLER = "controller"
    NETWORK = "network"
    RAILS = "rails"
    CASTS = "casts"
    READS = "reads"
    DISK = "disk"
    COLD = "cold store"


NEEDED: Final = frozenset({Part.NETWORK})
"""Without these engines would miss what the node promises: it is not ready."""


@dataclass(frozen=True, slots=True)
class Outage:
    """A part that does not work."""

    part: Part
    reason: str
    since_s: float
    told: bool = False
    """The log has it."""


class Outages:
    """Told at every look what does not work. Times are of the caller's clock."""

    def __init__(self, lasting_s: float) -> None:
        """`lasting_s`: from when on an outage is worth a line."""
        self._lasting_s = lasting_s
        self._now: dict[Part, Outage] = {}

    def looked(self, reasons: Mapping[Part, str | None], now_s: float) -> list[str]:
        """Each part that there is, and why it does not work (None: it does); returns lines for the log."""
        lines = []
        for part, reason in reasons.items():
            known = self._now.pop(part, None)
            if reason is None:
                if known is not None and known.told:
                    lines.append(f"{part.value}: works again, after {now_s - known.since_s:.0f} s")
                continue
            since_s = known.since_s if known is not None else now_s
            told, lasts = known is not None and known.told, now_s - since_s >= self._lasting_s
            if lasts and not told:
                lines.append(f"{part.value}: does not work, for {now_s - since_s:.0f} s: {reason}")
            self._now[part] = Outage(part, reason, since_s, told or lasts)
        return lines

    def lasting(self) -> Iterator[Outage]:
        """Those that the log has."""
        return (one for one in self._now.values() if one.told)

    def seconds(self, now_s: float) -> dict[Part, float]:
        """How long each part has not worked; 0: it does, or there is none."""
        found = dict.fromkeys(Part, 0.0)
        return found | {part: now_s - one.since_s for part, one in self._now.items()}

    def missing(self, now_s: float) -> list[str]:
        """Why the node is not ready, one line each."""
        needed = (one for one in self.lasting() if one.part in NEEDED)
        return [f"{one.part.value}: {one.reason} (for {now_s - one.since_s:.0f} s)" for one in needed]


class Unanswered:
    """Whether nothing comes back: two running totals, of what was asked and of what came."""

    def __init__(self, least: int) -> None:
        """`least`: as many must have been asked in vain."""
        self._least = least
        self._asked = self._came = 0

    def count(self, asked: int, came: int) -> int:
        """How many were asked in vain since something came last; 0: too few to tell."""
        if came != self._came:
            self._asked, self._came = asked, came
        vain = asked - self._asked
        return vain if vain >= self._least else 0
