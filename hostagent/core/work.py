"""Tasks that the controller gives an agent, and how they end. Values only."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TypeAlias

from kvchunk.ids import ChunkKey


@dataclass(frozen=True, slots=True)
class FillWork:
    """Send every segment of a chunk to the switch until each is acknowledged."""

    key: ChunkKey
    segments: int
    cast_too: bool = False
    """The switch casts FILLs that say so."""
    readers: int = 0
    """Nodes that waited for the chunk when the controller decided."""


@dataclass(frozen=True, slots=True)
class FetchWork:
    """Bring chunks, in prefix order; `pin`: keep them until UnpinWork."""

    keys: tuple[ChunkKey, ...]
    pin: bool


@dataclass(frozen=True, slots=True)
class DropWork:
    """Drop chunks that are neither in use nor pinned."""

    keys: tuple[ChunkKey, ...]


@dataclass(frozen=True, slots=True)
class RecheckWork:
    """Compare chunks of the pool with their digests; drop those whose bytes are wrong."""

    keys: tuple[ChunkKey, ...]


@dataclass(frozen=True, slots=True)
class PinWork:
    """Pin chunks in the pool."""

    keys: tuple[ChunkKey, ...]


@dataclass(frozen=True, slots=True)
class UnpinWork:
    """Take pins back."""

    keys: tuple[ChunkKey, ...]


@dataclass(frozen=True, slots=True)
class RefusedWork:
    """Nothing that this agent can do: of a controller that is newer, or with a key that is none."""

    why: str


Work: TypeAlias = FillWork | FetchWork | DropWork | RecheckWork | PinWork | UnpinWork | RefusedWork


@dataclass(frozen=True, slots=True)
class Task:
    """Work with a number and a time limit."""

    number: int
    work: Work
    timeout_s: float
    foreground: bool = False
    """Otherwise a fetch stays below everything that engines wait for."""


class TaskStatus(enum.Enum):
    """How a task ended."""

    DONE = "done"
    PARTIAL = "partial"
    """Some keys failed."""
    FAILED = "failed"
    REFUSED = "refused"
    """It could not be started."""
    CANCELLED = "cancelled"
