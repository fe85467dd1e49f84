"""P4 control Fabric: parameters of the whole fabric, as the default action of a table without a key."""

from __future__ import annotations

from collections.abc import Sequence

import finsy

from controlplane.core.switch.entries import Entry, FabricEntry

KINDS = frozenset({"fabric"})
TABLE = "fabric"
_ACTION = "set_fabric"
_PLAIN = "plain"


def queries() -> Sequence[finsy.P4TableEntry]:
    """What to read for all entries of this control."""
    return [finsy.P4TableEntry(TABLE, is_default_action=True)]


def encode(entry: FabricEntry) -> finsy.P4TableEntry:
    """The entry as a P4Runtime entity."""
    action = finsy.P4TableAction(
        _ACTION,
        group_mac=int.from_bytes(entry.group_mac, "big"),
        group_ip=int.from_bytes(entry.group_ip, "big"),
        pool_mac=int.from_bytes(entry.pool_mac, "big"),
        pool_ip=int.from_bytes(entry.pool_ip, "big"),
        from_switch_dscp=entry.from_switch_dscp,
        interest_ttl_us=entry.interest_ttl_us,
        heat_window_us=entry.heat_window_us,
        heat_gets=entry.heat_gets,
    )
    return finsy.P4TableEntry(TABLE, action=action, is_default_action=True)


def encode_absent() -> finsy.P4TableEntry:
    """The default action that makes the switch an ordinary one."""
    return finsy.P4TableEntry(TABLE, action=finsy.P4TableAction(_PLAIN), is_default_action=True)


def decode(found: finsy.P4TableEntry) -> Entry | None:
    """Turn what was read into an entry; None: the switch is an ordinary one."""
    action = found.action
    if not isinstance(action, finsy.P4TableAction) or action.name != _ACTION:
        return None
    args = action.args
    return FabricEntry(
        group_mac=args["group_mac"].to_bytes(6, "big"),
        group_ip=args["group_ip"].to_bytes(4, "big"),
        pool_mac=args["pool_mac"].to_bytes(6, "big"),
        pool_ip=args["pool_ip"].to_bytes(4, "big"),
        from_switch_dscp=args["from_switch_dscp"],
        interest_ttl_us=args["interest_ttl_us"],
        heat_window_us=args["heat_window_us"],
        heat_gets=args["heat_gets"],
    )
