"""What a switch reports by itself, as digests."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import finsy

from controlplane.core.ids import KEY_BYTES, ChunkKey, SwitchPort
from controlplane.core.locations import Location
from controlplane.core.switch.entries import Report, SubscriptionEntry
from controlplane.core.switch.target import HeatReport, LostReport, Sighting, SwitchEvent

DIGESTS: Final = {Report.HEAT: "heat_report_t", Report.SIGHTING: "sighting_t", Report.LOSS: "lost_report_t"}
"""Names in the P4 programs."""
_REPORTS: Final = {name: report for report, name in DIGESTS.items()}
_LIST_MAX: Final = 32
_DELAY_MAX_NS: Final = 5_000_000
"""A report is worth most while its readers still wait."""
_ACK_TIMEOUT_NS: Final = 1_000_000_000


def encode(entry: SubscriptionEntry) -> finsy.P4DigestEntry:
    """The subscription as a P4Runtime entity: reports of that kind come to us, soon."""
    return finsy.P4DigestEntry(
        DIGESTS[entry.report], max_list_size=_LIST_MAX, max_timeout_ns=_DELAY_MAX_NS, ack_timeout_ns=_ACK_TIMEOUT_NS
    )


def decode(found: finsy.P4DigestEntry) -> SubscriptionEntry | None:
    """Turn what was read into an entry; None: reports of that kind come to nobody."""
    is_subscribed = bool(found.max_list_size or found.max_timeout_ns)
    return SubscriptionEntry(_REPORTS[found.digest_id]) if is_subscribed else None


def _heat(report: Mapping[str, Any]) -> HeatReport:
    return HeatReport(ChunkKey(_octets(report["key"], KEY_BYTES)), int(report["members"]), int(report["gets"]))


def _sighting(report: Mapping[str, Any]) -> Sighting:
    seen = Location(SwitchPort(int(report["port"])), _octets(report["mac"], 6), _octets(report["ip"], 4))
    return Sighting(_octets(report["key"], KEY_BYTES), seen)


def _loss(report: Mapping[str, Any]) -> LostReport:
    return LostReport(ChunkKey(_octets(report["key"], KEY_BYTES)), int(report["segment"]))


def _octets(number: Any, size_bytes: int) -> bytes:
    return int(number).to_bytes(size_bytes, "big")


READERS: Final[Mapping[Report, Callable[[Mapping[str, Any]], SwitchEvent]]] = {
    Report.HEAT: _heat,
    Report.SIGHTING: _sighting,
    Report.LOSS: _loss,
}
"""What one report of a digest means."""
