"""The prefix tree: chunks by key, linked to their parents, with the nodes that hold them.

Owns which copies exist, and which keys changed since somebody last asked (`take_rows`). Knows nothing of value,
time or the switch beyond the one bit `served`. What it knows lies in columns (`chunk_table`, `chunk_copies`), so that
many chunks that are announced together cost little (`add_copies`). What would take long is done in slices (`advance`).
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Final, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from controlplane.core.directory.records import AddOutcome, Chunk, ChunkFacts
from controlplane.core.ids import ChunkKey, NodeIndex
from controlplane.core.limits import COPIES_FORGOTTEN_AT_ONCE, PREFIX_CHUNKS_MAX
from kvchunk.ids import KEY_BYTES, ROOT_KEY
from kvproto.chunk_columns import PINNED, SERVED, Columns, Record
from kvproto.chunk_copies import Copies
from kvproto.chunk_table import KNOWN, NEWS, NONE, ChunkTable, Rows
from kvproto.integrity import DIGEST_BYTES_MAX
from kvproto.twins import TWIN_CODES, twin_key

Hosts: TypeAlias = frozenset[NodeIndex]
NOBODY: Final[Hosts] = frozenset()
_SERVED: Final = 2
_PINNED: Final = 4
_DISSENT: Final = 8
"""Some copies have other bytes."""
_FEW: Final = 8
"""Children that are looked at by themselves."""


class UnknownKeyError(LookupError):
    """No chunk of the directory has this key, or these first digits."""


class AmbiguousKeyError(LookupError):
    """Several keys begin with these digits."""


class Gathered(NamedTuple):
    """Columns of some chunks."""

    keys: bytes
    parents: bytes
    digests: bytes
    sizes: npt.NDArray[np.uint64]
    positions: npt.NDArray[np.uint32]
    flags: bytes
    values: bytes
    in_pool: npt.NDArray[np.uint32]
    on_disk: npt.NDArray[np.uint32]


class Directory:
    """All chunks that some node holds or the switch serves.

    A chunk stays while it is available; its place in the tree (who its children are) is remembered while it has
    children, so that prefixes join up again in whatever order nodes announce them.
    """

    def __init__(self, apart: Callable[[str, str], bool] = lambda one, other: False) -> None:
        """`apart(namespace, other)`: whether not the same nodes may have both."""
        self._apart = apart
        self._left: dict[ChunkKey, set[str]] = {}
        """Namespaces that keys were known under, since somebody last asked (`take_left`)."""
        self.table = ChunkTable()
        """To be read."""
        self._copies: Copies[NodeIndex] = Copies()
        self._told = array("d")
        """Values last published; not a number: none."""
        self._dissenters: dict[ChunkKey, dict[NodeIndex, ChunkFacts]] = {}
        self._dissents: dict[NodeIndex, set[ChunkKey]] = {}
        self._confirmed: dict[tuple[NodeIndex, bool], array[int]] = {}
        """Rows of what a node has named, in its pool and on its disk, since `begin_snapshot`."""
        self._doomed: dict[tuple[NodeIndex, bool], set[int]] = {}
        """Rows of copies that a node no longer has and that are still to be forgotten."""
        self._changed = array("i")
        """Rows with the flag NEWS, those that changed first before the others."""
        self._pins_were_set = False
        self._watchers: list[Callable[[Sequence[ChunkKey], bool], None]] = []
        self._followers: list[tuple[Callable[[ChunkKey, int], None], Callable[[ChunkKey, int], None]]] = []
        self.size_bytes = 0
        """Of distinct chunks."""

    # -- reading

    def __contains__(self, key: ChunkKey) -> bool:
        return self._row(key) != NONE

    def __len__(self) -> int:
        return self.table.count

    def __iter__(self) -> Iterator[Chunk]:
        """In the order of rows. What changes meanwhile may or may not be told."""
        row = 0
        while row < len(self.table):
            if self.table.flags[row] & KNOWN:
                yield self._chunk(row)
            row += 1

    def get(self, key: ChunkKey) -> Chunk | None:
        """The chunk of this key; None if nobody has it."""
        row = self._row(key)
        return None if row == NONE else self._chunk(row)

    def keys(self, namespace: str | None = None) -> Iterator[ChunkKey]:
        """All keys, or those of a namespace, as they are at the beginning."""
        table = self.table
        wanted = np.array(table.flags, np.uint8) & KNOWN != 0
        if namespace is not None:
            wanted &= np.array(table.namespace_numbers) == np.int64(table.namespaces.find(namespace))
        return map(table.key, np.flatnonzero(wanted).tolist())

    def in_order(self) -> Iterator[ChunkKey]:
        """All keys by namespace, position and key, as they were at the beginning."""
        table = self.table
        rows = np.flatnonzero(np.array(table.flags, np.uint8) & KNOWN)
        names = table.namespaces.values
        ranks = np.zeros(len(names), np.uint32)
        ranks[sorted(range(len(names)), key=names.__getitem__)] = np.arange(len(names))
        words = np.frombuffer(bytes(table.keys), ">u8").reshape(-1, 2)[rows]
        positions = np.array(table.positions, np.uint32)[rows]
        order = np.lexsort((words[:, 1], words[:, 0], positions, ranks[np.array(table.namespace_numbers)[rows]]))
        return map(table.key, rows[order].tolist())

    # -- rows, for messages: those that `take_rows` or `some_rows` named, until something changes

    def some_rows(self, first_row: int, count: int) -> Rows:
        """Those of `count` rows from this one on whose chunks are known."""
        return first_row + np.flatnonzero(
            np.frombuffer(self.table.flags, np.uint8)[first_row : first_row + count] & KNOWN
        )

    def rows_of(self, keys: Iterable[ChunkKey]) -> Rows:
        """Of the keys whose chunks are known."""
        return np.array([row for key in keys if (row := self._row(key)) != NONE], np.int64)

    def chunks_of(self, rows: Iterable[int]) -> list[Chunk]:
        """Chunks by their rows."""
        return list(map(self._chunk, rows))

    def namespace_numbers(self, rows: Rows) -> npt.NDArray[np.uint32]:
        """Of the namespaces of chunks, as the table numbers them."""
        return np.frombuffer(self.table.namespace_numbers, np.uint32)[rows]

    def nodes_numbered(self, number: int) -> Hosts:
        """The set of nodes that has this number."""
        return self._copies.numbered(number)

    def parted(self, rows: Rows) -> tuple[Rows, list[int]]:
        """(rows all copies of which have the same bytes, the other ones)."""
        if not self._dissenters:
            return rows, []
        apart = np.frombuffer(self.table.flags, np.uint8)[rows] & _DISSENT != 0
        return rows[~apart], rows[apart].tolist()

    @property
    def copies(self) -> int:
        """In hosts' pools, of all chunks together."""
        return self._copies.count

    def gather(self, rows: Rows) -> Gathered:
        """Columns of chunks, as ChunkColumns has them. What numpy looks into cannot grow: nothing here outlives the
        call but copies."""
        table = self.table
        keys = np.frombuffer(table.keys, np.uint8).reshape(-1, KEY_BYTES)
        parents = np.frombuffer(table.parents, np.int32)[rows]
        above = keys[parents]
        above[parents == NONE] = 0
        digests = np.frombuffer(table.digests, np.uint8).reshape(-1, DIGEST_BYTES_MAX)[rows]
        digest_bytes = len(table.digest(int(rows[0]))) if len(rows) else 0
        flags = np.frombuffer(table.flags, np.uint8)[rows]
        told = (flags & _PINNED != 0) * np.uint8(PINNED) | (flags & _SERVED != 0) * np.uint8(SERVED)
        return Gathered(
            keys[rows].tobytes(),
            above.tobytes(),
            digests[:, :digest_bytes].tobytes(),
            np.frombuffer(table.sizes, np.uint64)[rows],
            np.frombuffer(table.positions, np.uint32)[rows],
            told.astype(np.uint8).tobytes(),
            np.frombuffer(self._told, np.float64)[rows].astype("<f8").tobytes(),
            np.frombuffer(self._copies.in_pool, np.uint32)[rows],
            np.frombuffer(self._copies.on_disk, np.uint32)[rows],
        )

    def hosts(self, key: ChunkKey) -> tuple[Hosts, Hosts]:
        """Nodes that have a chunk in their pools, and on their disks."""
        row = self._row(key)
        return self._copies.of(row) if row != NONE else (NOBODY, NOBODY)

    def is_pinned(self, key: ChunkKey) -> bool:
        """Whether a chunk is here and pinned."""
        row = self._row(key) if self._pins_were_set else NONE
        return row != NONE and bool(self.table.flags[row] & _PINNED)

    def is_served(self, row: int) -> bool:
        """Whether the switch serves the chunk of a row."""
        return bool(self.table.flags[row] & _SERVED)

    def count_held_by(self, node: NodeIndex) -> int:
        """Chunks in the node's pool."""
        return self._copies.held[node]

    def count_on_disk_of(self, node: NodeIndex) -> int:
        """Chunks on the node's disk."""
        return self._copies.held_on_disk[node]

    def count_last_copies(self, node: NodeIndex) -> int:
        """How many chunks no other host would have, in its pool or on its disk."""
        return self._copies.last[node]

    def last_copies(self, node: NodeIndex) -> list[ChunkKey]:
        """Keys that no other host would have, in its pool or on its disk, ancestors first; no twins."""
        chunks = [facts for row in self._copies.last_rows(node).tolist() if not (facts := self._facts(row)).is_twin]
        return [facts.key for facts in sorted(chunks, key=lambda facts: (facts.position, facts.key))]

    def crossing(self, key: ChunkKey) -> ChunkKey:
        """What readers ask for to have a chunk: its twin, the smallest that some node's pool has, or the chunk."""
        for code in reversed(TWIN_CODES):
            row = self._row(twin_key(key, code))
            if row != NONE and (self._copies.in_pool[row] or self.table.flags[row] & _SERVED):
                return self.table.key(row)
        return key

    def twins(self, key: ChunkKey) -> list[ChunkKey]:
        """Keys of a chunk's twins that are here. They hang on it and are smaller, so most chunks need no digest."""
        table, row = self.table, self.table.row(key)
        below = [] if row == NONE else list(islice(table.children(row), _FEW))
        if 0 < len(below) < _FEW and table.flags[row] & KNOWN:
            below = [child for child in below if table.sizes[child] < table.sizes[row]]
        return [twin for code in TWIN_CODES if (twin := twin_key(key, code)) in self] if below else []

    def children(self, key: ChunkKey) -> frozenset[ChunkKey]:
        """Keys of the chunks that hang on this one, whether it is here or not."""
        row = self.table.row(key)
        return frozenset(map(self.table.key, self.table.children(row))) if row != NONE else frozenset()

    def count_children(self, key: ChunkKey) -> int:
        """How many chunks hang on this one."""
        row = self.table.row(key)
        return sum(1 for _ in self.table.children(row)) if row != NONE else 0

    def prefix(self, key: ChunkKey) -> list[ChunkKey]:
        """Keys from the first known ancestor to `key`. Raises UnknownKeyError if the directory lacks `key` itself."""
        row = self._row(key)
        if row == NONE:
            raise UnknownKeyError(f"no chunk {key.hex()} in the pool")
        path: list[ChunkKey] = []
        while row != NONE and self.table.flags[row] & KNOWN and len(path) < PREFIX_CHUNKS_MAX:
            path.append(self.table.key(row))
            row = self.table.parents[row]
        path.reverse()
        return path

    def is_rooted(self, key: ChunkKey) -> bool:
        """Every chunk from the root to `key` is available: without its ancestors a chunk is of no use."""
        row, flags, parents = self._row(key), self.table.flags, self.table.parents
        if row == NONE:
            return False
        for _ in range(PREFIX_CHUNKS_MAX):
            if row == NONE:
                return True
            if not flags[row] & KNOWN:
                return False
            row = parents[row]
        return False

    def subtree(self, key: ChunkKey) -> list[ChunkKey]:
        """`key` and all below it, parents before children. Raises UnknownKeyError."""
        row = self._row(key)
        if row == NONE:
            raise UnknownKeyError(f"no chunk {key.hex()} in the pool")
        found = [row]
        for at in found:
            found.extend(sorted(self.table.children(at), key=self.table.key))
        return list(map(self.table.key, found))

    def find(self, hex_digits: str) -> ChunkKey:
        """The one key that begins with these digits.

        Raises UnknownKeyError or AmbiguousKeyError, each with one line for a person.
        """
        digits = hex_digits.strip().lower()
        if not digits or len(digits) > 32 or any(digit not in "0123456789abcdef" for digit in digits):
            raise UnknownKeyError(
                f"'{hex_digits}' is not a chunk key: give up to 32 hexadecimal digits, as `kvcast ls` shows"
            )
        begins = bytes.fromhex(digits + "0" * (len(digits) % 2))
        keys = np.frombuffer(bytes(self.table.keys), np.uint8).reshape(-1, KEY_BYTES)[:, : len(begins)]
        mask = np.full(len(begins), 0xFF, np.uint8)
        mask[-1] = 0xF0 if len(digits) % 2 else 0xFF
        alike = ((keys & mask) == np.frombuffer(begins, np.uint8)).all(axis=1)
        rows = [row for row in np.flatnonzero(alike).tolist() if self.table.flags[row] & KNOWN]
        if not rows:
            raise UnknownKeyError(f"no chunk of the pool begins with {digits}")
        if len(rows) > 1:
            raise AmbiguousKeyError(f"{len(rows)} chunks begin with {digits}: give more digits")
        return self.table.key(rows[0])

    # -- changing

    def add_copy(self, node: NodeIndex, facts: ChunkFacts | Record) -> AddOutcome:
        """A node says that it holds this chunk."""
        row = self.table.row(facts.key)
        if row == NONE or not self.table.flags[row] & KNOWN:
            if row != NONE and self._closes_cycle(facts):
                return AddOutcome.CYCLE
            row = self._insert(facts, row)
            self._confirm(node, row)
            self._copies.hold(row, node)
            self._note(facts.key, row, is_new_or_lost=True)
            return AddOutcome.NEW_CHUNK
        self._confirm(node, row)
        holders, _ = self._copies.of(row)
        if self._differs(row, facts):
            facts = ChunkFacts(*facts[:6]) if isinstance(facts, Record) else facts
            others = self._dissenters.get(facts.key, {})
            if others.get(node) == facts:
                return AddOutcome.CONFLICT
            if holders == {node} and not self._closes_cycle(facts):
                # The only holder replaced its copy; nobody else is contradicted.
                self._replace_facts(row, facts)
                return AddOutcome.NEW_COPY
            if node in holders:
                self._copies.hold(row, node, holds=False)
            self._leave_dissent(row, facts.key, node)
            self._dissenters.setdefault(facts.key, {})[node] = facts
            self.table.flags[row] |= _DISSENT
            self._dissents.setdefault(node, set()).add(facts.key)
            self._note(facts.key, row)
            return AddOutcome.CONFLICT
        if node in holders:
            return AddOutcome.KNOWN
        self._leave_dissent(row, facts.key, node)
        self._copies.hold(row, node)
        self._note(facts.key, row)
        return AddOutcome.NEW_COPY

    def add_copies(self, node: NodeIndex, said: Columns, *, on_disk: bool = False) -> list[int]:
        """A node says that it has these. Takes up those that nobody had, and other copies of the same bytes; returns
        the places of those that want a look by themselves (`add_copy`, `add_disk_copy`)."""
        if len(set(said.keys)) < len(said.keys):
            return list(range(len(said.keys)))
        table = self.table
        found, made = table.place_all(said.keys)
        rows, new = np.array(found, np.int64), np.array(made, np.int64)
        known = np.delete(np.arange(len(rows)), new)
        if len(known):
            known = known[self._agree(rows[known], said, known)]
        if len(new):
            new = self._in_order(said, new)
            table.know_new(
                rows[new], said.sizes[new], said.digests[new], said.positions[new], said.names, said.indexes[new]
            )
            self._hang_all(said, rows, new)
        taken = np.sort(np.concatenate((new, known)))
        changed = rows[taken][self._copies.hold_all(rows[taken], node, on_disk=on_disk)]
        self.size_bytes += int(said.sizes[new].sum())
        self._confirm_all(node, rows[taken], on_disk=on_disk)
        self._note_all(changed, [said.keys[at] for at in new.tolist()], len(new) < len(changed))
        rest = np.ones(len(rows), np.bool_)
        rest[taken] = False
        return np.flatnonzero(rest).tolist()

    def add_disk_copy(self, node: NodeIndex, facts: ChunkFacts | Record) -> AddOutcome:
        """A node says that it has this chunk on disk. A copy with other bytes than the directory's is not offered."""
        row, is_new = self._row(facts.key), False
        if row == NONE:
            if self._closes_cycle(facts):
                return AddOutcome.CYCLE
            row, is_new = self._insert(facts, self.table.row(facts.key)), True
        elif self._differs(row, facts):
            self.remove_disk_copy(node, facts.key)
            return AddOutcome.CONFLICT
        self._confirm(node, row, on_disk=True)
        if self._copies.has(node, row, on_disk=True):
            return AddOutcome.KNOWN
        self._copies.hold(row, node, on_disk=True)
        self._note(facts.key, row, is_new_or_lost=is_new)
        return AddOutcome.NEW_CHUNK if is_new else AddOutcome.NEW_COPY

    def remove_disk_copy(self, node: NodeIndex, key: ChunkKey) -> bool:
        """A node no longer has this chunk on disk. True if it had."""
        row = self._row(key)
        if row == NONE or not self._copies.has(node, row, on_disk=True):
            return False
        self._copies.hold(row, node, on_disk=True, holds=False)
        self._note(key, row)
        self._drop_unless_available(row, key)
        return True

    def remove_copy(self, node: NodeIndex, key: ChunkKey) -> bool:
        """A node no longer holds this chunk, or its copy is not to be trusted. True if it was a holder."""
        row = self._row(key)
        if row == NONE or self._leave_dissent(row, key, node) or not self._copies.has(node, row, on_disk=False):
            return False
        self._copies.hold(row, node, holds=False)
        self._note(key, row)
        self._drop_unless_available(row, key)
        return True

    def remove_node(self, node: NodeIndex) -> None:
        """Forget every copy of a node: some now, the rest with `advance`."""
        for on_disk in (False, True):
            self._confirmed.pop((node, on_disk), None)
            self._doom(node, on_disk, self._copies.rows_of(node, on_disk=on_disk))
        for key in list(self._dissents.pop(node, ())):
            self._leave_dissent(self._row(key), key, node)
        self.advance()

    def begin_snapshot(self, node: NodeIndex) -> None:
        """The node is about to name all it holds; what it does not name is gone at `end_snapshot`."""
        self._confirmed[node, False], self._confirmed[node, True] = array("i"), array("i")

    def end_snapshot(self, node: NodeIndex) -> None:
        """Forget the copies that the node did not confirm: some now, the rest with `advance`."""
        for on_disk in (False, True):
            confirmed = self._confirmed.pop((node, on_disk), None)
            if confirmed is None:
                continue
            named = np.zeros(len(self.table), np.bool_)
            named[np.array(confirmed, np.int64)] = True
            rows = self._copies.rows_of(node, on_disk=on_disk)
            self._doom(node, on_disk, rows[~named[rows]])
            if not on_disk:
                others = [key for key in self._dissents.get(node, ()) if not named[self._row(key)]]
                for key in others:
                    self._leave_dissent(self._row(key), key, node)
        self.advance()

    def advance(self, count: int = COPIES_FORGOTTEN_AT_ONCE) -> None:
        """Forget so many of the copies that are still to be forgotten."""
        for (node, on_disk), rows in list(self._doomed.items()):
            remove = self.remove_disk_copy if on_disk else self.remove_copy
            while rows and count:
                row = rows.pop()
                key = self.table.key(row)
                if self._row(key) == row:  # else it was removed, and came back elsewhere
                    remove(node, key)
                count -= 1
            if not rows:
                del self._doomed[node, on_disk]

    @property
    def is_behind(self) -> bool:
        """Whether `advance` has something to do."""
        return bool(self._doomed)

    def is_leaving(self, node: NodeIndex) -> bool:
        """Whether copies of this node are still to be forgotten: nobody else may have its index meanwhile."""
        return (node, False) in self._doomed or (node, True) in self._doomed

    def set_served(self, key: ChunkKey, served: bool) -> None:
        """The switch began or ceased to serve a chunk. Ignored for a key that is not here."""
        row = self._row(key)
        if row != NONE and self._flag(row, _SERVED, served):
            self._note(key, row)
            self._drop_unless_available(row, key)

    def set_pinned(self, keys: Iterable[ChunkKey], pinned: bool) -> list[ChunkKey]:
        """Returns the keys whose state changed."""
        self._pins_were_set = True
        rows = {key: row for key in keys if (row := self._row(key)) != NONE and self._flag(row, _PINNED, pinned)}
        for key, row in rows.items():
            self._note(key, row)
        return list(rows)

    def touch(self, key: ChunkKey, score: float, step: float) -> None:
        """Mark for publication if the chunk's value is `step` away from the one that was published."""
        row = self._row(key)
        if row != NONE and abs(score - self._told[row]) >= step:
            self._note(key, row)

    def told(
        self, rows: Rows, scores: Callable[[Sequence[ChunkKey], Sequence[int]], Sequence[float]]
    ) -> list[ChunkKey]:
        """Chunks are published with values of this moment: `scores(keys, sizes)`. Returns their keys."""
        keys = self.table.keys_of(rows)
        sizes: list[int] = np.frombuffer(self.table.sizes, np.uint64)[rows].tolist()
        np.frombuffer(self._told, np.float64)[rows] = scores(keys, sizes)
        return keys

    def untold(self, rows: Rows) -> Rows:
        """Those of these rows whose chunks were never published."""
        return rows[np.isnan(np.frombuffer(self._told, np.float64)[rows])]

    def take_rows(self, limit: int) -> tuple[Rows, list[ChunkKey]]:
        """Rows of chunks new or changed, and keys gone: `limit` of those that changed first, at most."""
        rows = np.array(self._changed[:limit], np.int64)
        del self._changed[:limit]
        flags = np.frombuffer(self.table.flags, np.uint8)
        flags[rows] &= ~NEWS & 0xFF
        is_known = flags[rows] & KNOWN != 0
        del flags  # rows that are released may come and go
        gone = rows[~is_known]
        keys = self.table.keys_of(gone)
        for row in gone.tolist():
            self.table.release(row)
        return rows[is_known], keys

    @property
    def changes_count(self) -> int:
        """Of how many chunks `take_rows` has something to say."""
        return len(self._changed)

    def take_left(self, keys: Iterable[ChunkKey]) -> dict[ChunkKey, set[str]]:
        """Which of these keys are not known any more under namespaces that they were known under, since the last
        call."""
        return {key: self._left.pop(key) for key in keys if key in self._left} if self._left else {}

    def watch(self, changed: Callable[[Sequence[ChunkKey], bool], None]) -> None:
        """Call `changed(keys, are_new_or_lost)` whenever something about chunks is different."""
        self._watchers.append(changed)

    def follow(self, changed: Callable[[ChunkKey, int], None], added: Callable[[ChunkKey, int], None]) -> None:
        """Call `changed(key, row)` whenever something about a chunk but its copies is different, or it is known no
        more; or `added(key, row)` in its place for one that comes with many others."""
        self._followers.append((changed, added))

    # -- inside

    def _row(self, key: ChunkKey) -> int:
        """Of a chunk that is known."""
        row = self.table.row(key)
        return row if row != NONE and self.table.flags[row] & KNOWN else NONE

    def _facts(self, row: int) -> ChunkFacts:
        table, above = self.table, self.table.parents[row]
        return ChunkFacts(
            table.key(row),
            None if above == NONE else table.key(above),
            table.sizes[row],
            table.digest(row),
            table.positions[row],
            table.namespace(row),
        )

    def _chunk(self, row: int) -> Chunk:
        flags, facts = self.table.flags[row], self._facts(row)
        return Chunk(
            facts,
            *self._copies.of(row),
            bool(flags & _SERVED),
            bool(flags & _PINNED),
            self._told[row],
            dict(self._dissenters[facts.key]) if flags & _DISSENT else {},
        )

    def _flag(self, row: int, flag: int, on: bool) -> bool:
        """True if that changed something."""
        before = self.table.flags[row]
        self.table.flags[row] = before | flag if on else before & ~flag
        return self.table.flags[row] != before

    def _note(self, key: ChunkKey, row: int, is_new_or_lost: bool = False) -> None:
        if not self.table.flags[row] & NEWS:
            self.table.flags[row] |= NEWS
            self._changed.append(row)
        for watcher in self._watchers:
            watcher((key,), is_new_or_lost)
        for follower, _ in self._followers:
            follower(key, row)

    def _note_all(self, rows: Rows, new: Sequence[ChunkKey], others: bool) -> None:
        """Copies of these came; `new`: keys of those that nobody had, whose followers know."""
        flags = np.frombuffer(self.table.flags, np.uint8)
        self._changed.frombytes(rows[flags[rows] & NEWS == 0].astype(np.int32).tobytes())
        flags[rows] |= NEWS
        before = set(new)
        known = [key for key in self.table.keys_of(rows) if key not in before] if others else []
        for watcher in self._watchers:
            for keys, is_new in ((new, True), (known, False)):
                if keys:
                    watcher(keys, is_new)

    def _confirm(self, node: NodeIndex, row: int, *, on_disk: bool = False) -> None:
        """The node has named it: whatever was to be forgotten of it before, this is not."""
        if self._doomed and (doomed := self._doomed.get((node, on_disk))) is not None:
            doomed.discard(row)
        if self._confirmed and (confirmed := self._confirmed.get((node, on_disk))) is not None:
            confirmed.append(row)

    def _confirm_all(self, node: NodeIndex, rows: Rows, *, on_disk: bool) -> None:
        if self._doomed and (doomed := self._doomed.get((node, on_disk))) is not None:
            doomed.difference_update(rows.tolist())
        if self._confirmed and (confirmed := self._confirmed.get((node, on_disk))) is not None:
            confirmed.frombytes(rows.astype(np.int32).tobytes())

    def _doom(self, node: NodeIndex, on_disk: bool, rows: Rows) -> None:
        if len(rows):
            self._doomed.setdefault((node, on_disk), set()).update(rows.tolist())

    def _closes_cycle(self, facts: ChunkFacts | Record) -> bool:
        """The chunk's parent hangs on the chunk itself. That takes children: without them nothing is looked at."""
        own = self.table.row(facts.key)
        if own == NONE or facts.parent is None or self.table.first_child[own] == NONE:
            return False
        at = self.table.row(facts.parent)
        while at not in (NONE, own):
            at = self.table.parents[at]
        return at == own

    def _agree(self, rows: Rows, said: Columns, at: Rows) -> npt.NDArray[np.bool_]:
        """Which of these rows have chunks, all with the same bytes, that are those of these places."""
        table = self.table
        numbers = np.array([table.namespaces.find(name) for name in said.names], np.int64)
        flags = np.frombuffer(table.flags, np.uint8)[rows]
        digests = np.frombuffer(table.digests, np.uint8).reshape(-1, DIGEST_BYTES_MAX)
        found: npt.NDArray[np.bool_] = flags & (KNOWN | _PINNED | _DISSENT) == KNOWN
        found &= np.frombuffer(table.sizes, np.uint64)[rows] == said.sizes[at]
        found &= np.frombuffer(table.namespace_numbers, np.uint32)[rows] == numbers[said.indexes[at]]
        found &= (digests[rows, : said.digests.shape[1]] == said.digests[at]).all(axis=1)
        return found

    def _in_order(self, said: Columns, new: Rows) -> Rows:
        """Those of these places whose parents are not named after them: they cannot close a cycle, because nothing
        hangs on them yet."""
        places = {key: at for at, key in enumerate(said.keys)}
        parents = said.parents_of(new)
        return new[[places.get(parent, NONE) < at for at, parent in zip(new.tolist(), parents, strict=True)]]

    def _hang_all(self, said: Columns, rows: Rows, new: Rows) -> None:
        """The new ones hang on their parents from now on."""
        table, last, last_key = self.table, NONE, ROOT_KEY
        for at, row, parent in zip(new.tolist(), rows[new].tolist(), said.parents_of(new), strict=True):
            if parent != ROOT_KEY:
                table.hang(row, last if parent == last_key else table.place(parent))
            last, last_key = row, said.keys[at]
            for _, added in self._followers:
                added(last_key, row)
        self._extend()

    def _insert(self, facts: ChunkFacts | Record, row: int) -> int:
        row = self.table.make(facts.key) if row == NONE else row
        self._know(row, facts)
        self.size_bytes += facts.size_bytes
        return row

    def _know(self, row: int, facts: ChunkFacts | Record) -> None:
        self.table.know(row, facts.parent, facts.size_bytes, facts.digest, facts.position, facts.namespace)
        self._extend()

    def _extend(self) -> None:
        """As many rows as the table has."""
        if (missing := len(self.table) - len(self._told)) > 0:
            self._copies.extend(missing)
            self._told.extend(array("d", [math.nan]) * missing)

    def _differs(self, row: int, facts: ChunkFacts | Record) -> bool:
        """Whether they are not of the same copy."""
        table = self.table
        if table.sizes[row] != facts.size_bytes or table.digest(row) != facts.digest:
            return True
        known = table.namespace(row)
        return known != facts.namespace and self._apart(known, facts.namespace)

    def _leave_dissent(self, row: int, key: ChunkKey, node: NodeIndex) -> bool:
        """The node's other bytes are gone, or no longer other. True if it had any."""
        if not self.table.flags[row] & _DISSENT or (facts := self._dissenters[key].pop(node, None)) is None:
            return False
        if not self._dissenters[key]:
            del self._dissenters[key]
            self._flag(row, _DISSENT, on=False)
        self._dissents.get(node, set()).discard(key)
        self._left.setdefault(key, set()).add(facts.namespace)
        self._note(key, row)
        return True

    def _replace_facts(self, row: int, facts: ChunkFacts) -> None:
        self._left.setdefault(facts.key, set()).add(self.table.namespace(row))
        self.size_bytes += facts.size_bytes - self.table.sizes[row]
        self._know(row, facts)
        self._note(facts.key, row)

    def _drop_unless_available(self, row: int, key: ChunkKey) -> None:
        """A chunk that lost its last copy takes up a dissenter's bytes, or goes."""
        table = self.table
        if self._copies.in_pool[row] or self._copies.on_disk[row] or table.flags[row] & _SERVED:
            return
        for node in [one for one, facts in self._dissenters.get(key, {}).items() if self._closes_cycle(facts)]:
            self._leave_dissent(row, key, node)
        if key in self._dissenters:
            node, facts = next(iter(self._dissenters[key].items()))
            self._leave_dissent(row, key, node)
            self._replace_facts(row, facts)
            self._copies.hold(row, node)
            for other, theirs in list(self._dissenters.get(key, {}).items()):
                if not self._differs(row, theirs):
                    self._leave_dissent(row, key, other)
                    self._copies.hold(row, other)
            return
        self._left.setdefault(key, set()).add(table.namespace(row))
        self.size_bytes -= table.sizes[row]
        table.forget(row)
        self._told[row] = math.nan
        self._note(key, row, is_new_or_lost=True)
        table.release(row)
