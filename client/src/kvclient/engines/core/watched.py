"""Chunks of prompts that an engine has seen, and which of them routers were told are on its node. Pure.

A router follows a prompt from its beginning, so a chunk is of use to it only behind the chunk before. A chunk is told
when it and all before it are here, and taken back when it or one before it has gone, whoever brought or took it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence, Set
from dataclasses import dataclass
from typing import Generic, TypeVar

from kvchunk.ids import ChunkKey

F = TypeVar("F")
"""What is told of a chunk."""


@dataclass(frozen=True, slots=True)
class Change(Generic[F]):
    """A chunk that routers are to be told of, or to forget."""

    is_here: bool
    facts: F


@dataclass(frozen=True, slots=True)
class _Seen(Generic[F]):
    parent: ChunkKey | None
    position: int
    facts: F


class WatchedChunks(Generic[F]):
    """A bounded memory of chunks. Beyond its bound those are forgotten that were not seen for longest, last ones of a
    prompt first."""

    def __init__(self, chunks_max: int) -> None:
        self._chunks_max = chunks_max
        self._seen: OrderedDict[ChunkKey, _Seen[F]] = OrderedDict()
        self._told: set[ChunkKey] = set()

    def keys(self) -> list[ChunkKey]:
        """All chunks that are watched."""
        return list(self._seen)

    def saw(self, keys: Sequence[ChunkKey], facts: Sequence[F]) -> list[Change[F]]:
        """The engine had a prompt of these chunks, in prefix order."""
        for position in reversed(range(len(keys))):
            key = keys[position]
            if key in self._seen:
                self._seen.move_to_end(key)
            else:
                self._seen[key] = _Seen(keys[position - 1] if position else None, position, facts[position])
        changes: list[Change[F]] = []
        while len(self._seen) > self._chunks_max:
            key, forgotten = self._seen.popitem(last=False)
            if key in self._told:
                self._told.remove(key)
                changes.append(Change(False, forgotten.facts))
        return changes

    def here(self, present: Set[ChunkKey]) -> list[Change[F]]:
        """Which of the watched chunks are on this node now. A chunk is told behind the one before it, and taken back
        before that one."""
        in_order = sorted(self._seen.items(), key=lambda item: item[1].position)
        shown: set[ChunkKey] = set()
        for key, seen in in_order:
            if key in present and (seen.parent is None or seen.parent in shown):
                shown.add(key)
        gone, come = self._told - shown, shown - self._told
        self._told = shown
        taken_back = [Change(False, seen.facts) for key, seen in reversed(in_order) if key in gone]
        return taken_back + [Change(True, seen.facts) for key, seen in in_order if key in come]
