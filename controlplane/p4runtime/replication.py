"""P4 controls Replication and Pruning, and the packet replication engine: who gets copies of a cast packet."""

from __future__ import annotations

from collections.abc import Sequence

import finsy

from controlplane.core.ids import GroupId, Member, SwitchPort
from controlplane.core.switch.bitmap_groups import FLOOD_GROUP as TOFINO_FLOOD_GROUP
from controlplane.core.switch.entries import (
    Bitmap,
    CloneSessionEntry,
    EgressMemberEntry,
    Entry,
    ForeignEntry,
    GroupEntry,
    ReplicateByBitmapEntry,
    ReplicateToGroupEntry,
    ReplicateToPortEntry,
)

KINDS = frozenset({"replicate", "egress_member", "group", "clone_session"})
REPLICATE_TABLE = "replicate"
EGRESS_TABLE = "egress_member"
_TO_GROUP = "to_group"
_TO_PORT = "to_port"
_BITMAPS = {Bitmap.ONE: "to_bitmap", Bitmap.TWO: "to_two_bitmaps"}
_RECEIVER = "set_receiver"

Found = finsy.P4TableEntry | finsy.P4MulticastGroupEntry | finsy.P4CloneSessionEntry


def queries() -> Sequence[Found]:
    """What to read for groups, sets, receivers and clone sessions."""
    return [
        finsy.P4TableEntry(REPLICATE_TABLE),
        finsy.P4TableEntry(EGRESS_TABLE),
        finsy.P4MulticastGroupEntry(),
        finsy.P4CloneSessionEntry(),
    ]


def encode(
    entry: ReplicateToGroupEntry | ReplicateToPortEntry | EgressMemberEntry | GroupEntry | CloneSessionEntry,
) -> Found:
    """The entry as a P4Runtime entity."""
    match entry:
        case ReplicateToGroupEntry(members=members, group=group):
            return _replicate(members, finsy.P4TableAction(_TO_GROUP, group=group))
        case ReplicateToPortEntry(members=members, port=port):
            return _replicate(members, finsy.P4TableAction(_TO_PORT, port=port))
        case EgressMemberEntry(port=port, member=member):
            return finsy.P4TableEntry(
                EGRESS_TABLE,
                match=finsy.P4TableMatch(egress_port=port),
                action=finsy.P4TableAction(_RECEIVER, member_bit=1 << member),
            )
        case GroupEntry(group=group, ports=ports):
            # The instance only has to differ between two copies for the same port.
            return finsy.P4MulticastGroupEntry(group, replicas=tuple((port, 1) for port in ports))
        case CloneSessionEntry(session=session, port=port):
            return finsy.P4CloneSessionEntry(
                session, class_of_service=entry.queue, packet_length_bytes=entry.bytes_max, replicas=((port, 1),)
            )


def decode(found: Found) -> Entry | None:
    """Turn what was read into an entry."""
    if isinstance(found, finsy.P4MulticastGroupEntry):
        return GroupEntry(GroupId(found.multicast_group_id), tuple(sorted(_ports(found))))
    if isinstance(found, finsy.P4CloneSessionEntry):
        ports = _ports(found)
        if len(ports) == 1:
            return CloneSessionEntry(found.session_id, ports[0], found.packet_length_bytes, found.class_of_service)
        return ForeignEntry("clone_session", found.session_id)
    if found.table_id == EGRESS_TABLE:
        return _decode_egress(found)
    members = int(found["members"])
    action = found.action
    if isinstance(action, finsy.P4TableAction) and action.name == _TO_GROUP:
        return ReplicateToGroupEntry(members, GroupId(action.args["group"]))
    if isinstance(action, finsy.P4TableAction) and action.name == _TO_PORT:
        return ReplicateToPortEntry(members, SwitchPort(action.args["port"]))
    return ForeignEntry(REPLICATE_TABLE, members)


def default_queries() -> Sequence[finsy.P4TableEntry]:
    """What happens to sets that the table does not name (Tofino; a v1model program has one way only)."""
    return [finsy.P4TableEntry(REPLICATE_TABLE, is_default_action=True)]


def encode_default(bitmap: Bitmap | None) -> finsy.P4TableEntry:
    """The default action; None: the group of all ports, which a program begins with."""
    if bitmap is None:
        action = finsy.P4TableAction(_TO_GROUP, group=TOFINO_FLOOD_GROUP)
    else:
        action = finsy.P4TableAction(_BITMAPS[bitmap])
    return finsy.P4TableEntry(REPLICATE_TABLE, action=action, is_default_action=True)


def decode_default(found: finsy.P4TableEntry) -> ReplicateByBitmapEntry | None:
    """The default action, as an entry; None: the group of all ports."""
    action = found.action
    name = action.name if isinstance(action, finsy.P4TableAction) else ""
    return next((ReplicateByBitmapEntry(bitmap) for bitmap, one in _BITMAPS.items() if one == name), None)


def _replicate(members: int, action: finsy.P4TableAction) -> finsy.P4TableEntry:
    return finsy.P4TableEntry(REPLICATE_TABLE, match=finsy.P4TableMatch(members=members), action=action)


def _decode_egress(found: finsy.P4TableEntry) -> Entry:
    port = SwitchPort(found["egress_port"])
    action = found.action
    if isinstance(action, finsy.P4TableAction) and action.name == _RECEIVER:
        members = int(action.args["member_bit"])
        if members.bit_count() == 1:
            return EgressMemberEntry(port, Member(members.bit_length() - 1))
    return ForeignEntry(EGRESS_TABLE, port)


def _ports(found: finsy.P4MulticastGroupEntry | finsy.P4CloneSessionEntry) -> list[SwitchPort]:
    ports = []
    for replica in found.replicas:
        if isinstance(replica, int):
            ports.append(SwitchPort(replica))
        else:
            ports.append(SwitchPort(replica[0] if isinstance(replica, tuple) else replica.port))
    return ports
