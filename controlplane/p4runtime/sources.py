"""P4 control Sources: where nodes are, and which addresses are theirs."""

from __future__ import annotations

from collections.abc import Sequence

import finsy

from controlplane.core.ids import SwitchPort
from controlplane.core.switch.entries import Entry, ForeignEntry, SourceEntry, StationEntry, TakenAddressEntry

KINDS = frozenset({"station", "source", "address"})
STATION_TABLE = "station"
SOURCE_TABLE = "source"
ADDRESS_TABLE = "address"
TABLES = (STATION_TABLE, SOURCE_TABLE, ADDRESS_TABLE)
_STANDS_AT = "stands_at"
_KNOWN = "known"
_TAKEN = "taken"


def queries() -> Sequence[finsy.P4TableEntry]:
    """What to read for all entries of this control."""
    return [finsy.P4TableEntry(table) for table in TABLES]


def encode(entry: StationEntry | SourceEntry | TakenAddressEntry) -> finsy.P4TableEntry:
    """The entry as a P4Runtime entity."""
    match entry:
        case StationEntry(mac=mac, port=port):
            match = finsy.P4TableMatch(src=_number(mac))
            return finsy.P4TableEntry(STATION_TABLE, match=match, action=finsy.P4TableAction(_STANDS_AT, port=port))
        case SourceEntry(port=port, mac=mac, ip=ip):
            match = finsy.P4TableMatch(ingress_port=port, mac=_number(mac), ip=_number(ip))
            return finsy.P4TableEntry(SOURCE_TABLE, match=match, action=finsy.P4TableAction(_KNOWN))
        case TakenAddressEntry(ip=ip):
            match = finsy.P4TableMatch(ip=_number(ip))
            return finsy.P4TableEntry(ADDRESS_TABLE, match=match, action=finsy.P4TableAction(_TAKEN))


def encode_match(table: str, match: object) -> finsy.P4TableMatch:
    """The match of an entry that is not ours, from what `decode` made of it."""
    if table == SOURCE_TABLE and isinstance(match, tuple):
        port, mac, ip = match
        return finsy.P4TableMatch(ingress_port=port, mac=_number(mac), ip=_number(ip))
    if not isinstance(match, bytes):
        raise TypeError(f"{match!r} is no match of {table}")
    return finsy.P4TableMatch({"src" if table == STATION_TABLE else "ip": _number(match)})


def decode(found: finsy.P4TableEntry) -> Entry | None:
    """Turn what was read into an entry."""
    action = found.action
    name = action.name if isinstance(action, finsy.P4TableAction) else ""
    match found.table_id:
        case "station":
            mac = int(found["src"]).to_bytes(6, "big")
            if isinstance(action, finsy.P4TableAction) and name == _STANDS_AT:
                return StationEntry(mac, SwitchPort(action.args["port"]))
            return ForeignEntry(STATION_TABLE, mac)
        case "source":
            port, mac = SwitchPort(found["ingress_port"]), int(found["mac"]).to_bytes(6, "big")
            ip = int(found["ip"]).to_bytes(4, "big")
            return SourceEntry(port, mac, ip) if name == _KNOWN else ForeignEntry(SOURCE_TABLE, (port, mac, ip))
        case _:
            ip = int(found["ip"]).to_bytes(4, "big")
            return TakenAddressEntry(ip) if name == _TAKEN else ForeignEntry(ADDRESS_TABLE, ip)


def _number(octets: bytes) -> int:
    return int.from_bytes(octets, "big")
