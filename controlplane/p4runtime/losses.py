"""P4 control Heat on Tofino: reports of segments that were lost on their round, as digests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import finsy

from controlplane.core.ids import KEY_BYTES, ChunkKey
from controlplane.core.switch.entries import Entry, LossSubscriptionEntry
from controlplane.core.switch.target import LostReport
from controlplane.p4runtime import heat

DIGEST = "lost_report_t"


def queries() -> Sequence[finsy.P4DigestEntry]:
    """What to read for the subscription."""
    return [finsy.P4DigestEntry(DIGEST)]


def encode(_: LossSubscriptionEntry) -> finsy.P4DigestEntry:
    """The subscription as a P4Runtime entity."""
    return heat.subscription(DIGEST)


def decode(found: finsy.P4DigestEntry) -> Entry | None:
    """Turn what was read into an entry."""
    return LossSubscriptionEntry() if heat.is_subscribed(found) else None


def decode_report(report: Mapping[str, Any]) -> LostReport:
    """One report of the digest."""
    return LostReport(ChunkKey(int(report["key"]).to_bytes(KEY_BYTES, "big")), int(report["segment"]))
