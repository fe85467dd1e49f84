"""P4 controls IngressDrops and EgressDrops: packets dropped, by reason."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import finsy

COUNTERS = ("ingress_drops", "egress_drops")

REASONS = (
    "none",
    "not_a_member",
    "truncated",
    "bad_length",
    "bad_version",
    "unknown_op",
    "forged_op",
    "no_interest",
    "last_left",
    "beyond_end",
    "fill_refused",
    "fill_mismatch",
    "hairpin",
    "not_interested",
    "flood_echo",
    "here",
    "forged_source",
    "forged_arp",
    "not_plain",
    "not_joined",
    "metered",
    "get_too_large",
    "too_many_entries",
)
"""Index is the reason's number in p4/include/drops.p4 (a test compares); P4Info does not carry enum members."""


def queries() -> Sequence[finsy.P4CounterEntry]:
    """What to read for all drop counters."""
    return [finsy.P4CounterEntry(name) for name in COUNTERS]


def decode(found: Iterable[finsy.P4CounterEntry]) -> dict[str, int]:
    """Packets by reason, both counters together; reasons that never happened are left out."""
    drops: dict[str, int] = {}
    for entry in found:
        if entry.index is None or entry.packet_count == 0:
            continue
        name = REASONS[entry.index] if entry.index < len(REASONS) else f"reason_{entry.index}"
        drops[name] = drops.get(name, 0) + entry.packet_count
    return drops
