"""When a controller that has just started knows enough to replace what agents know. Pure.

Agents keep the directory of the controller before and go on fetching with it. A snapshot sent too early would take
that from them: holders that have not come back yet would seem to hold nothing. So an agent that still has another
controller's directory waits for its snapshot until as many nodes have announced as it knew, or the grace is over.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from controlplane.core.ids import NodeIndex


@dataclass(slots=True)
class Settling:
    """Who waits for a snapshot, and for how many nodes."""

    grace_ns: int
    started_ns: int | None = None
    _announced: set[NodeIndex] = field(default_factory=set)
    _expected: int = 0
    _waiting: set[int] = field(default_factory=set)
    _over: bool = False

    def must_wait(self, session: int, replica_of: int, replica_nodes: int, incarnation: int) -> bool:
        """An agent attaches. True: its snapshot comes with `take_settled`."""
        if self._over or replica_of in (0, incarnation):
            return False
        self._expected = max(self._expected, replica_nodes)
        self._waiting.add(session)
        return True

    def announced(self, node: NodeIndex) -> None:
        """A node has named all it holds."""
        self._announced.add(node)

    def left(self, session: int) -> None:
        """An agent went away: it waits for nothing."""
        self._waiting.discard(session)

    def is_waiting(self, session: int) -> bool:
        """Its snapshot is still to come, so deltas are not for it."""
        return session in self._waiting

    def take_settled(self, now_ns: int) -> list[int]:
        """Sessions whose snapshot is to be sent now."""
        if self.started_ns is None:
            self.started_ns = now_ns
        complete = bool(self._waiting) and len(self._announced) >= self._expected
        if not complete and now_ns - self.started_ns < self.grace_ns:
            return []
        self._over = True
        waiting, self._waiting = sorted(self._waiting), set()
        return waiting
