"""What a controller wants of a switch differently, by the program that the switch runs. Pure.

Entries that are the same everywhere are made by the core; here are the others. How entries are said in P4Runtime is the
business of `codecs`.
"""

from __future__ import annotations

from dataclasses import dataclass

from controlplane.ids import GroupId
from controlplane.limits import BITMAP_GROUPS_MAX
from controlplane.switch import bitmap_groups
from controlplane.switch.bitmap_groups import BitmapGroups
from controlplane.switch.entries import (
    FLOOD_GROUP,
    NEXT_SEGMENT_SESSION,
    CloneSessionEntry,
    Entry,
    HeatSubscriptionEntry,
    LossSubscriptionEntry,
)
from controlplane.switch.groups import Groups, ReplicationGroups
from controlplane.switch.target import SwitchFacts

MIRROR_BYTES = 86
"""What is left of a FILL that is mirrored: 4 bytes of the mirror's header, 82 up to the end of the control header."""

CONTROL_QUEUE = 1
"""Of the recirculation port: control datagrams that go round do not wait behind the segments (p4/tna/types.p4)."""


@dataclass(frozen=True, slots=True)
class Dialect:
    """One program's way."""

    flood_group: GroupId
    subscriptions: tuple[Entry, ...]
    session: CloneSessionEntry | None
    """None: any port will do."""
    groups_max: int | None
    """Groups by bitmap; None: groups are looked up."""

    def groups(self) -> Groups:
        return ReplicationGroups() if self.groups_max is None else BitmapGroups(self.groups_max)


V1MODEL = Dialect(FLOOD_GROUP, (HeatSubscriptionEntry(),), session=None, groups_max=None)


def dialect_of(facts: SwitchFacts, bitmap_groups_max: int = BITMAP_GROUPS_MAX) -> Dialect:
    """How to program a switch with these facts."""
    if facts.recirculation_port is None:
        return V1MODEL
    return Dialect(
        bitmap_groups.FLOOD_GROUP,
        (HeatSubscriptionEntry(), LossSubscriptionEntry()),
        session=CloneSessionEntry(NEXT_SEGMENT_SESSION, facts.recirculation_port, MIRROR_BYTES, CONTROL_QUEUE),
        groups_max=bitmap_groups_max,
    )
