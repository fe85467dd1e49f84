"""P4 control Forwarding: which port a MAC address lies behind."""

from __future__ import annotations

from collections.abc import Sequence

import finsy

from controlplane.core.ids import SwitchPort
from controlplane.core.switch.entries import AddressEntry, Entry, ForeignEntry

KINDS = frozenset({"dmac"})
TABLE = "dmac"
_ACTION = "forward"


def queries() -> Sequence[finsy.P4TableEntry]:
    """What to read for all entries of this control."""
    return [finsy.P4TableEntry(TABLE)]


def encode(entry: AddressEntry) -> finsy.P4TableEntry:
    """The entry as a P4Runtime entity."""
    return finsy.P4TableEntry(
        TABLE,
        match=finsy.P4TableMatch(dst=int.from_bytes(entry.mac, "big")),
        action=finsy.P4TableAction(_ACTION, port=entry.port),
    )


def decode(found: finsy.P4TableEntry) -> Entry | None:
    """Turn what was read into an entry."""
    mac = int(found["dst"]).to_bytes(6, "big")
    action = found.action
    if isinstance(action, finsy.P4TableAction) and action.name == _ACTION:
        return AddressEntry(mac, SwitchPort(action.args["port"]))
    return ForeignEntry(TABLE, mac)
