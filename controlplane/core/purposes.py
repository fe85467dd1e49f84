"""Why an agent was given a task: decides what its end means."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from controlplane.core.effects import JobId
from controlplane.core.ids import ChunkKey


@dataclass(frozen=True, slots=True)
class FillFor:
    """The switch cache wants the chunk."""

    key: ChunkKey


@dataclass(frozen=True, slots=True)
class RecoveryOf:
    """The switch holds the last copy and is about to drop it."""

    key: ChunkKey


@dataclass(frozen=True, slots=True)
class ReplicationOf:
    """A node's pool is about to lose the last copy: another node takes it."""

    key: ChunkKey


@dataclass(frozen=True, slots=True)
class PushTo:
    """Chunks that the node is expected to want."""

    chunks: int


@dataclass(frozen=True, slots=True)
class JobPart:
    """A share of an operator's job."""

    job: JobId
    keys: tuple[ChunkKey, ...]


@dataclass(frozen=True, slots=True)
class ProbeStep:
    """A step of an examination."""

    examination: int
    index: int
    """Among the steps that run at the same time."""


@dataclass(frozen=True, slots=True)
class Housekeeping:
    """Pins, drops: nothing waits for the end."""

    what: str


Purpose: TypeAlias = FillFor | RecoveryOf | ReplicationOf | PushTo | JobPart | ProbeStep | Housekeeping
