"""The directory's prefix tree as runs: chains of chunks from a root or a branch to the next branch or end. Pure.

A chunk continues its parent's run if it is the only child. What requests share, they share as whole runs, so a run is
what a person calls a prefix. Runs are kept as chunks come and go. A chunk that makes a branch cuts a run in two, one
that takes a branch away joins two runs: the shorter of both is relabelled, found by walking in both directions at once.

The prefixes that are fetched most, with what became of their fetches. Pure.
"""

from __future__ import annotations

import heapq
from array import array
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Final

from controlplane.core.directory import Directory
from controlplane.core.ids import ChunkKey, NodeIndex
from controlplane.core.live.figures import Activity, count_delivered
from controlplane.core.nodes import Node
from kvproto.chunk_table import KNOWN, NONE
from kvproto.rpc import control_pb2 as rpc


@dataclass(slots=True, eq=False)
class Run:
    """A chain of chunks in which each has one child, shown as one row."""

    first: ChunkKey
    """Next to the root."""
    chunks: int = 0
    size_bytes: int = 0
    served_chunks: int = 0
    """The switch serves so many of them."""
    activity: RunActivity | None = None
    """What was fetched of it; None: nothing, for as long as that is remembered. Of a run that is cut, the part next to
    the root keeps it."""


@dataclass(slots=True, eq=False)
class RunActivity(Activity):
    """What was fetched of a run; it finds its run again when that was cut or joined."""

    run: Run | None = None
    """None: it was taken into another run's."""


class Runs:
    """The runs of a directory, which is empty when this is made. What it knows of a chunk lies in the chunk's row."""

    def __init__(self, directory: Directory) -> None:
        self._table = directory.table
        self.moves = 0
        """Chunks that changed from one run to another, so far."""
        self._run_of: list[Run | None] = []
        self._parents = array("i")
        self._sizes = array("Q")
        self._served = bytearray()
        directory.follow(self._changed, self._chunk_added)
        self._is_served = directory.is_served

    def run_of(self, key: ChunkKey) -> Run | None:
        """The run that a chunk of the directory belongs to."""
        row = self._table.row(key)
        return self._run_at(row) if row != NONE else None

    def _run_at(self, row: int) -> Run | None:
        return self._run_of[row] if row < len(self._run_of) else None

    def _run(self, row: int) -> Run:
        run = self._run_of[row]
        if run is None:
            raise AssertionError("a run has its chunks in a row")
        return run

    def _changed(self, key: ChunkKey, row: int) -> None:
        table = self._table
        known = row < len(self._run_of) and self._run_of[row] is not None
        if not table.flags[row] & KNOWN:
            if known:
                self._went(row)
            return
        if not known or self._parents[row] != table.parents[row] or self._sizes[row] != table.sizes[row]:
            if known:
                self._went(row)
            self._chunk_added(key, row)
        served = self._is_served(row)
        if self._served[row] != served:
            self._served[row] = served
            self._run(row).served_chunks += 1 if served else -1

    def _chunk_added(self, key: ChunkKey, row: int) -> None:
        table, run_of = self._table, self._run_of
        parent = table.parents[row]
        if row >= len(run_of) or parent >= len(run_of):
            missing = len(table) - len(run_of)
            run_of.extend([None] * missing)
            self._parents.extend([NONE] * missing)
            self._sizes.extend([0] * missing)
            self._served.extend(bytes(missing))
        size_bytes = self._sizes[row] = table.sizes[row]
        self._parents[row], self._served[row] = parent, 0
        above = run_of[parent] if parent != NONE else None
        if above is not None and table.only_child(parent) == row and table.first_child[row] == NONE:
            # It goes on where its parent's run ended: nearly every chunk does.
            run_of[row] = above
            above.chunks += 1
            above.size_bytes += size_bytes
            return
        run_of[row] = Run(key, 1, size_bytes)
        if (below := self._only_child(row)) != NONE:
            self._join(row, below)
        if above is None:
            return
        siblings = list(islice(table.children(parent), 3))
        if len(siblings) == 1:
            self._join(parent, row)
        elif len(siblings) == 2:
            self._cut(next(one for one in siblings if one != row))

    def _went(self, row: int) -> None:
        if (below := self._only_child(row)) != NONE:
            self._cut(below)
        run, parent = self._run(row), self._parents[row]
        self._run_of[row] = None
        run.chunks -= 1
        run.size_bytes -= self._sizes[row]
        run.served_chunks -= self._served[row]
        if parent != NONE and self._run_of[parent] is not None and run.first == self._table.key(row):
            # It was one of several branches; the last one that is left is none any more.
            siblings = [one for one in islice(self._table.children(parent), 3) if one != row]
            if len(siblings) == 1:
                self._join(parent, siblings[0])

    def _only_child(self, row: int) -> int:
        child = self._table.only_child(row)
        return child if child != NONE and self._run_at(child) is not None else NONE

    def _cut(self, first: int) -> None:
        """A run begins here from now on."""
        run, key = self._run(first), self._table.key(first)
        if run.first == key:
            return
        lower, upper = [first], [self._parents[first]]
        while True:
            below = self._only_child(lower[-1])
            if below == NONE or self._run_of[below] is not run:
                break
            if self._table.key(upper[-1]) == run.first:
                # The upper part is the shorter one.
                rest = Run(run.first)
                run.first = key
                _give_activity(run, rest)
                self._move(upper, rest)
                return
            lower.append(below)
            upper.append(self._parents[upper[-1]])
        self._move(lower, Run(key))

    def _join(self, above: int, first: int) -> None:
        """The run that begins with `first` goes on the one that ends with `above`."""
        upper, lower = self._run(above), self._run(first)
        if lower is upper or lower.first != self._table.key(first):
            return
        if lower.chunks <= upper.chunks:
            _give_activity(lower, upper)
            self._move(list(islice(self._downwards(first), lower.chunks)), upper)
        else:
            _give_activity(upper, lower)
            lower.first = upper.first
            self._move(list(islice(self._upwards(above), upper.chunks)), lower)

    def _downwards(self, row: int) -> Iterator[int]:
        while row != NONE:
            yield row
            row = self._only_child(row)

    def _upwards(self, row: int) -> Iterator[int]:
        while row != NONE:
            yield row
            row = self._parents[row]

    def _move(self, rows: list[int], run: Run) -> None:
        for row in rows:
            for one, sign in ((self._run(row), -1), (run, 1)):
                one.chunks += sign
                one.size_bytes += sign * self._sizes[row]
                one.served_chunks += sign * self._served[row]
            self._run_of[row] = run
        self.moves += len(rows)


def _give_activity(giver: Run, taker: Run) -> None:
    """What was fetched of one run counts as fetched of the other."""
    activity, giver.activity = giver.activity, None
    if activity is None:
        return
    if taker.activity is None:
        taker.activity, activity.run = activity, taker
    else:
        taker.activity.absorb(activity)
        activity.run = None


SHOWN: Final = 40
HOLDERS_SHOWN: Final = 8
KEPT: Final = 512
"""Runs left after forgetting those that were fetched least; twice as many begin the next."""


class Prefixes:
    """Activity of the runs of a directory."""

    def __init__(self, directory: Directory, runs: Runs) -> None:
        self._directory = directory
        self._runs = runs
        self._activities: list[RunActivity] = []
        self._last: dict[NodeIndex, tuple[RunActivity, int]] = {}
        """The run that each node last fetched of, and the position: one read names the chunks of a run in order."""

    def fetched(self, node: Node, fetch: rpc.FetchEvent, at_ns: int, *, rode_along: bool) -> None:
        """A node got a chunk of the directory, or had to recompute it."""
        key = ChunkKey(fetch.key)
        run, chunk = self._runs.run_of(key), self._directory.get(key)
        if run is None or chunk is None:
            return
        if run.activity is None:
            run.activity = RunActivity(run=run)
            self._activities.append(run.activity)
        activity = run.activity
        position = chunk.facts.position
        last, last_position = self._last.get(node.index, (None, 0))
        if last is not activity or position <= last_position:
            activity.reads += 1
            activity.rate.add(1.0, at_ns)
            activity.waited(fetch.waited_us / 1e3)
        self._last[node.index] = activity, position
        if fetch.source == rpc.SOURCE_CAST:
            activity.casts += not rode_along
            activity.riders += rode_along
        count_delivered(activity.delivered, fetch.source, fetch.bytes or chunk.facts.size_bytes)
        if len(self._activities) >= 2 * KEPT:
            self._forget_the_least()

    def node_forgotten(self, index: NodeIndex) -> None:
        """A node was forgotten."""
        self._last.pop(index, None)

    def rows(self, names: Callable[[Iterable[NodeIndex]], list[str]], now_ns: int) -> Iterator[rpc.PrefixView]:
        """The ones fetched most."""
        self._drop_dead()
        for activity in heapq.nsmallest(SHOWN, self._activities, key=_rank):
            run = activity.run
            first = None if run is None else self._directory.get(run.first)
            if run is None or first is None:
                continue
            yield rpc.PrefixView(
                first=run.first,
                position=first.facts.position,
                namespace=first.facts.namespace,
                chunks=run.chunks,
                size_bytes=run.size_bytes,
                served_chunks=run.served_chunks,
                holders=names(first.holders)[:HOLDERS_SHOWN],
                reads_per_s=activity.rate.per_s(now_ns),
                reads=activity.reads,
                casts=activity.casts,
                riders=activity.riders,
                delivered=rpc.Delivered(**activity.delivered),
                wait_ms=float(f"{activity.wait_ms:.3g}"),
            )

    def _drop_dead(self) -> None:
        """Of runs that have gone, or were taken into others."""
        for activity in self._activities:
            if activity.run is not None and activity.run.chunks == 0:
                activity.run.activity = None
                activity.run = None
        self._activities = [activity for activity in self._activities if activity.run is not None]

    def _forget_the_least(self) -> None:
        self._drop_dead()
        self._activities.sort(key=_rank)
        for activity in self._activities[KEPT:]:
            if activity.run is not None:
                activity.run.activity = None
        del self._activities[KEPT:]


def _rank(activity: RunActivity) -> tuple[float, bytes]:
    return -activity.rate.score(), activity.run.first if activity.run is not None else b""
