"""What the heartbeats of one agent say beyond the node itself: rates, its gate's decisions, what it drops. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from controlplane.core import parse
from kvproto.rpc import control_pb2 as rpc

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
