"""What the core asks its shell to do, in order."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from controlplane.core.ids import JobId
from controlplane.core.switch.target import Update
from kvproto.rpc import control_pb2 as rpc


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
    """Read everything that the switch holds; SwitchRead answers."""


@dataclass(frozen=True, slots=True)
class WriteTheSwitch:
    """Apply these updates in order; SwitchWritten answers."""

    updates: tuple[Update, ...]


@dataclass(frozen=True, slots=True)
class Answer:
    """What an operator gets for the request that was handled just now."""

    reply: rpc.PinReply | rpc.EvictReply | JobId | int


@dataclass(frozen=True, slots=True)
class RequestRefused:
    """The operator's request that was handled just now cannot be met."""

    code: str
    """Name of a gRPC status."""
    reason: str
    """One line."""


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


Effect: TypeAlias = (
    SendTo | CloseSession | ReadTheSwitch | WriteTheSwitch | Answer | RequestRefused | JobProgress | Inform | Warn
)
