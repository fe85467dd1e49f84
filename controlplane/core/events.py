"""What happens to the core. Each event is handled whole before the next one; see `controlplane.core.core`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

from controlplane.core.examination.observations import Surroundings
from controlplane.core.ids import NOBODY, JobId, Mark
from controlplane.core.switch.entries import SwitchContents
from controlplane.core.switch.target import SwitchEvent
from kvproto.rpc import control_pb2 as rpc


@dataclass(frozen=True, slots=True)
class HelloReceived:
    """The first message of an agent's stream."""

    session: int
    hello: rpc.Hello
    speaker: str = ""
    """Who says it, by its certificate or its host."""


@dataclass(frozen=True, slots=True)
class MessageReceived:
    """Any later message of a stream."""

    session: int
    message: rpc.FromAgent


@dataclass(frozen=True, slots=True)
class StreamEnded:
    """A stream ended, whoever ended it."""

    session: int


@dataclass(frozen=True, slots=True)
class ExpulsionsChanged:
    """These nodes, and no others, are put out from now on."""

    names: frozenset[str]
    mark: Mark = NOBODY


@dataclass(frozen=True, slots=True)
class StateFound:
    """What operators had set, as etcd, Kubernetes or a file has it."""

    state: rpc.OperatorState
    """Checked by `parse.check_operator_state`."""
    place: str
    """For the log."""


@dataclass(frozen=True, slots=True)
class Elected:
    """This controller leads, or goes on leading."""

    epoch: int
    """Higher than those of all leaders before; 0: there are no others."""
    until_ns: int | None
    """Unless it hears more by then, it leads no longer; None: it hears when it does not."""
    reason: str
    """For the log, when it begins; empty: that is nothing to log."""


@dataclass(frozen=True, slots=True)
class Deposed:
    """This controller does not lead."""

    reason: str
    """Who does, or why nobody knows."""


@dataclass(frozen=True, slots=True)
class LeadershipDoubted:
    """Whoever elects is away: this controller goes on, and another one may lead."""


ElectionEvent: TypeAlias = Elected | Deposed | LeadershipDoubted


@dataclass(frozen=True, slots=True)
class SwitchRead:
    """The answer to ReadTheSwitch; None: it failed."""

    contents: SwitchContents | None


@dataclass(frozen=True, slots=True)
class SwitchWritten:
    """The answer to WriteTheSwitch: index of update -> reason for which it was refused; None: nobody knows."""

    refused: Mapping[int, str] | None


@dataclass(frozen=True, slots=True)
class TimerFired:
    """The time that `next_timeout_ns` named has come."""


# -- what operators ask for: an Answer or a RequestRefused is among the effects


@dataclass(frozen=True, slots=True)
class Requested:
    """The method of `Operations` of this name is to be called. The answer is what it returns."""

    verb: Literal["pin", "unpin", "evict", "warm", "drain"]
    request: rpc.PinRequest | rpc.EvictRequest | rpc.WarmRequest | rpc.DrainRequest
    mark: Mark = NOBODY
    """Who asks, and when."""


@dataclass(frozen=True, slots=True)
class JobCancelled:
    """The operator who follows a job went away. Has no answer."""

    job: JobId


@dataclass(frozen=True, slots=True)
class ExaminationRequested:
    """Try all paths. The answer is the examination's number."""

    surroundings: Surroundings


@dataclass(frozen=True, slots=True)
class ExaminationEnded:
    """Nobody waits for an examination any more. Has no answer."""

    number: int


OperatorEvent: TypeAlias = Requested | JobCancelled | ExaminationRequested | ExaminationEnded

Event: TypeAlias = (
    HelloReceived
    | MessageReceived
    | StreamEnded
    | ExpulsionsChanged
    | StateFound
    | SwitchEvent
    | ElectionEvent
    | SwitchRead
    | SwitchWritten
    | TimerFired
    | OperatorEvent
)
