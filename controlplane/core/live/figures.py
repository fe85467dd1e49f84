"""Counts of what was fetched, and rates that fade. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields

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


@dataclass(slots=True)
class Delivered:
    """Bytes and chunks by how they came."""

    local_bytes: int = 0
    cast_bytes: int = 0
    switch_bytes: int = 0
    holder_bytes: int = 0
    disk_bytes: int = 0
    cold_bytes: int = 0
    missed_chunks: int = 0
    switch_chunks: int = 0

    def add(self, source: rpc.Source.ValueType, size_bytes: int) -> None:
        """One chunk came, or did not."""
        match source:
            case rpc.SOURCE_LOCAL:
                self.local_bytes += size_bytes
            case rpc.SOURCE_CAST:
                self.cast_bytes += size_bytes
            case rpc.SOURCE_SWITCH:
                self.switch_bytes += size_bytes
                self.switch_chunks += 1
            case rpc.SOURCE_HOLDER:
                self.holder_bytes += size_bytes
            case rpc.SOURCE_DISK:
                self.disk_bytes += size_bytes
            case rpc.SOURCE_COLD:
                self.cold_bytes += size_bytes
            case rpc.SOURCE_MISS:
                self.missed_chunks += 1

    def with_other(self, other: Delivered) -> Delivered:
        """Both together."""
        return Delivered(*(getattr(self, one.name) + getattr(other, one.name) for one in fields(self)))

    def shown(self) -> rpc.Delivered:
        """As a message."""
        return rpc.Delivered(**{one.name: getattr(self, one.name) for one in fields(self)})


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
    delivered: Delivered = field(default_factory=Delivered)
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
        self.delivered = self.delivered.with_other(other.delivered)
        self.wait_ms = max(self.wait_ms, other.wait_ms)
