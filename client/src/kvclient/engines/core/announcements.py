"""What routers know of the pool, and what to announce to them next. Pure.

An engine announces chunks that it saved or found. It learns that they are gone again by looking now and then.
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
    """What an event says of a chunk."""

    block_hashes: tuple[object, ...]
    """The engine's own, as its events carry them."""
    parent_hash: object | None
    tokens: array[int]
    adapter: str | None
    extra_keys: tuple[tuple[object, ...] | None, ...] | None = None
    """Per block: what its hash covers beyond the tokens (adapter, images, salt), as the engine's own events say it."""
    session: str | None = None
    """Of the request that the engine computed or looked them up for."""


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
class _Told:
    keys: tuple[ChunkKey, ...]
    facts: ChunkFacts
    medium: Medium


class Announcements:
    """A bounded memory of announced chunks. Beyond its bound the oldest is withdrawn: better unknown than wrong."""

    def __init__(self, chunks_max: int, *, tell_media_apart: bool = True) -> None:
        """`tell_media_apart`: false for routers that know one medium of pools only: then all is POOL."""
        self._chunks_max = chunks_max
        self._tell_media_apart = tell_media_apart
        self._told: OrderedDict[ChunkKey, _Told] = OrderedDict()

    def __len__(self) -> int:
        return len(self._told)

    def __contains__(self, key: ChunkKey) -> bool:
        return key in self._told

    def keys(self) -> list[tuple[ChunkKey, ...]]:
        """Keys of each announced chunk, oldest first: what to look up for `swept`."""
        return [told.keys for told in self._told.values()]

    def there(self, keys: tuple[ChunkKey, ...], where: Where, facts: ChunkFacts) -> list[Announcement]:
        """A chunk (keys of all its shards) is in the pool."""
        medium = self._medium(where)
        key = keys[0]
        told = self._told.get(key)
        if told is not None:
            self._told.move_to_end(key)
            return self._move(told, medium)
        self._told[key] = _Told(keys, facts, medium)
        events: list[Announcement] = [Stored(medium, facts)]
        if len(self._told) > self._chunks_max:
            _, oldest = self._told.popitem(last=False)
            events.append(Removed(oldest.medium, oldest.facts.block_hashes))
        return events

    def swept(self, chunks: Sequence[tuple[ChunkKey, ...]], where: Sequence[Where]) -> list[Announcement]:
        """Where announced chunks (as `keys` gave them) are now."""
        events: list[Announcement] = []
        for (key, *_), place in zip(chunks, where, strict=True):
            told = self._told.get(key)
            if told is None:
                continue
            if place in (Where.NOWHERE, Where.COMPUTING):
                del self._told[key]
                events.append(Removed(told.medium, told.facts.block_hashes))
            else:
                events += self._move(told, self._medium(place))
        return events

    def withdraw(self) -> list[Announcement]:
        """Nothing that was announced is of use any more."""
        events: list[Announcement] = [Removed(told.medium, told.facts.block_hashes) for told in self._told.values()]
        self._told.clear()
        return events

    def _medium(self, where: Where) -> Medium:
        return Medium.SWITCH if self._tell_media_apart and where is Where.SWITCH else Medium.POOL

    @staticmethod
    def _move(told: _Told, medium: Medium) -> list[Announcement]:
        if told.medium is medium:
            return []
        before, told.medium = told.medium, medium
        return [Stored(medium, told.facts), Removed(before, told.facts.block_hashes)]
