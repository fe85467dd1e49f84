"""The packet replication engine, and what a cast packet goes to that the table `replicate` does not name."""

from __future__ import annotations

from typing import Final

import finsy

from controlplane.core.ids import GroupId, SwitchPort
from controlplane.core.switch.bitmap_groups import FLOOD_GROUP as TOFINO_FLOOD_GROUP
from controlplane.core.switch.entries import (
    Bitmap,
    CloneSessionEntry,
    Entry,
    ForeignEntry,
    GroupEntry,
    ReplicateByBitmapEntry,
)

TABLE: Final = "replicate"
_BITMAPS: Final = {Bitmap.ONE: "to_bitmap", Bitmap.TWO: "to_two_bitmaps"}

Found = finsy.P4MulticastGroupEntry | finsy.P4CloneSessionEntry


def encode(entry: GroupEntry | CloneSessionEntry) -> Found:
    """The entry as a P4Runtime entity."""
    if isinstance(entry, GroupEntry):
        # The instance only has to differ between two copies for the same port.
        return finsy.P4MulticastGroupEntry(entry.group, replicas=tuple((port, 1) for port in entry.ports))
    return finsy.P4CloneSessionEntry(
        entry.session, class_of_service=entry.queue, packet_length_bytes=entry.bytes_max, replicas=((entry.port, 1),)
    )


def decode(found: Found) -> Entry:
    """Turn what was read into an entry."""
    ports = _ports(found)
    if isinstance(found, finsy.P4MulticastGroupEntry):
        return GroupEntry(GroupId(found.multicast_group_id), tuple(sorted(ports)))
    if len(ports) == 1:
        return CloneSessionEntry(found.session_id, ports[0], found.packet_length_bytes, found.class_of_service)
    return ForeignEntry(CloneSessionEntry.kind, found.session_id)


def default_query() -> finsy.P4TableEntry:
    """What happens to sets that the table does not name (Tofino; a v1model program has one way only)."""
    return finsy.P4TableEntry(TABLE, is_default_action=True)


def encode_default(bitmap: Bitmap | None) -> finsy.P4TableEntry:
    """The default action; None: the group of all ports, which a program begins with."""
    if bitmap is None:
        action = finsy.P4TableAction("to_group", group=TOFINO_FLOOD_GROUP)
    else:
        action = finsy.P4TableAction(_BITMAPS[bitmap])
    return finsy.P4TableEntry(TABLE, action=action, is_default_action=True)


def decode_default(found: finsy.P4TableEntry) -> ReplicateByBitmapEntry | None:
    """The default action, as an entry; None: the group of all ports."""
    action = found.action
    name = action.name if isinstance(action, finsy.P4TableAction) else ""
    return next((ReplicateByBitmapEntry(bitmap) for bitmap, one in _BITMAPS.items() if one == name), None)


def _ports(found: Found) -> list[SwitchPort]:
    ports = []
    for replica in found.replicas:
        if isinstance(replica, int):
            ports.append(SwitchPort(replica))
        else:
            ports.append(SwitchPort(replica[0] if isinstance(replica, tuple) else replica.port))
    return ports
