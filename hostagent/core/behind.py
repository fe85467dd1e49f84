"""Fetches that fall behind: looked at when a holder says what it has queued, and when they take longer than expected.

The engine goes on waiting for as many chunks as `kvpolicy.tiers.behind` finds worth it. What is here by then is used.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from hostagent import limits
from hostagent.core.clock import NEVER, Alarm
from hostagent.core.fetch import Fetch, Purpose
from hostagent.core.node import Node
from kvchunk.ids import ChunkKey
from kvpolicy.tiers.behind import Progress, worth_waiting
from kvpolicy.tiers.gate import Gate
from kvpolicy.tiers.holder_load import IDLE, HolderLoad
from kvpolicy.value import Tier

LeftBytes = Callable[[ChunkKey], int]
_LATE = 1
"""A fetch that has taken this many times what was expected is looked at, and again after as long once more."""


class Reviews:
    """One node's fetches of engines that say what computing takes."""

    def __init__(self, node: Node, gate: Gate, left_bytes: LeftBytes, cut: Callable[[Fetch, int], None]) -> None:
        """`left_bytes(key)`: of a chunk on its way, still to come; `cut(fetch, count)`: wait only for the first."""
        self._clock = node.clock
        self._gate = gate
        self._left_bytes = left_bytes
        self._cut = cut
        self._due_ns: dict[Fetch, int] = {}
        self._all_bytes: dict[Fetch, int] = {}
        """What was still to come when a fetch began."""
        self._alarm: Alarm = node.alarms.add(self._look)

    def began(self, fetch: Fetch) -> None:
        """A fetch is under way."""
        verdict = fetch.ticket.verdict
        if fetch.purpose is Purpose.ENGINE and verdict.compute_left_s:
            self._all_bytes[fetch] = sum(self._left(fetch))
            self._due_ns[fetch] = fetch.started_ns + self._patience_ns(verdict.fetch_s)
            self._arm()

    def ended(self, fetch: Fetch) -> None:
        """It is over."""
        if self._due_ns.pop(fetch, None) is not None:
            del self._all_bytes[fetch]
            self._arm()

    def told(self, fetches: Iterable[Fetch], load: HolderLoad) -> None:
        """The holder that these wait for has queued so much for others."""
        rate = self._gate.costs.cost(Tier.REMOTE_DRAM).rate_bytes_per_s
        for fetch in list(fetches):
            left = self._left(fetch)
            left_bytes = sum(left)
            if load.delay_s(left_bytes, rate) > limits.CONTENDED_SHARE * left_bytes / rate:
                fetch.ticket.contended = True
            if fetch in self._due_ns:
                self._review(fetch, left, rate, load)

    def _look(self) -> None:
        now_ns = self._clock.now_ns
        for fetch in [fetch for fetch, due_ns in self._due_ns.items() if due_ns <= now_ns]:
            elapsed_ns = now_ns - fetch.started_ns
            self._due_ns[fetch] = now_ns + max(elapsed_ns, self._patience_ns(0.0))
            left = self._left(fetch)
            came_bytes = self._all_bytes[fetch] - sum(left)
            # Half a chunk more than is known: a read may report nothing before its end.
            unseen_bytes = max(left, default=0) / 2
            rate = min(
                self._gate.costs.cost(Tier.REMOTE_DRAM).rate_bytes_per_s,
                (max(0, came_bytes) + unseen_bytes) / (elapsed_ns / 1e9),
            )
            if rate > 0:
                self._review(fetch, left, rate, IDLE)
        self._arm()

    def _review(self, fetch: Fetch, left: Sequence[int], rate: float, load: HolderLoad) -> None:
        """`left`: bytes of each of its chunks that are still to come."""
        if not {Tier.LOCAL_DISK, Tier.COLD}.isdisjoint(fetch.routes.values()):
            return  # what a disk or a cold store has under way cannot be seen; the deadline decides
        verdict = fetch.ticket.verdict
        progress = Progress((self._clock.now_ns - fetch.started_ns) / 1e9, left[verdict.first :], rate, load)
        count = verdict.first + worth_waiting(verdict, progress)
        if count < len(fetch.keys):
            self._cut(fetch, count)

    def _left(self, fetch: Fetch) -> Sequence[int]:
        return [0 if key in fetch.pinned else self._left_bytes(key) for key in fetch.keys]

    @staticmethod
    def _patience_ns(expected_s: float) -> int:
        return int(max(limits.GIVE_UP_S_MIN, _LATE * expected_s) * 1e9)

    def _arm(self) -> None:
        due_ns = min(self._due_ns.values(), default=NEVER)
        self._alarm.set(None if due_ns == NEVER else due_ns)
