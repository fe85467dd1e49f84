"""The directory's prefix tree as runs: chains of chunks from a root or a branch to the next branch or end. Pure.

A chunk continues its parent's run if it is the only child. What requests share, they share as whole runs, so a run is
what a person calls a prefix. Runs are kept as chunks come and go. A chunk that makes a branch cuts a run in two, one
that takes a branch away joins two runs: the shorter of both is relabelled, found by walking in both directions at once.
"""

from __future__ import annotations

from collections.abc import Iterator, Set
from dataclasses import dataclass, field
from itertools import islice

from controlplane.core.directory import Directory
from controlplane.core.ids import ChunkKey
from controlplane.core.live.figures import Activity


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


@dataclass(slots=True, eq=False)
class _Place:
    """What this knows of a chunk."""

    run: Run
    parent: ChunkKey | None
    size_bytes: int
    served: bool = False


@dataclass(slots=True)
class Runs:
    """The runs of a directory, which is empty when this is made."""

    directory: Directory
    moves: int = 0
    """Chunks that changed from one run to another, so far."""
    _places: dict[ChunkKey, _Place] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.directory.watch(self._changed)

    def run_of(self, key: ChunkKey) -> Run | None:
        """The run that a chunk of the directory belongs to."""
        place = self._places.get(key)
        return None if place is None else place.run

    def _changed(self, key: ChunkKey, is_new_or_lost: bool) -> None:
        chunk, place = self.directory.get(key), self._places.get(key)
        if chunk is None:
            self._went(key)
            return
        facts = chunk.facts
        if place is None or (place.parent, place.size_bytes) != (facts.parent, facts.size_bytes):
            if place is not None:
                self._went(key)
            self._chunk_added(key, facts.parent, facts.size_bytes)
            place = self._places[key]
        if place.served != chunk.served:
            place.served = chunk.served
            place.run.served_chunks += 1 if chunk.served else -1

    def _chunk_added(self, key: ChunkKey, parent: ChunkKey | None, size_bytes: int) -> None:
        self._places[key] = _Place(Run(key, 1, size_bytes), parent, size_bytes)
        if (below := self._only_child(key)) is not None:
            self._join(key, below)
        if parent not in self._places or parent is None:
            return
        siblings = self._children(parent)
        if len(siblings) == 1:
            self._join(parent, key)
        elif len(siblings) == 2:
            self._cut(next(one for one in siblings if one != key))

    def _went(self, key: ChunkKey) -> None:
        if (below := self._only_child(key)) is not None:
            self._cut(below)
        place = self._places.pop(key)
        run, parent = place.run, place.parent
        run.chunks -= 1
        run.size_bytes -= place.size_bytes
        run.served_chunks -= place.served
        if parent is not None and parent in self._places and run.first == key:
            # It was one of several branches; the last one that is left is none any more.
            siblings = self._children(parent)
            if len(siblings) - (key in siblings) == 1:
                self._join(parent, next(one for one in siblings if one != key))

    def _children(self, key: ChunkKey) -> Set[ChunkKey]:
        """Of a chunk of the directory without a copy of them: there may be many."""
        chunk = self.directory.get(key)
        return self.directory.children(key) if chunk is None else chunk.children

    def _only_child(self, key: ChunkKey) -> ChunkKey | None:
        children = self._children(key)
        if len(children) != 1:
            return None
        (child,) = children
        return child if child in self._places else None

    def _cut(self, first: ChunkKey) -> None:
        """A run begins here from now on."""
        run = self._places[first].run
        if run.first == first:
            return
        lower, upper = [first], [self._above(first)]
        while True:
            below = self._only_child(lower[-1])
            if below is None or self._places[below].run is not run:
                break
            if upper[-1] == run.first:
                # The upper part is the shorter one.
                rest = Run(run.first)
                run.first = first
                _give_activity(run, rest)
                self._move(upper, rest)
                return
            lower.append(below)
            upper.append(self._above(upper[-1]))
        self._move(lower, Run(first))

    def _join(self, above: ChunkKey, first: ChunkKey) -> None:
        """The run that begins with `first` goes on the one that ends with `above`."""
        upper, lower = self._places[above].run, self._places[first].run
        if lower is upper or lower.first != first:
            return
        if lower.chunks <= upper.chunks:
            _give_activity(lower, upper)
            self._move(list(islice(self._downwards(first), lower.chunks)), upper)
        else:
            _give_activity(upper, lower)
            lower.first = upper.first
            self._move(list(islice(self._upwards(above), upper.chunks)), lower)

    def _above(self, key: ChunkKey) -> ChunkKey:
        parent = self._places[key].parent
        if parent is None:
            raise AssertionError("a run has its chunks in a row")
        return parent

    def _downwards(self, key: ChunkKey) -> Iterator[ChunkKey]:
        at: ChunkKey | None = key
        while at is not None:
            yield at
            at = self._only_child(at)

    def _upwards(self, key: ChunkKey) -> Iterator[ChunkKey]:
        at: ChunkKey | None = key
        while at is not None:
            yield at
            at = self._places[at].parent

    def _move(self, keys: list[ChunkKey], run: Run) -> None:
        for key in keys:
            place = self._places[key]
            for one, sign in ((place.run, -1), (run, 1)):
                one.chunks += sign
                one.size_bytes += sign * place.size_bytes
                one.served_chunks += sign * place.served
            place.run = run
        self.moves += len(keys)


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
