"""Other nodes' chunks as an agent keeps them: in columns, with some entries at hand as objects. Pure.

A chunk takes some 120 bytes, where an entry in a dictionary takes 500. What was asked for lately lies beside the
columns as the object that askers get, so that a fetch makes nothing anew.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable, Iterator
from typing import Final, TypeAlias

import numpy as np

from hostagent.core.chunk_entry import ChunkEntry, Variant
from kvchunk.ids import ChunkKey
from kvproto.chunk_table import KNOWN, NONE, ChunkTable, Interned

_SERVED: Final = 2
_PINNED: Final = 4
_OTHERS: Final = 8
_NAMED: Final = 32
"""The snapshot that is coming has it, too."""
_COMPARED: Final = 16
_LOOKED_AT_MAX: Final = 4096
"""Rows, until something is evicted, or nothing."""
AT_HAND_MAX: Final = 4096
"""Entries kept as objects; then the older half goes."""

Numbers: TypeAlias = tuple[int, ...]
Copies: TypeAlias = tuple[Numbers, Numbers]
"""Numbers of the nodes that hold a chunk in DRAM and on disk."""


class ReplicaTable:
    """Owns entries by key."""

    def __init__(self) -> None:
        self._table = ChunkTable()
        self._nodes: Interned[Numbers] = Interned(())
        self._in_pool = array("I")
        self._on_disk = array("I")
        self._values = array("d")
        self._others: dict[ChunkKey, tuple[Variant, ...]] = {}
        self._hand = 0
        self.at_hand: dict[ChunkKey, ChunkEntry] = {}
        """Entries as they are in the table, of those that were asked for or came lately. To be read."""

    def __len__(self) -> int:
        return self._table.count

    def __contains__(self, key: ChunkKey) -> bool:
        return self._row(key) != NONE

    def __iter__(self) -> Iterator[ChunkKey]:
        flags = self._table.flags
        return (self._table.key(row) for row in range(len(flags)) if flags[row] & KNOWN)

    def get(self, key: ChunkKey) -> ChunkEntry | None:
        """The entry of a key; None: it is not known."""
        entry = self.at_hand.get(key)
        if entry is None and (row := self._row(key)) != NONE:
            entry = self._entry(row, key)
            self._keep(entry)
        return entry

    def put(self, entry: ChunkEntry) -> None:
        """A chunk is known so from now on."""
        table = self._table
        row = table.place(entry.key)
        table.know(row, entry.parent, entry.size_bytes, entry.digest, entry.position, entry.namespace)
        while (missing := len(table) - len(self._values)) > 0:
            self._in_pool.extend([0] * missing)
            self._on_disk.extend([0] * missing)
            self._values.extend([0.0] * missing)
        for column, nodes in ((self._in_pool, entry.holders), (self._on_disk, entry.disk_holders)):
            before = column[row]
            column[row] = self._nodes.take(nodes)
            self._nodes.drop(before)
        self._values[row] = entry.value
        if entry.others:
            self._others[entry.key] = entry.others
        elif table.flags[row] & _OTHERS:
            self._others.pop(entry.key, None)
        table.flags[row] = KNOWN | _SERVED * entry.served | _PINNED * entry.pinned | _OTHERS * bool(entry.others)
        self._keep(entry)

    def pop(self, key: ChunkKey) -> bool:
        """A chunk is not known any more. True if it was."""
        row = self._row(key)
        if row == NONE:
            return False
        for column in (self._in_pool, self._on_disk):
            self._nodes.drop(column[row])
            column[row] = 0
        self._others.pop(key, None)
        self.at_hand.pop(key, None)
        self._table.forget(row)
        self._table.release(row)
        return True

    def value(self, key: ChunkKey) -> float:
        """The value of a chunk as the controller said; not a number: it is not known."""
        row = self._row(key)
        return self._values[row] if row != NONE else math.nan

    def begin_naming(self) -> None:
        """Nothing is `named` yet. What changes after that counts as not named."""
        flags = np.array(self._table.flags, np.uint8)
        self._table.flags[:] = (flags & ~np.uint8(_NAMED)).tobytes()

    def named(self, entry: ChunkEntry) -> bool:
        """Somebody names a chunk. Whether it is known exactly so."""
        row = self._row(entry.key)
        if row == NONE:
            return False
        self._table.flags[row] |= _NAMED
        return self._entry(row, entry.key) == entry

    def not_named(self) -> list[ChunkKey]:
        """Chunks that nobody has named."""
        flags = np.array(self._table.flags, np.uint8) & (KNOWN | _NAMED)
        return list(map(self._table.key, np.flatnonzero(flags == KNOWN).tolist()))

    def least(self, is_in_use: Callable[[ChunkKey], bool]) -> ChunkKey | None:
        """Of the next few chunks, round and round, the one that is worth least; those on which others hang are spared
        where there are others. None: none of many may go."""
        table, best, best_rank = self._table, NONE, (True, math.inf)
        looked_at = 0
        for _ in range(min(len(table), _LOOKED_AT_MAX)):
            self._hand = (self._hand + 1) % len(table)
            row = self._hand
            if not table.flags[row] & KNOWN or is_in_use(table.key(row)):
                continue
            rank = (table.first_child[row] != NONE, self._values[row])
            if best == NONE or rank < best_rank:
                best, best_rank = row, rank
            looked_at += 1
            if looked_at == _COMPARED:
                break
        return None if best == NONE else table.key(best)

    # -- inside

    def _row(self, key: ChunkKey) -> int:
        row = self._table.row(key)
        return row if row != NONE and self._table.flags[row] & KNOWN else NONE

    def _keep(self, entry: ChunkEntry) -> None:
        at_hand = self.at_hand
        if len(at_hand) >= AT_HAND_MAX:
            for key in list(at_hand)[: AT_HAND_MAX // 2]:
                del at_hand[key]
        at_hand[entry.key] = entry

    def _entry(self, row: int, key: ChunkKey) -> ChunkEntry:
        table, above, flags = self._table, self._table.parents[row], self._table.flags[row]
        return ChunkEntry(
            key,
            None if above == NONE else table.key(above),
            table.sizes[row],
            table.digest(row),
            table.positions[row],
            self._nodes.values[self._in_pool[row]],
            bool(flags & _SERVED),
            bool(flags & _PINNED),
            self._values[row],
            self._nodes.values[self._on_disk[row]],
            table.namespace(row),
            self._others[key] if flags & _OTHERS else (),
        )
