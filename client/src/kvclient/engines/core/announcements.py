"""What routers know of the pool, and what to announce to them next. Pure.

An engine announces chunks that it saved or found. It looks them up from time to time and withdraws those that the pool
no longer has.
"""

from __future__ import annotations

import enum
from array import array
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

from kvchunk.ids import ChunkKey
from kvclient.messages import Where


class Medium(enum.Enum):
    POOL = "pool"
    """In the DRAM of some node."""
    SWITCH = "switch"
    """Served by the switch itself."""


@dataclass(frozen=True, slots=True)
class ChunkFacts:
    """What routers learn about a chunk."""

    block_hashes: tuple[object, ...]
    """The engine's own, as its events carry them."""
    parent_hash: object | None
    tokens: array[int]
    adapter: str | None
    extra_keys: tuple[tuple[object, ...] | None, ...] | None = None
    """Per block: what its hash covers beyond the tokens (adapter, images, salt), as the engine's own events say it."""
    session: str | None = None
    """The session of the request for which the engine computed or looked up the chunk."""


@dataclass(frozen=True, slots=True)
class Stored:
    medium: Medium
    facts: ChunkFacts


@dataclass(frozen=True, slots=True)
class Removed:
    medium: Medium
    block_hashes: tuple[object, ...]


Announcement = Stored | Removed


@dataclass(slots=True)
class _Announced:
    keys: tuple[ChunkKey, ...]
    facts: ChunkFacts
    medium: Medium


class Announcements:
    """A bounded memory of announced chunks. At its bound the oldest is withdrawn: a router that does not know a
    chunk loses a hit, one that believes in a lost chunk sends requests to the wrong engine."""

    def __init__(self, chunks_max: int, *, tell_media_apart: bool = True) -> None:
        """`tell_media_apart`: false for routers that know only one medium for pools: every chunk is POOL then."""
        self._chunks_max = chunks_max
        self._tell_media_apart = tell_media_apart
        self._announced: OrderedDict[ChunkKey, _Announced] = OrderedDict()

    def __len__(self) -> int:
        return len(self._announced)

    def __contains__(self, key: ChunkKey) -> bool:
        return key in self._announced

    def keys(self) -> list[tuple[ChunkKey, ...]]:
        """Keys of each announced chunk, oldest first: what to look up for `sweep_ended`."""
        return [known.keys for known in self._announced.values()]

    def chunk_in_pool(self, keys: tuple[ChunkKey, ...], where: Where, facts: ChunkFacts) -> list[Announcement]:
        """The pool has a chunk (keys of all its shards)."""
        medium = self._medium(where)
        key = keys[0]
        known = self._announced.get(key)
        if known is not None:
            self._announced.move_to_end(key)
            return self._move(known, medium)
        self._announced[key] = _Announced(keys, facts, medium)
        events: list[Announcement] = [Stored(medium, facts)]
        if len(self._announced) > self._chunks_max:
            _, oldest = self._announced.popitem(last=False)
            events.append(Removed(oldest.medium, oldest.facts.block_hashes))
        return events

    def sweep_ended(self, chunks: Sequence[tuple[ChunkKey, ...]], where: Sequence[Where]) -> list[Announcement]:
        """Where announced chunks (as `keys` gave them) are now."""
        events: list[Announcement] = []
        for (key, *_), place in zip(chunks, where, strict=True):
            known = self._announced.get(key)
            if known is None:
                continue
            if place in (Where.NOWHERE, Where.COMPUTING):
                del self._announced[key]
                events.append(Removed(known.medium, known.facts.block_hashes))
            else:
                events += self._move(known, self._medium(place))
        return events

    def withdraw(self) -> list[Announcement]:
        """Withdraw every announced chunk."""
        events: list[Announcement] = [
            Removed(known.medium, known.facts.block_hashes) for known in self._announced.values()
        ]
        self._announced.clear()
        return events

    def _medium(self, where: Where) -> Medium:
        return Medium.SWITCH if self._tell_media_apart and where is Where.SWITCH else Medium.POOL

    @staticmethod
    def _move(known: _Announced, medium: Medium) -> list[Announcement]:
        if known.medium is medium:
            return []
        before, known.medium = known.medium, medium
        return [Stored(medium, known.facts), Removed(before, known.facts.block_hashes)]
