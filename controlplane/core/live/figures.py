"""Counts of what was fetched, and rates that fade. Pure."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field
from typing import Final

from kvchunk.sources import ChunkSource
from kvproto.rpc import control_pb2 as rpc

_HALF_LIFE_NS = 5_000_000_000
_WAIT_SHARE = 0.1
"""Of the newest wait in the average."""


@dataclass(slots=True)
class Rate:
    """Events per second, the last ones counting most: an event counts half after five seconds."""

    _sum: float = 0.0
    _at_ns: int = 0

    def add(self, amount: float, at_ns: int) -> None:
        """Something happened."""
        self._sum, self._at_ns = self._faded(at_ns) + amount, max(at_ns, self._at_ns)

    def per_s(self, now_ns: int) -> float:
        """At this moment, with two digits: so that a row does not change with every look."""
        rate = self._faded(now_ns) * math.log(2) / (_HALF_LIFE_NS / 1e9)
        return 0.0 if rate < 0.005 else float(f"{rate:.2g}")

    def score(self) -> float:
        """Orders rates at any moment: log2 of the rate, carried back to time 0."""
        return -math.inf if self._sum <= 0 else math.log2(self._sum) + self._at_ns / _HALF_LIFE_NS

    def with_other(self, other: Rate) -> Rate:
        """Both together."""
        at_ns = max(self._at_ns, other._at_ns)
        return Rate(self._faded(at_ns) + other._faded(at_ns), at_ns)

    def _faded(self, now_ns: int) -> float:
        return self._sum * math.exp2(-max(0, now_ns - self._at_ns) / _HALF_LIFE_NS)


_BYTES: Final = {source.value: f"{source.label}_bytes" for source in ChunkSource}
"""Fields of rpc.Delivered by source."""


def count_delivered(delivered: Counter[str], source: rpc.Source.ValueType, size_bytes: int) -> None:
    """One chunk came, or did not. `delivered`: fields of rpc.Delivered."""
    if source in _BYTES:
        delivered[_BYTES[source]] += size_bytes
    delivered["switch_chunks"] += source == rpc.SOURCE_SWITCH
    delivered["missed_chunks"] += source == rpc.SOURCE_MISS


@dataclass(slots=True)
class Activity:
    """What was fetched of a run."""

    rate: Rate = field(default_factory=Rate)
    """Of reads."""
    reads: int = 0
    casts: int = 0
    """Of its chunks."""
    riders: int = 0
    """Arrivals of those casts but the first of each."""
    delivered: Counter[str] = field(default_factory=Counter)
    """By field of rpc.Delivered."""
    wait_ms: float = 0.0

    def waited(self, wait_ms: float) -> None:
        """A fetch took so long."""
        self.wait_ms += (wait_ms - self.wait_ms) * (_WAIT_SHARE if self.wait_ms else 1.0)

    def absorb(self, other: Activity) -> None:
        """Both together."""
        self.rate = self.rate.with_other(other.rate)
        self.reads += other.reads
        self.casts += other.casts
        self.riders += other.riders
        self.delivered += other.delivered
        self.wait_ms = max(self.wait_ms, other.wait_ms)
