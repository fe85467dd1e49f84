"""Which agents follow which chunks: those that want to be told of what they asked for, and not of everything. Pure.

Whoever follows a chunk follows what hangs on it: a prefix grows at its end. So the subtrees that engines ask for are
followed without anybody naming them. A chunk that nobody has may be followed, too: then its announcement is news.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from controlplane.core.directory.tree import Directory
from controlplane.core.ids import ChunkKey
from controlplane.core.limits import COPIES_FORGOTTEN_AT_ONCE, FOLLOWED_PER_NODE_MAX
from kvproto.chunk_table import KEPT, KNOWN, NONE, Interned, Rows

Heard: TypeAlias = dict[frozenset[int], tuple[list[int], list[ChunkKey]]]
"""Rows of chunks, and keys of those that are gone, by who is told of them."""


class Following:
    """Owns who follows which row of the directory, by session. Most chunks of a prefix have the same followers: each
    set of them is kept once."""

    def __init__(self, directory: Directory) -> None:
        self._table = directory.table
        self._sets: Interned[frozenset[int]] = Interned(frozenset())
        self._of = array("I")
        self._counts: Counter[int] = Counter()
        self.sessions: set[int] = set()
        """Those that are told only of what they follow."""
        self._ended: dict[int, list[int]] = {}
        """Rows that sessions followed when they ended, still to be let go."""

    def stream_ended(self, session: int) -> None:
        """A session follows nothing any more."""
        if session not in self.sessions:
            return
        self.sessions.discard(session)
        self._ended[session] = self.rows_of(session)
        self.advance()

    def rows_of(self, session: int) -> list[int]:
        """All that a session follows."""
        values = self._sets.values
        has = np.fromiter((session in one for one in values), np.bool_, len(values))
        rows: list[int] = np.flatnonzero(has[np.array(self._of, np.uint32)]).tolist()
        return rows

    def advance(self, count: int = COPIES_FORGOTTEN_AT_ONCE) -> None:
        """Let go so many rows of sessions that have ended."""
        for session, rows in list(self._ended.items()):
            self._let_go(session, np.array(rows[-count:], np.int64))
            del rows[-count:]
            if not rows:
                del self._ended[session], self._counts[session]
                continue
            return

    @property
    def is_behind(self) -> bool:
        """Whether `advance` has something to do."""
        return bool(self._ended)

    def has_room(self, session: int, keys: Sequence[ChunkKey]) -> bool:
        """Whether a session may follow all of these."""
        room = FOLLOWED_PER_NODE_MAX - self._counts[session]
        return len(keys) <= room or sum(not self._follows(session, self._table.row(key)) for key in keys) <= room

    def follow(self, session: int, keys: Iterable[ChunkKey]) -> None:
        """A session is told of these from now on, as far as it may follow more."""
        rows = np.array(list(dict.fromkeys(self._table.place_all(keys)[0])), np.int64)
        self._extend()
        numbers = np.frombuffer(self._of, np.uint32)[rows]
        rows = rows[~self._which(session, numbers)][: FOLLOWED_PER_NODE_MAX - self._counts[session]]
        self._replace(rows, lambda before: before | {session})
        np.frombuffer(self._table.flags, np.uint8)[rows] |= KEPT
        self._counts[session] += len(rows)

    def release(self, session: int, keys: Iterable[ChunkKey]) -> None:
        """A session is told of these no more."""
        self._extend()
        rows = dict.fromkeys(row for key in keys if (row := self._table.row(key)) != NONE)
        self._let_go(session, np.array(list(rows), np.int64))

    def listeners(self, rows: Rows, gone: Iterable[ChunkKey]) -> Heard:
        """Who is to be told of which of these changed chunks, and of those that nobody has any more; they follow them
        from now on. By the sets of those who follow them, of which there are few."""
        heard: Heard = {}
        values, parents = self._sets.values, self._table.parents
        self._extend()
        for row in self._followed(rows).tolist():
            above = parents[row]
            if above != NONE and (more := values[self._of[above]] - values[self._of[row]]):
                may = (one for one in more if one in self.sessions and self._counts[one] < FOLLOWED_PER_NODE_MAX)
                self._take(frozenset(may), row)
            if sessions := values[self._of[row]]:
                heard.setdefault(sessions, ([], []))[0].append(row)
        for key in gone:
            if (row := self._table.row(key)) != NONE and (sessions := values[self._of[row]]):
                heard.setdefault(sessions, ([], []))[1].append(key)
        return heard

    # -- inside

    def _followed(self, rows: Rows) -> Rows:
        """Those of these that anybody follows, or that hang on what anybody follows or on another one of these."""
        above = np.frombuffer(self._table.parents, np.int32)[rows]
        of = np.frombuffer(self._of, np.uint32)
        if not (of[rows].any() or of[above[above != NONE]].any()):
            return rows[:0]
        return rows

    def _follows(self, session: int, row: int) -> bool:
        return 0 <= row < len(self._of) and session in self._sets.values[self._of[row]]

    def _extend(self) -> None:
        if (missing := len(self._table) - len(self._of)) > 0:
            self._of.extend(array("I", [0]) * missing)

    def _take(self, sessions: frozenset[int], row: int) -> None:
        self._extend()
        number = self._of[row]
        before = self._sets.values[number]
        if more := sessions - before:
            self._of[row] = self._sets.take(before | more)
            self._sets.drop(number)
            self._table.flags[row] |= KEPT
            self._counts.update(more)

    def _let_go(self, session: int, rows: Rows) -> None:
        """Of these, each named once, a session follows none any more."""
        rows = rows[self._which(session, np.frombuffer(self._of, np.uint32)[rows])]
        self._replace(rows, lambda before: before - {session})
        self._counts[session] -= len(rows)
        alone = rows[np.frombuffer(self._of, np.uint32)[rows] == 0]
        flags = np.frombuffer(self._table.flags, np.uint8)
        flags[alone] &= ~KEPT & 0xFF
        unknown = alone[flags[alone] & KNOWN == 0].tolist()
        del flags
        for row in unknown:
            self._table.release(row)

    def _which(self, session: int, numbers: npt.NDArray[np.uint32]) -> npt.NDArray[np.bool_]:
        """Which of these sets a session is in."""
        kinds, places = np.unique(numbers, return_inverse=True)
        found = np.array([session in self._sets.values[kind] for kind in kinds.tolist()], np.bool_)
        return found[places]

    def _replace(self, rows: Rows, change: Callable[[frozenset[int]], frozenset[int]]) -> None:
        """Other sessions follow these rows, each named once."""
        of = np.frombuffer(self._of, np.uint32)
        kinds, places, counts = np.unique(of[rows], return_inverse=True, return_counts=True)
        taken = np.zeros(len(kinds), np.uint32)
        for at, (kind, count) in enumerate(zip(kinds.tolist(), counts.tolist(), strict=True)):
            taken[at] = self._sets.take(change(self._sets.values[kind]), count)
            self._sets.drop(kind, count)
        of[rows] = taken[places]
