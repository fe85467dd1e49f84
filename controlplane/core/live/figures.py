"""Figures for who watches: what was fetched, with rates that fade; what an agent's heartbeats say beyond the node
itself; where KV came from over the last minutes, and what was decided and happened. Pure.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from controlplane.core import parse
from controlplane.core.ids import ChunkKey
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


_FADES_S: Final = 4.0
"""What is as long ago counts about a third."""
_DOES = {
    "disk": "reads from its disk",
    "cold": "reads from the cold store",
    "fetch": "fetches from other nodes",
    "switch": "fetches from the switch",
    "mixed": "fetches from several sources",
    "part": "fetches a part and recomputes the rest",
    "recompute": "recomputes",
}
"""The gate's choices, in a sentence."""


class NodeFigures:
    """Of one start of an agent."""

    def __init__(self, incarnation: int) -> None:
        self.incarnation = incarnation
        self.arriving: tuple[rpc.Arriving, ...] = ()
        """Chunks on their way to it."""
        self.drops: Mapping[str, int] = {}
        """By reason."""
        self._gate: Mapping[str, int] = {}
        self._gate_saved_ms = 0
        self._traffic = (0, 0)
        self._heard_ns: int | None = None
        self._rates: tuple[float, ...] = ()
        """Sent and received, in bytes per second; empty: one heartbeat makes no rate."""

    def beat(self, name: str, heartbeat: rpc.Heartbeat, now_ns: int) -> Iterator[tuple[str, str, int]]:
        """Take in a heartbeat of the node of this name; gives what its gate has decided since the last one:
        text, what makes texts alike, times. Raises RecordError."""
        self.arriving = parse.arriving(heartbeat)
        self.drops = parse.counts(heartbeat.drops, "drops")
        traffic = heartbeat.sent_bytes, heartbeat.received_bytes
        if self._heard_ns is not None and now_ns > self._heard_ns:
            seconds = (now_ns - self._heard_ns) / 1e9
            rates = [max(0, now - then) / seconds for now, then in zip(traffic, self._traffic, strict=True)]
            self._rates = _faded(self._rates, rates, seconds)
        self._traffic, self._heard_ns = traffic, now_ns
        decisions = parse.counts(heartbeat.gate_decisions, "gate_decisions")
        before, self._gate, self._gate_saved_ms = self._gate, decisions, heartbeat.gate_saved_ms
        return self._news(name, before, heartbeat.gate_verdict)

    def show(self, row: rpc.LiveNode) -> None:
        """Fill a row in."""
        row.sent_bytes_per_s, row.received_bytes_per_s = map(_shown, self._rates or (0.0, 0.0))
        row.gate_decisions.update(self._gate)
        row.gate_saved_ms = self._gate_saved_ms

    def _news(self, name: str, before: Mapping[str, int], verdict: rpc.GateVerdict) -> Iterator[tuple[str, str, int]]:
        """Decisions of the gate since the last heartbeat. What is in the node's own DRAM needs none."""
        for choice, count in self._gate.items():
            more = count - before.get(choice, 0)
            if more > 0 and choice != "local":
                like = f"{name} {_DOES.get(choice, choice)}"
                yield like + (_reason(verdict) if verdict.choice == choice else ""), like, more


def _faded(before: Sequence[float], rates: Sequence[float], seconds: float) -> tuple[float, ...]:
    """The newest rates count for most: of a node that sends a chunk now and then each heartbeat alone says all or
    nothing."""
    keeps = math.exp(-seconds / _FADES_S) if before else 0.0
    return tuple(keeps * old + (1 - keeps) * new for old, new in zip(before or rates, rates, strict=True))


def _shown(rate: float) -> float:
    """With three digits, and no remains of what was long ago."""
    return float(f"{rate:.3g}") if rate >= 1 else 0.0


def _reason(verdict: rpc.GateVerdict) -> str:
    """Why the gate chose that, where its last verdict says so."""
    if not verdict.HasField("recompute_us"):
        return f": {_time(verdict.expected_us)} expected, and the engine did not say what computing takes"
    if verdict.choice == "recompute":
        return f": computing takes {_time(verdict.recompute_us)}, bringing would take longer"
    return f": {_time(verdict.expected_us)} expected, computing would take {_time(verdict.recompute_us)}"


def _time(micros: int) -> str:
    """For a person."""
    for unit, size in (("s", 1_000_000), ("ms", 1000)):
        if micros >= size:
            return f"{micros / size:.3g} {unit}" if micros < 1000 * size else f"{micros // size} {unit}"
    return f"{micros} µs"


BUCKET_NS: Final = 2_000_000_000
BUCKETS: Final = 90
EVENTS: Final = 64
_LOOKED_BACK: Final = 48
"""An event that is like one of so many before it counts as that one again."""


class Sources:
    """Bytes by source, in buckets of two seconds."""

    def __init__(self) -> None:
        self._buckets: dict[int, Counter[str]] = {}

    def add(self, source: rpc.Source.ValueType, size_bytes: int, at_ns: int, born_ns: int) -> None:
        """A chunk came. What came before the controller's start does not count."""
        if at_ns >= born_ns:
            delivered = self._buckets.setdefault((at_ns - born_ns) // BUCKET_NS, Counter())
            count_delivered(delivered, source, size_bytes)
            if len(self._buckets) > 2 * BUCKETS:
                self._forget_until(max(self._buckets) - BUCKETS)

    def rows(self, now_ns: int, born_ns: int) -> Iterator[rpc.SourcesView]:
        """The buckets of the last minutes in which something came."""
        self._forget_until((now_ns - born_ns) // BUCKET_NS - BUCKETS)
        for bucket, delivered in self._buckets.items():
            yield rpc.SourcesView(bucket=bucket, delivered=rpc.Delivered(**delivered))

    def _forget_until(self, bucket: int) -> None:
        self._buckets = {one: delivered for one, delivered in self._buckets.items() if one > bucket}


@dataclass(slots=True)
class _Event:
    number: int
    at_ns: int
    kind: str
    text: str
    like: str
    key: ChunkKey | None
    times: int


class Events:
    """Owns the latest events, the newest last; what is alike is counted as one."""

    def __init__(self) -> None:
        self._events: deque[_Event] = deque(maxlen=EVENTS)
        self._number = 0

    def add(
        self, kind: str, text: str, at_ns: int, key: ChunkKey | None = None, times: int = 1, like: str = ""
    ) -> None:
        """Something was decided or happened. One like it a moment ago is replaced by it and counted: one with the same
        `like`, or with the same text where there is none."""
        like = like or text
        self._number += 1
        for index in range(1, min(_LOOKED_BACK, len(self._events)) + 1):
            event = self._events[-index]
            if (event.kind, event.like) == (kind, like):
                del self._events[-index]
                times += event.times
                break
        self._events.append(_Event(self._number, at_ns, kind, text, like, key, times))

    def rows(self, born_ns: int) -> Iterator[rpc.EventView]:
        """All that are kept, the oldest first."""
        for event in self._events:
            yield rpc.EventView(
                number=event.number,
                at_ms=max(0, event.at_ns - born_ns) // 1_000_000,
                kind=event.kind,
                text=event.text,
                key=event.key or b"",
                times=event.times,
            )
