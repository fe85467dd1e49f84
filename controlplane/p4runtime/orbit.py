"""P4 control Traffic on Tofino: how warm chunks are, and how much circulates."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import finsy

from controlplane.core.ids import Slot
from controlplane.core.switch.target import OrbitTraffic

COUNTER = "orbit"
HEAT_COUNTER = "chunk_heat"

EVENTS = ("none", "entered", "repeated", "passed", "cast", "left", "wanted", "lost")
"""Index is the event's number in p4/tna/types.p4 (a test compares)."""


def queries() -> Sequence[finsy.P4CounterEntry]:
    """What to read for the counters of the orbit."""
    return [finsy.P4CounterEntry(COUNTER)]


def decode(found: Iterable[finsy.P4CounterEntry]) -> OrbitTraffic:
    """Counts by event."""
    packets, octets = dict.fromkeys(EVENTS[1:], 0), dict.fromkeys(EVENTS[1:], 0)
    for entry in found:
        if entry.index is not None and 0 < entry.index < len(EVENTS):
            packets[EVENTS[entry.index]] = entry.packet_count
            octets[EVENTS[entry.index]] = entry.byte_count
    return OrbitTraffic(packets, packets["entered"] - packets["left"], octets["entered"] - octets["left"])


def forget_heat(slot: Slot) -> finsy.P4CounterEntry:
    """A new chunk begins there. Write it as a modification."""
    return finsy.P4CounterEntry(HEAT_COUNTER, index=slot, data=finsy.P4CounterData(packet_count=0, byte_count=0))
