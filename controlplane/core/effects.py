"""What the core asks the daemon to do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NewType, TypeAlias

from controlplane.core.switch.target import Update
from kvproto.rpc import control_pb2 as rpc

JobId = NewType("JobId", int)
"""An operator's request that takes a while: a warm, a drain."""


@dataclass(frozen=True, slots=True)
class SendTo:
    """Queue for one agent's stream."""

    session: int
    message: rpc.ToAgent


@dataclass(frozen=True, slots=True)
class CloseSession:
    """End a stream with this gRPC status."""

    session: int
    code: str
    reason: str


@dataclass(frozen=True, slots=True)
class ReadTheSwitch:
    """Read everything; answer with `Core.switch_read`."""


@dataclass(frozen=True, slots=True)
class WriteTheSwitch:
    """Answer with `Core.switch_written`."""

    updates: tuple[Update, ...]


@dataclass(frozen=True, slots=True)
class JobProgress:
    """News of an operator's job, for the client that follows it."""

    job: JobId
    progress: rpc.Progress
    last: bool = False


@dataclass(frozen=True, slots=True)
class Inform:
    """A change of role, of the switch's state or of a node, for the log; one line."""

    text: str


@dataclass(frozen=True, slots=True)
class Warn:
    """An operator should know this; one line."""

    text: str


Effect: TypeAlias = SendTo | CloseSession | ReadTheSwitch | WriteTheSwitch | JobProgress | Inform | Warn
