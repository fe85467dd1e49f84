"""Tables of rows as a stream: a snapshot, then what has changed from one look to the next. Pure.

A look is taken once for all who watch. Who has missed one gets a snapshot: nothing is kept for those who are slow.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, TypeAlias

from kvproto.rpc import control_pb2 as rpc

Row: TypeAlias = Any
"""A message of the table."""
Tables: TypeAlias = dict[str, dict[str, Row]]
"""Rows by table, which is the name of a field of LiveIncrement, and key."""

KEYS: Final[Mapping[str, Callable[[Row], str]]] = {
    "nodes": lambda row: str(row.node.name),
    "prefixes": lambda row: str(row.first.hex()),
    "transfers": lambda row: str(row.key.hex()),
    "slots": lambda row: str(row.cell),
    "sources": lambda row: str(row.bucket),
    "decisions": lambda row: str(row.name),
    "drops": lambda row: str(row.name),
    "events": lambda row: str(row.number),
}
"""How each table names its rows."""


def tables_of(rows: Mapping[str, Iterable[Row]]) -> Tables:
    """Rows of each table, with their keys."""
    return {name: {key(row): row for row in rows.get(name, ())} for name, key in KEYS.items()}


class Increments:
    """The stream of one controller."""

    def __init__(self, controller: int) -> None:
        """`controller`: its incarnation."""
        self._controller = controller
        self._tables = tables_of({})
        self._status = rpc.StatusReply()
        self._last = rpc.LiveIncrement()
        self._snapshot: rpc.LiveIncrement | None = None
        self.sequence = 0
        """Of the last look; 0: there was none."""

    def look(self, tables: Tables, status: rpc.StatusReply) -> None:
        """This is how things are now."""
        self.sequence += 1
        self._last = self._begin(status)
        for name, rows in tables.items():
            known = self._tables[name]
            changed = [row for key, row in rows.items() if known.get(key) != row]
            getattr(self._last, name).extend(changed)
            self._last.gone.extend(rpc.RowGone(table=name, row=key) for key in known if key not in rows)
        self._tables, self._status, self._snapshot = tables, status, None

    def after(self, sequence: int) -> rpc.LiveIncrement:
        """For somebody who knows all up to a look: what the last one has brought if that is the next, else
        everything."""
        return self._last if 0 < sequence == self.sequence - 1 else self.snapshot()

    def snapshot(self) -> rpc.LiveIncrement:
        """Everything, as of the last look."""
        if self._snapshot is None:
            self._snapshot = self._begin(self._status)
            self._snapshot.snapshot = True
            for name, rows in self._tables.items():
                getattr(self._snapshot, name).extend(rows.values())
        return self._snapshot

    def _begin(self, status: rpc.StatusReply) -> rpc.LiveIncrement:
        return rpc.LiveIncrement(sequence=self.sequence, controller=self._controller, status=status)


def apply(tables: Tables, increment: rpc.LiveIncrement) -> None:
    """Bring what somebody knows up to date. `tables`: empty, or as this left them."""
    if increment.snapshot:
        tables.clear()
    for name, key in KEYS.items():
        rows = tables.setdefault(name, {})
        for row in getattr(increment, name):
            rows[key(row)] = row
    for gone in increment.gone:
        tables.get(gone.table, {}).pop(gone.row, None)
