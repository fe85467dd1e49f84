"""This node's disk as the core sees it. The shell keeps the index, because it does the I/O."""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import Protocol

from hostagent.pool.chunks import Chunk, ChunkPool
from kvchunk.ids import ChunkKey


class DiskState(enum.Enum):
    """Whether the disk is used, and how."""

    OFF = "off"
    ON = "on"
    READING = "reading"
    """A write failed: stored chunks are still served, none are added."""


class DiskIndex(Protocol):
    """The chunks on this node's disk, and their order of eviction."""

    pool: ChunkPool
    """The index of the slab: its offsets are offsets on disk."""

    @property
    def state(self) -> DiskState:
        """Whether the disk is used, and how."""

    def find(self, key: ChunkKey) -> Chunk | None:
        """The stored chunk, if it can be loaded."""

    def stored_chunks(self) -> list[Chunk]:
        """All that can be loaded."""

    def take_changes(self) -> tuple[list[Chunk], list[ChunkKey]]:
        """(chunks stored and still there, keys gone) since the last call."""


class Promoter(Protocol):
    """Who loads chunks from disk into the pool: `PeerLoads`."""

    def load(self, key: ChunkKey, then: Callable[[], None]) -> bool:
        """Load a stored chunk into the pool; `then` is called once, later. False: it cannot be loaded now."""
