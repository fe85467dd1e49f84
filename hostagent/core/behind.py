"""Fetches that fall behind: looked at when a holder says what it has queued, and when they take longer than expected.
Pure.

How much of a fetch under way is still worth waiting for is the gate's own question, asked again with what is known by
now: of the chunks still to come, bringing the first k takes

    t(k) = max(elapsed + left_s(k), queue_s) + compute_left_s(k)

with the engine's queue and its computing as they were at the start. An estimate has to be better by `MARGIN` to end
what has begun. What is here by then is used.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Final

from hostagent import limits
from hostagent.core.clock import NEVER, Alarm
from hostagent.core.fetch import Fetch, Purpose
from hostagent.core.node import Node
from kvchunk.ids import ChunkKey
from kvpolicy.tiers.gate import Verdict
from kvpolicy.tiers.holder_load import IDLE, HolderLoad
from kvpolicy.value import Tier

MARGIN: Final = 0.1
"""Share of the time to go by which less must be quicker."""


@dataclass(frozen=True, slots=True)
class Progress:
    """How long a fetch has taken, what is left of it, and how quickly the rest may come."""

    elapsed_s: float
    left_bytes: Sequence[int]
    """Of each chunk of the verdict behind those that were local."""
    rate_bytes_per_s: float
    """At which the rest comes, when its holder has nothing else to send."""
    load: HolderLoad
    """What the holder has queued for others."""

    def left_s(self) -> list[float]:
        """Seconds until the first k chunks are here, k = 0 ... all."""
        rate = self.rate_bytes_per_s
        return [left / rate + self.load.delay_s(left, rate) for left in accumulate(self.left_bytes, initial=0)]


def worth_waiting(verdict: Verdict, progress: Progress) -> int:
    """For how many of the chunks in `progress.left_bytes` the engine should go on waiting: all, unless fewer are
    clearly quicker. Those that are here count."""
    left_s = progress.left_s()
    elapsed_s = progress.elapsed_s

    def to_go_s(count: int) -> float:
        return max(left_s[count], verdict.queue_s - elapsed_s) + verdict.compute_left_s[count]

    everything = len(progress.left_bytes)
    best = min(range(everything, -1, -1), key=to_go_s)
    return best if to_go_s(best) < (1 - MARGIN) * to_go_s(everything) else everything


LeftBytes = Callable[[ChunkKey], int]
_LATE = 1
"""A fetch that has taken this many times what was expected is looked at, and again after as long once more."""


class Reviews:
    """Of one node's fetches of engines that say what computing takes. Their times are kept in the fetches."""

    def __init__(self, node: Node, left_bytes: LeftBytes, fell_behind: Callable[[Fetch, int], None]) -> None:
        """`left_bytes(key)`: of a chunk on its way, still to come; `fell_behind(fetch, count)`: wait only for the
        first."""
        self._clock = node.clock
        self._costs = node.costs
        self._left_bytes = left_bytes
        self._fell_behind = fell_behind
        self._reviewed: dict[Fetch, Verdict] = {}
        self._alarm: Alarm = node.alarms.add(self._look)

    def fetch_began(self, fetch: Fetch, verdict: Verdict) -> None:
        """A fetch is under way, as this says."""
        if fetch.request.purpose is Purpose.ENGINE:
            self._reviewed[fetch] = verdict
            fetch.all_bytes = sum(self._left(fetch))
            fetch.review_ns = fetch.started_ns + self._patience_ns(verdict.fetch_s)
            self._arm()

    def fetch_ended(self, fetch: Fetch) -> None:
        """It is over."""
        self._reviewed.pop(fetch, None)
        self._arm()

    def load_changed(self, fetches: Iterable[Fetch], load: HolderLoad) -> None:
        """The holder that these wait for has queued so much for others."""
        rate = self._costs.cost(Tier.REMOTE_DRAM).rate_bytes_per_s
        for fetch in list(fetches):
            left = self._left(fetch)
            left_bytes = sum(left)
            if load.delay_s(left_bytes, rate) > limits.CONTENDED_SHARE * left_bytes / rate:
                for stage in fetch.stages:
                    if stage.ticket is not None:
                        stage.ticket.contended = True
            if fetch in self._reviewed:
                self._review(fetch, left, rate, load)

    def _look(self) -> None:
        now_ns = self._clock.now_ns
        for fetch in [fetch for fetch in self._reviewed if fetch.review_ns is not None and fetch.review_ns <= now_ns]:
            elapsed_ns = now_ns - fetch.started_ns
            fetch.review_ns = now_ns + max(elapsed_ns, self._patience_ns(0.0))
            left = self._left(fetch)
            came_bytes = fetch.all_bytes - sum(left)
            # Half a chunk more than is known: a read may report nothing before its end.
            unseen_bytes = max(left, default=0) / 2
            rate = min(
                self._costs.cost(Tier.REMOTE_DRAM).rate_bytes_per_s,
                (max(0, came_bytes) + unseen_bytes) / (elapsed_ns / 1e9),
            )
            if rate > 0:
                self._review(fetch, left, rate, IDLE)
        self._arm()

    def _review(self, fetch: Fetch, left: Sequence[int], rate: float, load: HolderLoad) -> None:
        """`left`: bytes of each of its chunks that are still to come."""
        if not {Tier.LOCAL_DISK, Tier.COLD}.isdisjoint(fetch.routes.values()):
            return  # what a disk or a cold store has under way cannot be seen; the deadline decides
        verdict = self._reviewed[fetch]
        progress = Progress((self._clock.now_ns - fetch.started_ns) / 1e9, left[verdict.first :], rate, load)
        count = verdict.first + worth_waiting(verdict, progress)
        if count < len(fetch.keys):
            self._fell_behind(fetch, count)

    def _left(self, fetch: Fetch) -> Sequence[int]:
        return [0 if key in fetch.pinned else self._left_bytes(key) for key in fetch.keys]

    @staticmethod
    def _patience_ns(expected_s: float) -> int:
        return int(max(limits.GIVE_UP_S_MIN, _LATE * expected_s) * 1e9)

    def _arm(self) -> None:
        due_ns = min([NEVER if one.review_ns is None else one.review_ns for one in self._reviewed], default=NEVER)
        self._alarm.set(None if due_ns == NEVER else due_ns)
