"""P4 control Heat: reports of chunks that several members want, as digests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import finsy

from controlplane.core.ids import KEY_BYTES, ChunkKey
from controlplane.core.switch.entries import Entry, HeatSubscriptionEntry
from controlplane.core.switch.target import HeatReport

DIGEST = "heat_report_t"
_LIST_MAX = 32
_DELAY_MAX_NS = 5_000_000
"""A report is worth most while its readers still wait."""
_ACK_TIMEOUT_NS = 1_000_000_000


def queries() -> Sequence[finsy.P4DigestEntry]:
    """What to read for the subscription."""
    return [finsy.P4DigestEntry(DIGEST)]


def encode(_: HeatSubscriptionEntry) -> finsy.P4DigestEntry:
    """The subscription as a P4Runtime entity."""
    return subscription(DIGEST)


def decode(found: finsy.P4DigestEntry) -> Entry | None:
    """Turn what was read into an entry."""
    return HeatSubscriptionEntry() if is_subscribed(found) else None


def subscription(digest: str) -> finsy.P4DigestEntry:
    """Reports of that kind come to us, soon."""
    return finsy.P4DigestEntry(
        digest, max_list_size=_LIST_MAX, max_timeout_ns=_DELAY_MAX_NS, ack_timeout_ns=_ACK_TIMEOUT_NS
    )


def is_subscribed(found: finsy.P4DigestEntry) -> bool:
    """Whether reports of that kind come to anybody."""
    return bool(found.max_list_size or found.max_timeout_ns)


def decode_report(report: Mapping[str, Any]) -> HeatReport:
    """One report of the digest."""
    return HeatReport(
        key=ChunkKey(int(report["key"]).to_bytes(KEY_BYTES, "big")),
        members=int(report["members"]),
        gets=int(report["gets"]),
    )
