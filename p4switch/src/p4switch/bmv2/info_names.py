"""A program's P4Info as a person speaks of it: by whole names, aliases, and ends of names. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from p4switch.bmv2.client import RefusedError
from p4switch.proto import p4info_pb2 as p4i


class Names:
    """What a P4Info has, by kind and name."""

    def __init__(self, p4info: p4i.P4Info) -> None:
        self.p4info = p4info
        self.actions_by_id = {one.preamble.id: one for one in p4info.actions}

    def table(self, name: str) -> p4i.Table:
        """The table of that name. Raises RefusedError."""
        found: p4i.Table = _one("table", self.p4info.tables, name)
        return found

    def action_of(self, table: p4i.Table, name: str) -> p4i.Action:
        """The action of that name among a table's. Raises RefusedError."""
        found: p4i.Action = _one("action", [self.actions_by_id[ref.id] for ref in table.action_refs], name)
        return found

    def find(self, kind: str, name: str) -> Any:
        """One of p4info.counters, direct_counters, meters, direct_meters or registers. Raises RefusedError."""
        return _one(kind.removesuffix("s").replace("_", " "), getattr(self.p4info, kind), name)

    def table_by_id(self, table_id: int) -> p4i.Table:
        """The table with an id that P4Info names elsewhere."""
        return next(one for one in self.p4info.tables if one.preamble.id == table_id)


def _one(what: str, among: Iterable[Any], name: str) -> Any:
    listed = list(among)
    for one in listed:
        if name in (one.preamble.name, one.preamble.alias):
            return one
    ends = [one for one in listed if one.preamble.name.endswith(f".{name}")]
    if len(ends) == 1:
        return ends[0]
    if ends:
        raise RefusedError(f"{what} {name}: {', '.join(one.preamble.name for one in ends)} all end so")
    raise RefusedError(
        f"Invalid {what} name ({name}): there are {', '.join(o.preamble.name for o in listed) or 'none'}"
    )
