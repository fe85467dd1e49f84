"""P4 control Admission: which member is behind a port."""

from __future__ import annotations

from collections.abc import Sequence

import finsy

from controlplane.core.ids import Member, SwitchPort
from controlplane.core.switch.entries import Entry, ForeignEntry, PortMemberEntry

KINDS = frozenset({"port_member"})
TABLE = "port_member"
_ACTION = "set_member"


def queries() -> Sequence[finsy.P4TableEntry]:
    """What to read for all entries of this control."""
    return [finsy.P4TableEntry(TABLE)]


def encode(entry: PortMemberEntry) -> finsy.P4TableEntry:
    """The entry as a P4Runtime entity."""
    return finsy.P4TableEntry(
        TABLE,
        match=finsy.P4TableMatch(ingress_port=entry.port),
        action=finsy.P4TableAction(_ACTION, member=entry.member, member_bit=1 << entry.member),
    )


def decode(found: finsy.P4TableEntry) -> Entry | None:
    """Turn what was read into an entry."""
    port = SwitchPort(found["ingress_port"])
    action = found.action
    if isinstance(action, finsy.P4TableAction) and action.name == _ACTION:
        member = Member(action.args["member"])
        if action.args["member_bit"] == 1 << member:
            return PortMemberEntry(port, member)
    return ForeignEntry(TABLE, port)
