"""What operators set and only the controller knows: drains, pins into the switch, nodes that are put out. Pure.

It survives the controller because every agent keeps a copy and repeats it when it attaches; where there is etcd,
Kubernetes or a file for it, the daemon keeps it there, too. The highest revision counts; what an operator has set at
this controller since it came to lead takes precedence over what is repeated. With TLS controllers sign what agents
keep: an agent could otherwise drain all nodes, and fill the switch, by what it says to remember.

With each thing is kept who set it, and when.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, Generic, TypeVar

from controlplane.core.cluster import Cluster
from controlplane.core.ids import NOBODY, ChunkKey, Mark
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

_Thing = TypeVar("_Thing", str, ChunkKey)


def _content(state: rpc.OperatorState) -> bytes:
    plain = rpc.OperatorState()
    plain.CopyFrom(state)
    plain.ClearField("signature")
    plain.ClearField("certificate")
    return _CONTEXT + plain.SerializeToString(deterministic=True)


class _Wishes(Generic[_Thing]):
    """Things of one kind that operators have set."""

    def __init__(self) -> None:
        self.marks: dict[_Thing, Mark] = {}
        """All of them, with who set each."""
        self._here: dict[_Thing, Mark | None] = {}
        """What was set at this controller since it came to lead; None: taken back."""

    def set(self, things: Iterable[_Thing], mark: Mark | None) -> bool:
        """An operator sets things, or takes them back (None). Returns whether anything is different."""
        before = self.marks
        things = dict.fromkeys(things)
        self._here |= dict.fromkeys(things, mark)
        if mark is None:
            self.marks = {thing: one for thing, one in before.items() if thing not in things}
        else:
            # Whoever set it first has set it.
            self.marks = dict.fromkeys(things, mark) | before
        return self.marks.keys() != before.keys()

    def repeated(self, found: Mapping[_Thing, Mark]) -> bool:
        """What another controller had set. Returns whether what was set here makes it different."""
        changes = {thing: mark for thing, mark in self._here.items() if (mark is not None) != (thing in found)}
        self.marks = {thing: mark for thing, mark in found.items() if thing not in changes}
        self.marks |= {thing: mark for thing, mark in changes.items() if mark is not None}
        return bool(changes)

    def forget_here(self) -> None:
        """What was set here has no precedence any more."""
        self._here.clear()


class OperatorState:
    """Names of drained nodes, keys pinned into the switch, names of nodes that are put out."""

    def __init__(self) -> None:
        self.revision = 0
        self._drained: _Wishes[str] = _Wishes()
        self._pins: _Wishes[ChunkKey] = _Wishes()
        self._expelled: _Wishes[str] = _Wishes()
        self._adopted = 0
        """The revision that was repeated and that counts."""

    @property
    def drained(self) -> frozenset[str]:
        """Nodes that nothing new goes to, attached or not."""
        return frozenset(self._drained.marks)

    @property
    def switch_pins(self) -> frozenset[ChunkKey]:
        """Chunks that operators pinned into the switch."""
        return frozenset(self._pins.marks)

    @property
    def expelled(self) -> frozenset[str]:
        """Nodes that are put out."""
        return frozenset(self._expelled.marks)

    def set_drained(self, node: str, drained: bool, mark: Mark = NOBODY) -> None:
        """An operator drains a node, or takes that back."""
        self._count(self._drained.set([node], mark if drained else None))

    def set_switch_pins(self, keys: Iterable[ChunkKey], pinned: bool, mark: Mark = NOBODY) -> None:
        """An operator pins chunks into the switch, or lets them go."""
        self._count(self._pins.set(keys, mark if pinned else None))

    def set_expelled(self, names: frozenset[str], mark: Mark = NOBODY) -> None:
        """These nodes, and no others, are put out."""
        gone = self.expelled - names
        came = self._expelled.set(names, mark)
        went = self._expelled.set(gone, None)
        self._count(came or went)

    def deposed(self) -> None:
        """Another controller leads: what operators set there counts when this one leads again."""
        for wishes in (self._drained, self._pins, self._expelled):
            wishes.forget_here()

    def take_repeated(self, state: rpc.OperatorState) -> bool:
        """An agent, or whatever keeps the state, repeats what some controller had (checked by `parse`). True if that
        is news."""
        pins = _marked(map(ChunkKey, state.switch_pins), state.switch_pin_marks, state.marks)
        if self._adopted and state.revision == self._adopted:
            # Another part of the same state: no agent hears of what is not its.
            pins |= self._pins.marks
        elif state.revision <= self.revision:
            return False
        before, is_known = self._things(), state.revision == self._adopted
        self._adopted = state.revision
        self.revision = max(self.revision, state.revision)
        changed = [
            self._drained.repeated(_marked(state.drained, state.drained_marks, state.marks)),
            self._pins.repeated(pins),
            self._expelled.repeated(_marked(state.expelled, state.expelled_marks, state.marks)),
        ]
        self._count(any(changed) and not (is_known and self._things() == before))
        return self._things() != before

    def message(self, may_know: Callable[[ChunkKey], bool] = lambda key: True) -> rpc.OperatorState:
        """For an agent to keep; `may_know`: pins that it may hear of. The others are with other agents."""
        drained, expelled = self._drained.marks, self._expelled.marks
        pins = {key: mark for key, mark in self._pins.marks.items() if may_know(key)}
        marks = {mark: None for kind in (drained, pins, expelled) for mark in kind.values()}
        numbers = {mark: number for number, mark in enumerate(sorted(marks, key=lambda one: (one.at_ms, one.by)))}
        return rpc.OperatorState(
            revision=self.revision,
            marks=[rpc.Mark(by=mark.by, at_ms=mark.at_ms) for mark in numbers],
            drained=sorted(drained),
            drained_marks=[numbers[drained[name]] for name in sorted(drained)],
            switch_pins=sorted(pins),
            switch_pin_marks=[numbers[pins[key]] for key in sorted(pins)],
            expelled=sorted(expelled),
            expelled_marks=[numbers[expelled[name]] for name in sorted(expelled)],
        )

    def _things(self) -> tuple[frozenset[str], frozenset[ChunkKey], frozenset[str]]:
        return self.drained, self.switch_pins, self.expelled

    def _count(self, changed: bool) -> None:
        self.revision += changed


def _marked(things: Iterable[_Thing], indexes: Sequence[int], marks: Sequence[rpc.Mark]) -> dict[_Thing, Mark]:
    """Each with its mark; of a controller from before marks nobody's."""
    made = [Mark(one.by, one.at_ms) for one in marks]
    known = [made[index] if index < len(made) else NOBODY for index in indexes]
    return {thing: known[at] if at < len(known) else NOBODY for at, thing in enumerate(things)}
