"""Chunks of prompts that an engine has seen, and which of them routers know to be on its node. Pure.

A router follows a prompt from its beginning, so a chunk helps it only if it has the chunk before. A chunk is announced
when the node has it and all chunks before it, and withdrawn when the node loses one of them, for whatever reason.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence, Set
from dataclasses import dataclass
from typing import Generic, TypeVar

from kvchunk.ids import ChunkKey

F = TypeVar("F")
"""What routers learn about a chunk."""


@dataclass(frozen=True, slots=True)
class Change(Generic[F]):
    """A chunk to announce to routers, or to withdraw."""

    is_here: bool
    facts: F


@dataclass(frozen=True, slots=True)
class _Seen(Generic[F]):
    parent: ChunkKey | None
    position: int
    facts: F


class WatchedChunks(Generic[F]):
    """A bounded memory of chunks. At its bound it forgets those seen longest ago, the last chunks of a prompt first."""

    def __init__(self, chunks_max: int) -> None:
        self._chunks_max = chunks_max
        self._seen: OrderedDict[ChunkKey, _Seen[F]] = OrderedDict()
        self._announced: set[ChunkKey] = set()

    def keys(self) -> list[ChunkKey]:
        """All watched chunks."""
        return list(self._seen)

    def prompt_seen(self, keys: Sequence[ChunkKey], facts: Sequence[F]) -> list[Change[F]]:
        """The engine has had a prompt of these chunks, in prefix order."""
        for position in reversed(range(len(keys))):
            key = keys[position]
            if key in self._seen:
                self._seen.move_to_end(key)
            else:
                self._seen[key] = _Seen(keys[position - 1] if position else None, position, facts[position])
        changes: list[Change[F]] = []
        while len(self._seen) > self._chunks_max:
            key, forgotten = self._seen.popitem(last=False)
            if key in self._announced:
                self._announced.remove(key)
                changes.append(Change(False, forgotten.facts))
        return changes

    def presence_changed(self, present: Set[ChunkKey]) -> list[Change[F]]:
        """The node has exactly these of the watched chunks now. A chunk is announced after the one before it, and
        withdrawn before that one."""
        in_order = sorted(self._seen.items(), key=lambda item: item[1].position)
        shown: set[ChunkKey] = set()
        for key, seen in in_order:
            if key in present and (seen.parent is None or seen.parent in shown):
                shown.add(key)
        gone, come = self._announced - shown, shown - self._announced
        self._announced = shown
        taken_back = [Change(False, seen.facts) for key, seen in reversed(in_order) if key in gone]
        return taken_back + [Change(True, seen.facts) for key, seen in in_order if key in come]
