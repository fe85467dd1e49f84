"""The control channel between a simulated agent and a simulated controller: gRPC over TCP.

Messages come in order and never get lost while a stream lasts. A network that is cut holds them up.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from hostagent.core.events import ControllerEvent
from kvproto.limits import MS
from kvproto.rpc import control_pb2 as rpc
from kvsim.chance import Chance
from kvsim.engine import Engine

DELAY_NS = MS // 5
JITTER_NS = MS // 2


@dataclass(frozen=True, slots=True)
class Said:
    """A message of the controller, and what it says to an agent's core, worked out once for all who get it."""

    message: rpc.ToAgent
    events: Sequence[ControllerEvent]


class AgentsEnd(Protocol):
    """Where a stream ends at the agent."""

    cut_until_ns: int
    """Its network carries nothing before."""
    lag_ns: int
    """It takes so long over each message."""

    def heard(self, stream: "Stream", said: Said) -> None: ...
    def stream_lost(self, stream: "Stream", code: str, reason: str) -> None: ...


class ControllersEnd(Protocol):
    """Where it ends at the controller."""

    def heard(self, stream: "Stream", message: rpc.FromAgent) -> None: ...
    def stream_lost(self, stream: "Stream") -> None: ...


class Stream:
    """From an accepted connection to its end."""

    def __init__(self, engine: Engine, chance: Chance, agent: AgentsEnd, controller: ControllersEnd) -> None:
        self.session = 0
        """The controller's number for it."""
        self.is_closed = False
        """The controller has ended it: what it says then is not sent."""
        self._engine, self._chance = engine, chance
        self._agent, self._controller = agent, controller
        self._down_ns = self._up_ns = 0
        """When the last message that is on its way arrives."""

    def tell(self, said: Said) -> None:
        """The controller says something."""
        if not self.is_closed:
            self._down(lambda: self._agent.heard(self, said), self._agent.lag_ns)

    def close(self, code: str, reason: str) -> None:
        """The controller ends it, with a gRPC status; or it dies, and its kernel does."""
        if not self.is_closed:
            self.is_closed = True
            self._down(lambda: self._agent.stream_lost(self, code, reason))

    def say(self, message: rpc.FromAgent) -> None:
        """The agent says something."""
        self._up(lambda: self._controller.heard(self, message))

    def leave(self) -> None:
        """The agent ends it; or it dies, and its kernel does."""
        self._up(lambda: self._controller.stream_lost(self))

    def _down(self, action: Callable[[], None], lag_ns: int = 0) -> None:
        self._down_ns = max(self._down_ns + lag_ns, self._arrival_ns())
        self._engine.at(self._down_ns, action)

    def _up(self, action: Callable[[], None]) -> None:
        self._up_ns = max(self._up_ns, self._arrival_ns())
        self._engine.at(self._up_ns, action)

    def _arrival_ns(self) -> int:
        return max(self._engine.now_ns, self._agent.cut_until_ns) + DELAY_NS + self._chance.below(JITTER_NS)
