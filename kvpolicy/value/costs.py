"""What it costs to get a chunk from each kind of source, learned from what it took. Pure.

    cost_s(source, bytes) = overhead_s + bytes / rate

fitted to the measurements of a source by least squares, each weighing `FORGETTING` times the one after it, so that
about ten measurements forget an old network. Where all of them are of nearly one size they cannot separate overhead
from rate. Then the overhead assumed so far (at most half of what was seen) stands.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

from kvpolicy.value.history import Touch

FORGETTING: Final = 0.8
SPREAD_MIN: Final = 0.2
"""The least standard deviation of sizes, relative to their mean, that separates overhead from rate."""


class Tier(enum.Enum):
    """Where a chunk lies, seen from the node that wants it (how it came there is `kvchunk.sources.ChunkSource`)."""

    LOCAL_DRAM = "local"
    SWITCH = "switch"
    REMOTE_DRAM = "remote"
    LOCAL_DISK = "disk"
    REMOTE_DISK = "remote_disk"
    COLD = "cold"
    """In the cold store, which no node holds."""
    RECOMPUTE = "recompute"

    __hash__ = object.__hash__
    """Members are single objects. `Enum` hashes their names, in Python, and tables by tier are looked up 40 times for
    each chunk of a fetch."""


@dataclass(frozen=True, slots=True)
class SourceCost:
    """What a source takes: a straight line over the bytes."""

    overhead_s: float
    rate_bytes_per_s: float

    def of(self, size_bytes: float) -> float:
        """Seconds for `size_bytes` bytes."""
        return self.overhead_s + size_bytes / self.rate_bytes_per_s


PRIORS: Final[Mapping[Tier, SourceCost]] = MappingProxyType(
    {
        Tier.LOCAL_DRAM: SourceCost(0.0, 20e9),
        Tier.SWITCH: SourceCost(0.002, 1e9),
        Tier.REMOTE_DRAM: SourceCost(0.002, 1e9),
        Tier.LOCAL_DISK: SourceCost(0.001, 1e9),
        Tier.REMOTE_DISK: SourceCost(0.004, 500e6),
        Tier.COLD: SourceCost(0.005, 200e6),
        Tier.RECOMPUTE: SourceCost(0.01, 500e6),
    }
)
"""Costs assumed before anything was measured."""


EVICTION_COST_MIN_SHARE: Final = 1 / 16
"""Share of the cost of recomputing that a copy is worth even if others could replace it free: theirs may go too."""
MEASUREMENTS_MAX: Final = 32
"""Measurements that a node reports at a time; the last ones say most."""


@dataclass(frozen=True, slots=True)
class Measurement:
    """`size_bytes` came from a source in `seconds`, nothing else being under way."""

    source: Tier
    size_bytes: int
    seconds: float


@dataclass(slots=True)
class _Sums:
    """Of weights, bytes, seconds, and their products."""

    weight: float = 0.0
    size: float = 0.0
    seconds: float = 0.0
    size_size: float = 0.0
    size_seconds: float = 0.0

    def add(self, size_bytes: float, seconds: float) -> None:
        for name, more in (
            ("weight", 1.0),
            ("size", size_bytes),
            ("seconds", seconds),
            ("size_size", size_bytes * size_bytes),
            ("size_seconds", size_bytes * seconds),
        ):
            setattr(self, name, getattr(self, name) * FORGETTING + more)

    def fit(self, believed: SourceCost) -> SourceCost:
        mean, mean_s = self.size / self.weight, self.seconds / self.weight
        variance = self.size_size / self.weight - mean * mean
        if variance > (SPREAD_MIN * mean) ** 2:
            slope = (self.size_seconds / self.weight - mean * mean_s) / variance
            overhead_s = mean_s - slope * mean
            if slope > 0 and overhead_s >= 0:
                return SourceCost(overhead_s, 1 / slope)
            if slope > 0:
                return SourceCost(0.0, self.size_size / self.size_seconds)
        overhead_s = min(believed.overhead_s, mean_s / 2)
        return SourceCost(overhead_s, mean / (mean_s - overhead_s))


@dataclass(slots=True)
class SourceCosts:
    """Measured costs of one node (or of all, in the controller)."""

    priors: Mapping[Tier, SourceCost] = field(default_factory=lambda: PRIORS)
    _sums: dict[Tier, _Sums] = field(default_factory=dict)
    _fitted: dict[Tier, SourceCost] = field(default_factory=dict)

    def measured(self, source: Tier, size_bytes: int, seconds: float) -> None:
        """`size_bytes` came from `source` in `seconds`, nothing else being under way. What took no time is ignored."""
        if size_bytes <= 0 or seconds <= 0:
            return
        sums = self._sums.setdefault(source, _Sums())
        sums.add(size_bytes, seconds)
        self._fitted[source] = sums.fit(self.cost(source))

    def over(self, priors: Mapping[Tier, SourceCost]) -> SourceCosts:
        """The same measurements, now and later; other costs are assumed of sources that have none."""
        return SourceCosts(priors, self._sums, self._fitted)

    def cost(self, source: Tier) -> SourceCost:
        """The line of a source."""
        return self._fitted.get(source) or self.priors[source]

    def cost_s(self, source: Tier, size_bytes: int) -> float:
        """Seconds until `size_bytes` are here."""
        line = self._fitted.get(source) or self.priors[source]
        return line.overhead_s + size_bytes / line.rate_bytes_per_s

    def eviction_costs_s(self, chunks: Sequence[Touch], here: Tier, others: Sequence[Sequence[Tier]]) -> list[float]:
        """`eviction_cost_s` of each chunk; `others`: of each, who has a copy besides. Chunks of one prefix mostly have
        one size and lie in the same places: each case is worked out once."""
        known: dict[tuple[int, tuple[Tier, ...]], float] = {}
        costs_s: list[float] = []
        for chunk, tiers in zip(chunks, others, strict=True):
            case = chunk.size_bytes, tuple(tiers)
            cost_s = known.get(case)
            if cost_s is None:
                cost_s = known[case] = self.eviction_cost_s(chunk.size_bytes, here, case[1])
            costs_s.append(cost_s)
        return costs_s

    def eviction_cost_s(self, size_bytes: int, here: Tier, others: Iterable[Tier]) -> float:
        """What each reader waits longer when the copy at `here` is gone and `others` have one: the next cheaper source,
        recomputing always among them, less this one. Above 0."""
        costs_s: list[float] = []
        for source in (here, Tier.RECOMPUTE, *others):
            line = self._fitted.get(source) or self.priors[source]
            costs_s.append(line.overhead_s + size_bytes / line.rate_bytes_per_s)
        here_s, recompute_s = costs_s[:2]
        return max(min(costs_s[1:]) - here_s, EVICTION_COST_MIN_SHARE * recompute_s)
