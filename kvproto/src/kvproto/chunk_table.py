"""What is known of many chunks, in columns: 90 bytes a chunk where objects and dictionaries take a thousand. Pure.

A chunk has a row while it is known or while known chunks hang on it. A row says what every true copy agrees on, and how
the chunk hangs in the tree of prefixes; who has copies belongs to the owner of the table. Columns are `array`s, because
Python reads one element of them in a third of the time that numpy takes; numpy may look at a whole column.

Keys are found by open addressing in SHARDS small tables. One large table, or one dictionary, would stand still for
tens of milliseconds whenever it grows.
"""

from __future__ import annotations

from array import array
from collections.abc import Hashable, Iterable, Iterator, Sequence
from typing import Final, Generic, TypeAlias, TypeVar, cast

import numpy as np
import numpy.typing as npt

from kvchunk.ids import KEY_BYTES, ChunkKey, Digest
from kvproto.integrity import DIGEST_BYTES_MAX, OUTPUT_BYTES

NONE: Final = -1
"""No row."""
KNOWN: Final = 1
"""The flag of a row whose chunk is known; other flags are its owner's."""
KEPT: Final = 64
"""The flag of a row that stays although its chunk may not be known."""
NEWS: Final = 128
"""The same, because there is something to tell of it."""
_STAYS: Final = KEPT | NEWS
SHARDS: Final = 1024
_SHARD_BITS: Final = SHARDS.bit_length() - 1
_LEFT: Final = -2
"""A place in a shard whose key is gone."""
_PLACES_MIN: Final = 8
_ROWS_MIN: Final = 64
_ROWS_MORE: Final = 16
"""Columns grow by a sixteenth."""
_NO_PLACES: Final = array("i", [NONE])

Rows: TypeAlias = npt.NDArray[np.int64]

T = TypeVar("T", bound=Hashable)


class Interned(Generic[T]):
    """Values that many rows have alike, each kept once under a number; number 0 is the empty one."""

    def __init__(self, empty: T) -> None:
        self.values: list[T] = [empty]
        """By number, to be read. A number that is free keeps the empty value."""
        self._numbers: dict[T, int] = {empty: 0}
        self._counts = array("q", [0])
        self._free: list[int] = []

    def __len__(self) -> int:
        return len(self._numbers)

    def find(self, value: T) -> int:
        """The number of a value; NONE: no row has it."""
        return self._numbers.get(value, NONE)

    def take(self, value: T, count: int = 1) -> int:
        """So many more rows have this value."""
        number = self._numbers.get(value)
        if number is None:
            if self._free:
                number = self._free.pop()
                self.values[number] = value
            else:
                number = len(self.values)
                self.values.append(value)
                self._counts.append(0)
            self._numbers[value] = number
        self._counts[number] += count
        return number

    def drop(self, number: int, count: int = 1) -> None:
        """So many rows less have the value of this number."""
        self._counts[number] -= count
        if number and not self._counts[number]:
            del self._numbers[self.values[number]]
            self.values[number] = self.values[0]
            self._free.append(number)


class ChunkTable:
    """Owns rows, their keys, the facts of chunks, and who hangs on whom."""

    def __init__(self) -> None:
        self._shards: list[array[int]] = [_NO_PLACES] * SHARDS
        self._taken = array("i", bytes(4 * SHARDS))
        """Places of each shard that are not empty, those whose key is gone among them."""
        self._free_row = NONE
        """Free rows hang on each other by their parents."""
        self._fresh = 0
        """Rows from here on were never used."""
        self._last = NONE
        """The row of the chunk that was known last: mostly the parent of the next."""
        self.count = 0
        """Chunks that are known."""
        self.keys = bytearray()
        self.flags = bytearray()
        self.parents = array("i")
        self.sizes = array("Q")
        self.positions = array("I")
        self.first_child = array("i")
        self._next = array("i")
        self._previous = array("i")
        self.digests = bytearray()
        self.namespace_numbers = array("I")
        self.namespaces: Interned[str] = Interned("")

    # -- reading

    def __len__(self) -> int:
        """Rows that there is room for: other columns are as long."""
        return len(self.flags)

    def row(self, key: ChunkKey) -> int:
        """The row of a key, whose chunk need not be known; NONE: it has none."""
        number, keys, wanted = hash(key), self.keys, bytes(key)
        places = self._shards[number & (SHARDS - 1)]
        mask = len(places) - 1
        at = (number >> _SHARD_BITS) & mask
        while (row := places[at]) != NONE:
            if row >= 0 and keys[row * KEY_BYTES : (row + 1) * KEY_BYTES] == wanted:
                return row
            at = (at + 1) & mask
        return NONE

    def keys_of(self, rows: Rows) -> list[ChunkKey]:
        """The keys of many rows."""
        found = np.frombuffer(self.keys, np.uint8).reshape(-1, KEY_BYTES)[rows].tobytes()
        return cast("list[ChunkKey]", [found[at : at + KEY_BYTES] for at in range(0, len(found), KEY_BYTES)])

    def key(self, row: int) -> ChunkKey:
        """The key of a row."""
        return ChunkKey(bytes(self.keys[row * KEY_BYTES : (row + 1) * KEY_BYTES]))

    def digest(self, row: int) -> Digest:
        """Of the chunk of a row that is known."""
        at = row * DIGEST_BYTES_MAX
        return Digest(bytes(self.digests[at : at + 1 + OUTPUT_BYTES.get(self.digests[at], -1)]))

    def namespace(self, row: int) -> str:
        """Of the chunk of a row that is known."""
        return self.namespaces.values[self.namespace_numbers[row]]

    def children(self, row: int) -> Iterator[int]:
        """Rows of the chunks that hang on this one. The table must not change meanwhile."""
        at = self.first_child[row]
        while at != NONE:
            yield at
            at = self._next[at]

    def only_child(self, row: int) -> int:
        """The row of the one chunk that hangs on this one; NONE: there is none, or there are several."""
        first = self.first_child[row]
        return first if first != NONE and self._next[first] == NONE else NONE

    # -- changing

    def place(self, key: ChunkKey) -> int:
        """The row of a key; it gets one if it has none."""
        row = self.row(key)
        return self.make(key) if row == NONE else row

    def make(self, key: ChunkKey) -> int:
        """A row for a key that has none."""
        row = self._take_row(key)
        self._enter(key, row)
        return row

    def place_all(self, keys: Iterable[ChunkKey]) -> tuple[list[int], list[int]]:
        """The row of each key; it gets one if it has none. And the places of those that had none. Without a call for
        each, because announcements name many."""
        shards, taken, all_keys = self._shards, self._taken, self.keys
        rows: list[int] = []
        made: list[int] = []
        for key in keys:
            number = hash(key)
            shard = number & (SHARDS - 1)
            places = shards[shard]
            mask = len(places) - 1
            at = (number >> _SHARD_BITS) & mask
            while (row := places[at]) != NONE:
                if row >= 0 and all_keys.startswith(key, row * KEY_BYTES):
                    break
                at = (at + 1) & mask
            else:
                row = self._take_row(key)
                if 3 * (taken[shard] + 1) > 2 * len(places):
                    self._enter(key, row)
                else:
                    places[at] = row
                    taken[shard] += 1
                made.append(len(rows))
            rows.append(row)
        return rows, made

    def know(
        self, row: int, parent: ChunkKey | None, size_bytes: int, digest: Digest, position: int, namespace: str
    ) -> None:
        """The chunk of a row is known so from now on."""
        flags = self.flags[row]
        number = self.namespaces.take(namespace)
        if flags & KNOWN:
            self.namespaces.drop(self.namespace_numbers[row])
        else:
            self.flags[row] = flags | KNOWN
            self.count += 1
        self.namespace_numbers[row] = number
        self.sizes[row], self.positions[row] = size_bytes, position
        at = row * DIGEST_BYTES_MAX
        self.digests[at : at + DIGEST_BYTES_MAX] = digest.ljust(DIGEST_BYTES_MAX, b"\0")
        if parent is None:
            above = NONE
        elif self._last != NONE and self.keys.startswith(parent, self._last * KEY_BYTES):
            above = self._last
        else:
            above = self.place(parent)
        self._last = row
        if above != self.parents[row]:
            self._unhang(row)
            self.hang(row, above)

    def know_new(
        self,
        rows: Rows,
        sizes: npt.NDArray[np.uint64],
        digests: npt.NDArray[np.uint8],
        positions: npt.NDArray[np.uint32],
        names: Sequence[str],
        indexes: npt.NDArray[np.uint32],
    ) -> None:
        """The chunks of these rows, of which none was known, are known so from now on, and hang on nothing yet.
        `digests`: a row a chunk; `indexes`: of `names`, their namespaces."""
        counts = np.bincount(indexes, minlength=len(names)).tolist()
        numbers = [self.namespaces.take(name, count) if count else 0 for name, count in zip(names, counts, strict=True)]
        for column, found in (
            (self.sizes, sizes),
            (self.positions, positions),
            (self.namespace_numbers, np.array(numbers, np.uint32)[indexes]),
        ):
            np.frombuffer(column, found.dtype)[rows] = found
        all_digests = np.frombuffer(self.digests, np.uint8).reshape(-1, DIGEST_BYTES_MAX)
        all_digests[rows, : digests.shape[1]] = digests
        all_digests[rows, digests.shape[1] :] = 0
        np.frombuffer(self.flags, np.uint8)[rows] |= KNOWN
        self.count += len(rows)

    def hang(self, row: int, parent: int) -> None:
        """A chunk that hangs on nothing hangs on this one from now on (NONE: on nothing)."""
        self.parents[row] = parent
        if parent == NONE:
            return
        first = self.first_child[parent]
        self._next[row], self._previous[row] = first, NONE
        if first != NONE:
            self._previous[first] = row
        self.first_child[parent] = row

    def forget(self, row: int) -> None:
        """The chunk of a row is not known any more. Its row, where something hangs on it, stays until `release`."""
        self.flags[row] &= _STAYS
        self.count -= 1
        self.namespaces.drop(self.namespace_numbers[row])
        self._unhang(row)

    def release(self, row: int) -> None:
        """Free a row, unless its chunk is known, it stays, or something hangs on it."""
        if self.flags[row] & (KNOWN | _STAYS) or self.first_child[row] != NONE:
            return
        self._leave(row)
        self._last = NONE
        self.parents[row], self._free_row = self._free_row, row

    # -- inside

    def _take_row(self, key: ChunkKey) -> int:
        """A row that has this key from now on, but is not found by it."""
        row = self._free_row
        if row == NONE:
            row = self._fresh
            if row == len(self.flags):
                self._extend()
            self._fresh += 1
        else:
            self._free_row = self.parents[row]
            self.parents[row] = NONE
        self.keys[row * KEY_BYTES : (row + 1) * KEY_BYTES] = key
        return row

    def _extend(self) -> None:
        """More rows in every column."""
        more = max(_ROWS_MIN, len(self.flags) // _ROWS_MORE)
        self.keys += bytes(more * KEY_BYTES)
        self.flags += bytes(more)
        self.digests += bytes(more * DIGEST_BYTES_MAX)
        for column in (self.parents, self.first_child, self._next, self._previous):
            column.extend(array("i", [NONE]) * more)
        for column in (self.sizes, self.positions, self.namespace_numbers):
            column.frombytes(bytes(more * column.itemsize))

    def _unhang(self, row: int) -> None:
        parent = self.parents[row]
        if parent == NONE:
            return
        after, before = self._next[row], self._previous[row]
        if after != NONE:
            self._previous[after] = before
        if before != NONE:
            self._next[before] = after
        else:
            self.first_child[parent] = after
        self.parents[row] = self._next[row] = self._previous[row] = NONE
        self.release(parent)

    def _enter(self, key: ChunkKey, row: int) -> None:
        number = hash(key)
        shard = number & (SHARDS - 1)
        places = self._shards[shard]
        if 3 * (self._taken[shard] + 1) > 2 * len(places):
            places = self._grow(shard)
        mask = len(places) - 1
        at = (number >> _SHARD_BITS) & mask
        while (there := places[at]) >= 0:
            at = (at + 1) & mask
        places[at] = row
        self._taken[shard] += there == NONE

    def _leave(self, row: int) -> None:
        number = hash(self.key(row))
        places = self._shards[number & (SHARDS - 1)]
        mask = len(places) - 1
        at = (number >> _SHARD_BITS) & mask
        while places[at] != row:
            at = (at + 1) & mask
        places[at] = _LEFT

    def _grow(self, shard: int) -> array[int]:
        """A shard with room, without the places of keys that are gone."""
        rows = [row for row in self._shards[shard] if row >= 0]
        size = _PLACES_MIN
        while size < 2 * (len(rows) + 1):
            size *= 2
        places = array("i", [NONE]) * size
        keys = memoryview(self.keys).toreadonly()
        for row in rows:
            at = (hash(bytes(keys[row * KEY_BYTES : (row + 1) * KEY_BYTES])) >> _SHARD_BITS) & (size - 1)
            while places[at] != NONE:
                at = (at + 1) & (size - 1)
            places[at] = row
        self._shards[shard], self._taken[shard] = places, len(rows)
        return places
