"""What operators set and only the controller knows: drains, pins into the switch. Pure.

It survives the controller because every agent keeps a copy and repeats it when it attaches. The highest revision
counts; what an operator has set at this controller since it started takes precedence over what agents repeat. With
TLS controllers sign it: an agent could otherwise drain all nodes, and fill the switch, by what it says to remember.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from controlplane.core.cluster import Cluster
from controlplane.core.ids import ChunkKey
from kvproto.rpc import control_pb2 as rpc


class StateCopies:
    """Owns which revision each agent has; signs what agents keep, and believes what was signed."""

    def __init__(self, cluster: Cluster, state: OperatorState) -> None:
        self._cluster = cluster
        self._state = state
        self._seals = cluster.options.seals
        """None where there is no TLS."""
        self._told: dict[int, int] = {}
        """By session: the revision that its agent has."""

    def is_genuine(self, state: rpc.OperatorState) -> bool:
        """Whether what an agent repeats of operators' wishes is what a controller has said."""
        if self._seals is None or not state.revision:
            return True
        return self._seals.holds(_content(state), state.signature, state.certificate)

    def stream_attached(self, session: int, revision: int) -> None:
        """An agent came, with this revision."""
        self._told[session] = revision

    def stream_ended(self, session: int) -> None:
        """A stream ended."""
        self._told.pop(session, None)

    def renew(self) -> None:
        """Sign everybody's copy anew, before the certificate that it was signed with ends."""
        if self._seals is not None and self._state.revision:
            self._told = dict.fromkeys(self._told, 0)

    def send(self) -> None:
        """Give the state to each agent that has another revision."""
        revision = self._state.revision
        for session, told in self._told.items():
            if told != revision:
                self._told[session] = revision
                state = self._state.message(self._cluster.visibility.may_pin(session))
                if self._seals is not None:
                    state.signature, state.certificate = self._seals.seal(_content(state))
                self._cluster.send(session, rpc.ToAgent(operator_state=state))


_CONTEXT: Final = b"kvcast operator state\0"


def _content(state: rpc.OperatorState) -> bytes:
    plain = rpc.OperatorState(revision=state.revision, drained=state.drained, switch_pins=state.switch_pins)
    return _CONTEXT + plain.SerializeToString(deterministic=True)


class OperatorState:
    """Names of drained nodes and keys pinned into the switch."""

    def __init__(self) -> None:
        self.revision = 0
        self._drained: set[str] = set()
        self._pins: set[ChunkKey] = set()
        self._drained_here: dict[str, bool] = {}
        """By name: what operators said to this controller."""
        self._adopted = 0
        """The revision that agents brought and that counts."""
        self._pinned_here: dict[ChunkKey, bool] = {}

    @property
    def drained(self) -> frozenset[str]:
        """Nodes that nothing new goes to, attached or not."""
        return frozenset(self._drained)

    @property
    def switch_pins(self) -> frozenset[ChunkKey]:
        """Chunks that operators pinned into the switch."""
        return frozenset(self._pins)

    def set_drained(self, node: str, drained: bool) -> None:
        """An operator drains a node, or takes that back."""
        self._drained_here[node] = drained
        self._set(self._drained | {node} if drained else self._drained - {node}, self._pins)

    def set_switch_pins(self, keys: Iterable[ChunkKey], pinned: bool) -> None:
        """An operator pins chunks into the switch, or lets them go."""
        keys = frozenset(keys)
        self._pinned_here |= dict.fromkeys(keys, pinned)
        self._set(self._drained, self._pins | keys if pinned else self._pins - keys)

    def take_repeated(self, state: rpc.OperatorState) -> bool:
        """An agent repeats what some controller sent it (checked by `parse`). True if that is news."""
        pins = {ChunkKey(key) for key in state.switch_pins}
        if self._adopted and state.revision == self._adopted:
            # Another part of the same state: no agent hears of what is not its.
            pins |= self._pins
        elif state.revision <= self.revision:
            return False
        before = self._pins
        self._adopted = state.revision
        self.revision = max(self.revision, state.revision)
        self._drained, self._pins = set(state.drained), pins
        drained = dict.fromkeys(self._drained, True) | self._drained_here
        pinned = dict.fromkeys(self._pins, True) | self._pinned_here
        self._set({name for name, said in drained.items() if said}, {key for key, said in pinned.items() if said})
        return self._pins != before or state.revision == self.revision

    def message(self, may_know: Callable[[ChunkKey], bool] = lambda key: True) -> rpc.OperatorState:
        """For an agent to keep; `may_know`: pins that it may hear of. The others are with other agents."""
        return rpc.OperatorState(
            revision=self.revision,
            drained=sorted(self._drained),
            switch_pins=sorted(one for one in self._pins if may_know(one)),
        )

    def _set(self, drained: set[str], pins: set[ChunkKey]) -> None:
        """A new revision, if anything is different."""
        if (drained, pins) != (self._drained, self._pins):
            self._drained, self._pins = set(drained), set(pins)
            self.revision += 1
