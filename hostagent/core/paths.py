"""Which other nodes this one can reach on the data network. Pure; the shell tries a connection where it is told to.

A holder whose link is dead says nothing, and neither does one that is merely busy. So a read that brings nothing for
some reactions is only a doubt; what counts is a connection that cannot be made, to an address where the kernel answers.
A node that cannot be reached is asked for nothing, and nobody waits for it; it is tried again until it answers.

A node whose own link is dead reaches nobody. Before it says anything of others it tries further ones, the witnesses:
while none of them can be reached, it blames itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from hostagent import limits
from hostagent.core import effects, events
from hostagent.core.directory import NodeEntry
from hostagent.core.node import Node

_S: Final = 1_000_000_000
_FRESH_NS: Final = int(limits.PATH_FRESH_S * _S)
_AGAIN_NS: Final = int(limits.PATH_AGAIN_S[0] * _S)
_AGAIN_NS_MAX: Final = int(limits.PATH_AGAIN_S[1] * _S)
_OWN_WORD_NS: Final = 10 * _S
"""For so long what this node has found by itself counts for more than what others say."""
_WITNESSED_NS: Final = int(limits.PATH_WITNESSED_S * _S)


@dataclass(slots=True)
class _Unreached:
    """A node that could not be reached, or of which the controller says so."""

    due_ns: int
    """When it is tried again."""
    wait_ns: int = _AGAIN_NS
    tried: bool = False
    """This node found it so itself."""


class Paths:
    """Owns what is known of paths to other nodes; writes `DirectoryReplica.unreached`."""

    def __init__(self, node: Node, lost: Callable[[str], None]) -> None:
        """`lost(name)`: nothing will come from this node."""
        self._clock = node.clock
        self._emit = node.emit
        self._directory = node.directory
        self._own = node.directory.own_name
        self._lost = lost
        self._unreached: dict[str, _Unreached] = {}
        self._trying: set[str] = set()
        self._reached_ns: dict[str, int] = {}
        """When others were reached last."""
        self._is_accused = False
        """The controller says that nobody reaches this node."""
        self._alarm = node.alarms.add(self._try_again)

    @property
    def unreached_count(self) -> int:
        """Nodes that this one could not reach, of those that it tried."""
        return sum(one.tried for one in self._unreached.values())

    def own_trouble(self) -> str | None:
        """Why this node's own link seems to be dead; None: it does not."""
        if self._hears_others() or not (self._is_accused or self.unreached_count > 1):
            return None
        others = "; they say that they do not reach this one" if self._is_accused else ""
        return f"none of {max(1, self.unreached_count)} nodes can be reached on the data network{others}"

    def doubted(self, name: str) -> None:
        """A read from this node brings nothing, or broke."""
        if name not in self._unreached and self._clock.now_ns - self._reached_ns.get(name, -_FRESH_NS) >= _FRESH_NS:
            self._try(name)

    def wanted(self, numbers: Iterable[int]) -> None:
        """A fetch found nothing but what these nodes hold: those that cannot be reached are tried now, so that what has
        been mended serves the next fetch."""
        for number in numbers:
            node = self._directory.node(number)
            if node is not None and node.name in self._unreached:
                self._try(node.name)

    def probed(self, event: events.PathProbed) -> None:
        """A connection to a node was tried."""
        name = event.node
        self._trying.discard(name)
        if self._directory.node_named(name) is None:
            return
        if event.reached:
            self._reached(name)
        elif event.reached is not None:
            self._missed(name)
        elif (state := self._unreached.get(name)) is not None:
            state.due_ns = self._clock.now_ns + state.wait_ns
        self._set_alarm()

    def nodes_changed(self, nodes: Iterable[NodeEntry], lost: Iterable[str]) -> None:
        """What the controller says of others, and of this node."""
        for name in lost:
            self._forget(name)
            self._reached_ns.pop(name, None)
        for node in nodes:
            known = self._unreached.get(node.name)
            if node.name == self._own:
                self._is_accused = node.unreached
                if node.unreached and not self._hears_others():
                    self._try_witnesses(self._own)
            elif node.unreached and known is None:
                if self._clock.now_ns - self._reached_ns.get(node.name, -_OWN_WORD_NS) < _OWN_WORD_NS:
                    self._try(node.name)  # which this one has reached since: it finds out by itself
                else:
                    self._unreached[node.name] = _Unreached(self._clock.now_ns)
                    self._mark(node.name)
            elif known is not None and not known.tried and not node.unreached:
                self._forget(node.name)
            elif known is not None:
                known.due_ns = self._clock.now_ns  # it is elsewhere now, perhaps
        self._set_alarm()

    # -- inside

    def _try(self, name: str) -> None:
        node = self._directory.node_named(name)
        if node is not None and name not in self._trying and name != self._own:
            self._trying.add(name)
            self._emit(effects.ProbePath(name, node.read_endpoint))

    def _reached(self, name: str) -> None:
        self._reached_ns[name] = self._clock.now_ns
        was = self._unreached.get(name)
        if was is not None:
            self._forget(name)
            self._emit(effects.PathChanged(name, reached=True))
            self._report((name,), reached=True)
        # A witness: what others could not be reached is not this node's fault.
        self._report([one for one, state in self._unreached.items() if state.tried], reached=False)

    def _missed(self, name: str) -> None:
        now_ns, known = self._clock.now_ns, self._unreached.get(name)
        state = known or _Unreached(now_ns)
        state.due_ns, state.wait_ns = now_ns + state.wait_ns, min(2 * state.wait_ns, _AGAIN_NS_MAX)
        if not state.tried:
            state.tried = True
            self._unreached[name] = state
            self._emit(effects.PathChanged(name, reached=False))
        if known is None:
            self._mark(name)
        if not set(self._directory.node_names()) - {name, self._own}:
            self._report((name,), reached=False)
        else:
            self._try_witnesses(name)

    def _mark(self, name: str) -> None:
        self._directory.unreached.add(name)
        self._lost(name)

    def _forget(self, name: str) -> None:
        self._unreached.pop(name, None)
        self._directory.unreached.discard(name)

    def _report(self, names: Iterable[str], *, reached: bool) -> None:
        numbers = [node.node for name in names if (node := self._directory.node_named(name)) is not None]
        if numbers:
            self._emit(effects.ReportPaths(tuple(numbers), reached))

    def _hears_others(self) -> bool:
        now_ns = self._clock.now_ns
        return any(now_ns - at_ns < _WITNESSED_NS for at_ns in self._reached_ns.values())

    def _others(self, name: str) -> list[str]:
        """Nodes beside this one and `name` that may be reached, those that follow on it first."""
        names = sorted(set(self._directory.node_names()) - {name, self._own} - self._unreached.keys())
        return [one for one in names if one > name] + [one for one in names if one < name]

    def _try_witnesses(self, name: str) -> None:
        for witness in self._others(name)[: limits.PATH_WITNESSES]:
            self._try(witness)

    def _try_again(self) -> None:
        now_ns = self._clock.now_ns
        for name, state in self._unreached.items():
            if state.due_ns <= now_ns:
                state.due_ns = now_ns + state.wait_ns
                self._try(name)
        if not self._hears_others():
            self._try_witnesses(self._own)
        self._set_alarm()

    def _set_alarm(self) -> None:
        dues = [state.due_ns for state in self._unreached.values()]
        if self._is_accused:
            dues.append(self._clock.now_ns + _WITNESSED_NS)
        self._alarm.set(min(dues, default=None))
