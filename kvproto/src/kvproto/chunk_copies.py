"""Which nodes have copies of the chunks of which rows of a `ChunkTable`. Pure.

Most chunks of a prefix have the same holders, so each set of holders is kept once.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Hashable
from typing import Generic, TypeVar

import numpy as np
import numpy.typing as npt

from kvproto.chunk_table import NONE, Interned, Rows

N = TypeVar("N", bound=Hashable)


class Copies(Generic[N]):
    """Owns the sets of nodes that have a row's chunk in their pools and on their disks, and how many each has."""

    def __init__(self) -> None:
        self._hosts: Interned[frozenset[N]] = Interned(frozenset())
        self.in_pool = array("I")
        self.on_disk = array("I")
        """Numbers of the sets, to be read."""
        self.held: Counter[N] = Counter()
        self.held_on_disk: Counter[N] = Counter()
        self.last: Counter[N] = Counter()
        """Chunks that only this node has, in its pool or on its disk."""
        self.count = 0
        """In hosts' pools, of all chunks together."""

    def extend(self, missing: int) -> None:
        """So many more rows."""
        self.in_pool.frombytes(bytes(4 * missing))
        self.on_disk.frombytes(bytes(4 * missing))

    # -- reading

    def numbered(self, number: int) -> frozenset[N]:
        """The set of nodes that has this number."""
        return self._hosts.values[number]

    def of(self, row: int) -> tuple[frozenset[N], frozenset[N]]:
        """Nodes that have a row's chunk in their pools, and on their disks."""
        values = self._hosts.values
        return values[self.in_pool[row]], values[self.on_disk[row]]

    def has(self, node: N, row: int, *, on_disk: bool) -> bool:
        """Whether a node has the chunk there."""
        return node in self._hosts.values[(self.on_disk if on_disk else self.in_pool)[row]]

    def rows_of(self, node: N, *, on_disk: bool) -> Rows:
        """All that a node has there."""
        has = np.fromiter((node in hosts for hosts in self._hosts.values), np.bool_, len(self._hosts.values))
        return np.flatnonzero(has[_numbers(self.on_disk if on_disk else self.in_pool)])

    def last_rows(self, node: N) -> Rows:
        """Those that no other host has."""
        alone = self._hosts.find(frozenset((node,)))
        if alone == NONE:
            return np.zeros(0, np.int64)
        in_pool, on_disk = _numbers(self.in_pool), _numbers(self.on_disk)
        others = ((in_pool != alone) & (in_pool != 0)) | ((on_disk != alone) & (on_disk != 0))
        return np.flatnonzero(((in_pool == alone) | (on_disk == alone)) & ~others)

    # -- changing

    def hold(self, row: int, node: N, *, on_disk: bool = False, holds: bool = True) -> None:
        """A node has a copy from now on, or (not `holds`) has it no longer."""
        column, counts = (self.on_disk, self.held_on_disk) if on_disk else (self.in_pool, self.held)
        number = column[row]
        hosts = self._hosts.values[number]
        before = self._only_host(row)
        column[row] = self._hosts.take(hosts | {node} if holds else hosts - {node})
        self._hosts.drop(number)
        counts[node] += 1 if holds else -1
        if not counts[node]:
            del counts[node]
        if not on_disk:
            self.count += 1 if holds else -1
        after = self._only_host(row)
        if before != after:
            for host, change in ((before, -1), (after, 1)):
                if host is not None:
                    self.last[host] += change

    def hold_all(self, rows: Rows, node: N, *, on_disk: bool) -> npt.NDArray[np.bool_]:
        """A node has these from now on, each named once. Which of them it did not have."""
        mine, beside = (self.on_disk, self.in_pool) if on_disk else (self.in_pool, self.on_disk)
        pairs = np.frombuffer(mine, np.uint32)[rows].astype(np.uint64) << np.uint64(32)
        pairs |= np.frombuffer(beside, np.uint32)[rows]
        kinds, places, counts = np.unique(pairs, return_inverse=True, return_counts=True)
        values, taken, added = self._hosts.values, np.zeros(len(kinds), np.uint32), 0
        for at, (kind, count) in enumerate(zip(kinds.tolist(), counts.tolist(), strict=True)):
            number = taken[at] = kind >> 32
            hosts = values[number]
            if node in hosts:
                continue
            before = hosts | values[kind & 0xFFFFFFFF]
            taken[at] = self._hosts.take(hosts | {node}, count)
            self._hosts.drop(number, count)
            added += count
            if len(before) == 1:
                self.last[next(iter(before))] -= count
            if before <= {node}:
                self.last[node] += count
        np.frombuffer(mine, np.uint32)[rows] = taken[places]
        if added:
            (self.held_on_disk if on_disk else self.held)[node] += added
        if not on_disk:
            self.count += added
        is_new: npt.NDArray[np.bool_] = taken[places] != pairs >> np.uint64(32)
        return is_new

    def _only_host(self, row: int) -> N | None:
        """The host that has the only copies of a chunk; None: there are several, or none."""
        in_pool, on_disk = self.of(row)
        hosts = in_pool | on_disk
        return next(iter(hosts)) if len(hosts) == 1 else None


def _numbers(column: array[int]) -> npt.NDArray[np.uint32]:
    """A copy of a column: an array that numpy looks into cannot grow."""
    return np.array(column, np.uint32)
