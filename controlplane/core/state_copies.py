"""The copies of the operators' state that agents keep for the next controller: sent, signed, believed. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from controlplane.core.effects import SendTo
from controlplane.core.ids import ChunkKey
from controlplane.core.operator_state import OperatorState, is_genuine, sealed
from controlplane.core.options import StateSeals
from kvproto.rpc import control_pb2 as rpc


class StateCopies:
    """Who has been told which revision."""

    def __init__(
        self, state: OperatorState, seals: StateSeals | None, may_pin: Callable[[int], Callable[[ChunkKey], bool]]
    ) -> None:
        """`seals`: None where there is no TLS; `may_pin(session)`: pins that the agent of a stream may hear of."""
        self._state = state
        self._seals = seals
        self._may_pin = may_pin
        self._told: dict[int, int] = {}
        """By session: the revision that its agent has."""

    def is_genuine(self, state: rpc.OperatorState) -> bool:
        """Whether what an agent repeats of operators' wishes is what a controller has said."""
        return is_genuine(state, self._seals)

    def attached(self, session: int, revision: int) -> None:
        """An agent came, with this revision."""
        self._told[session] = revision

    def left(self, session: int) -> None:
        """A stream ended."""
        self._told.pop(session, None)

    def renew(self) -> None:
        """Sign everybody's copy anew, before the certificate that it was signed with ends."""
        if self._seals is not None and self._state.revision:
            self._told = dict.fromkeys(self._told, 0)

    def due(self) -> Iterator[SendTo]:
        """To each agent that has another revision: the state."""
        revision = self._state.revision
        for session, told in self._told.items():
            if told != revision:
                self._told[session] = revision
                state = sealed(self._state.message(self._may_pin(session)), self._seals)
                yield SendTo(session, rpc.ToAgent(operator_state=state))
