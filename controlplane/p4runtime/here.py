"""P4 control Here: reports of where nodes are, as digests."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import finsy

from controlplane.core.ids import KEY_BYTES, SwitchPort
from controlplane.core.locations import Location
from controlplane.core.switch.entries import Entry, SightingSubscriptionEntry
from controlplane.core.switch.target import Sighting
from controlplane.p4runtime import heat

DIGEST = "sighting_t"


def encode(_: SightingSubscriptionEntry) -> finsy.P4DigestEntry:
    """The subscription as a P4Runtime entity."""
    return heat.subscription(DIGEST)


def decode(found: finsy.P4DigestEntry) -> Entry | None:
    """Turn what was read into an entry."""
    return SightingSubscriptionEntry() if heat.is_subscribed(found) else None


def decode_report(report: Mapping[str, Any]) -> Sighting:
    """One report of the digest."""
    return Sighting(
        key=int(report["key"]).to_bytes(KEY_BYTES, "big"),
        seen=Location(
            SwitchPort(int(report["port"])), int(report["mac"]).to_bytes(6, "big"), int(report["ip"]).to_bytes(4, "big")
        ),
    )
