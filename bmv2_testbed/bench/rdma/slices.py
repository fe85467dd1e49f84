"""Figures of programs that took turns in short slices, and how they compare.

The other load of a machine changes from second to second, by a factor of two where cores are shared. So programs are
compared only within one round of slices, and the rounds' ratios are shown with their quartiles.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Slice:
    """What one program did in its turn."""

    size_bytes: int
    time_s: float
    cpu_s: float = 0.0
    """Of its own process; work that the kernel does for it elsewhere is not included."""
    lost: int = 0
    """Messages that did not arrive."""

    @property
    def rate(self) -> float:
        """Bytes per second."""
        return self.size_bytes / self.time_s

    @property
    def cpu_s_per_byte(self) -> float:
        return self.cpu_s / self.size_bytes


Round = Mapping[str, Slice]
"""A turn of every program, by its name."""


@dataclass(frozen=True, slots=True)
class Spread:
    """A median between its quartiles."""

    lower: float
    median: float
    upper: float


def spread(values: Sequence[float]) -> Spread:
    """Of at least one value."""
    if len(values) == 1:
        return Spread(values[0], values[0], values[0])
    return Spread(*statistics.quantiles(values, n=4, method="inclusive"))


def rates(rounds: Sequence[Round], program: str) -> Spread:
    """Bytes per second."""
    return spread([each[program].rate for each in rounds])


def ratios(rounds: Sequence[Round], program: str, beside: str) -> Spread:
    """The program's rate over the other's in the same round."""
    return spread([each[program].rate / each[beside].rate for each in rounds])
