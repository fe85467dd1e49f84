"""What a controller wants of a switch that depends on the program the switch runs. Pure.

The core makes the entries that are the same everywhere; the others are here. `codecs` turns entries into P4Runtime.
"""

from __future__ import annotations

from dataclasses import dataclass

from controlplane.core.ids import GroupId, SwitchPort
from controlplane.core.limits import BITMAP_GROUPS_MAX
from controlplane.core.switch import bitmap_groups
from controlplane.core.switch.bitmap_groups import BitmapGroups
from controlplane.core.switch.entries import (
    FLOOD_GROUP,
    NEXT_SEGMENT_SESSION,
    CloneSessionEntry,
    Entry,
    Report,
    SubscriptionEntry,
)
from controlplane.core.switch.groups import Groups, ReplicationGroups
from controlplane.core.switch.target import SwitchFacts

MIRROR_BYTES = 86
"""Bytes kept of a FILL that is mirrored: 4 bytes of the mirror's header, 82 up to the end of the control header."""

CONTROL_QUEUE = 1
"""Of the recirculation port: control datagrams that go round do not wait behind the segments (p4/tna/types.p4)."""


@dataclass(frozen=True, slots=True)
class Dialect:
    """How one of the two programs wants groups, flooding and digests."""

    flood_group: GroupId
    subscriptions: tuple[Entry, ...]
    session: CloneSessionEntry | None
    """None: any port will do."""
    groups_max: int | None
    """Groups by bitmap; None: groups are looked up."""
    switch_port: SwitchPort
    """Where no host is: whoever sends from the switch's own addresses would have to be there."""

    def groups(self) -> Groups:
        """How sets of members become groups there."""
        return ReplicationGroups() if self.groups_max is None else BitmapGroups(self.groups_max)


V1MODEL = Dialect(
    FLOOD_GROUP,
    (SubscriptionEntry(Report.HEAT), SubscriptionEntry(Report.SIGHTING)),
    session=None,
    groups_max=None,
    switch_port=SwitchPort(511),
)


def dialect_of(facts: SwitchFacts, bitmap_groups_max: int = BITMAP_GROUPS_MAX) -> Dialect:
    """How to program a switch with these facts."""
    if facts.recirculation_port is None:
        return V1MODEL
    return Dialect(
        bitmap_groups.FLOOD_GROUP,
        (*V1MODEL.subscriptions, SubscriptionEntry(Report.LOSS)),
        session=CloneSessionEntry(NEXT_SEGMENT_SESSION, facts.recirculation_port, MIRROR_BYTES, CONTROL_QUEUE),
        groups_max=bitmap_groups_max,
        switch_port=facts.recirculation_port,
    )
