"""Engines' fetches, some of whose chunks are still being computed: brought stage by stage, as they come. Pure.

The gate decides whether a fetch waits (`kvpolicy.tiers.merging`). Its first stage brings what is there. Each time that
more of its chunks are there, a further stage brings them at once; all who wait hear of a chunk in the same moment, so
that one cast serves them. A wait ends when everything has come, when its bound has passed, or when nobody computes the
next chunk any more: then the engine gets what is here, with the status ABANDONED, and computes the rest.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from hostagent import limits
from hostagent.core.claims import Freed
from hostagent.core.fetch import Fetch
from hostagent.core.plan import FetchPlan, Ways
from kvchunk.ids import ChunkKey
from kvclient.messages import Status
from kvpolicy.tiers.merging import NOTICE_S

_TOLERANCE_NS = int(NOTICE_S * 1e9)
"""A promise may be later than the bound of a wait by so much: it is an estimate."""


class Brings(Protocol):
    """What brings chunks: `Fetches`."""

    def can_bring(self, key: ChunkKey, /) -> bool:
        """Whether a chunk is here, on its way, or known to be somewhere."""

    def bring_more(self, fetch: Fetch, count: int, /) -> None:
        """The first chunks that a fetch awaited can be brought."""

    def wait_ended(self, fetch: Fetch, why: Status, /) -> None:
        """A fetch waits for nothing more to be computed."""


@dataclass(slots=True)
class WaitCounts:
    """Running totals, for metrics."""

    begun: int = 0
    chunks: int = 0
    """That came to those who waited for them."""
    waited_s: float = 0.0
    saved_s: float = 0.0
    freed: Counter[Freed] = field(default_factory=Counter)
    """Waits that ended before everything had come."""


class Waits:
    """Of one node."""

    def __init__(self, ways: Ways, fetches: Brings) -> None:
        node = ways.node
        self._clock = node.clock
        self._pool = node.pool
        self._gate = ways.gate
        self._claims = ways.claims
        self._fetches = fetches
        self.by_chunk: dict[ChunkKey, dict[Fetch, None]] = {}
        """Fetches by each chunk that they wait for. To be read."""
        self._waiting: dict[Fetch, int] = {}
        """For how many chunks each waits."""
        self._alarm = node.alarms.add(self._look_at_time)
        self.counts = WaitCounts()

    @property
    def waiting_count(self) -> int:
        """Fetches that wait for something to be computed."""
        return len(self._waiting)

    def begin(self, fetch: Fetch, plan: FetchPlan) -> None:
        """A fetch waits for what its plan says is being computed."""
        self.counts.begun += 1
        fetch.verdict = plan.verdict
        fetch.planned_count = len(plan.keys)
        if plan.verdict.give_up_s is not None:
            bound_ns = int(max(limits.GIVE_UP_S_MIN, plan.verdict.give_up_s) * 1e9)
            fetch.deadline_ns = min(fetch.deadline_ns, fetch.started_ns + bound_ns)
        fetch.awaited = list(plan.awaited)
        for key in fetch.awaited:
            self.by_chunk.setdefault(key, {})[fetch] = None
        self._waiting[fetch] = len(fetch.awaited)
        due_ns, alarm = fetch.look_ns(self._clock.now_ns), self._alarm
        if alarm.due_ns is None or due_ns < alarm.due_ns:
            alarm.set(due_ns)  # which may ring too early, for one that waits no more

    def fetch_ended(self, fetch: Fetch, came_count: int) -> None:
        """A fetch that waited is over, with so many chunks."""
        self.counts.chunks += max(0, came_count - fetch.planned_count)
        if fetch.verdict is not None:
            seconds = (self._clock.now_ns - fetch.started_ns) / 1e9
            self.counts.waited_s += seconds
            self.counts.saved_s += self._gate.waited(fetch.verdict, came_count, seconds)

    def forget(self, fetch: Fetch) -> None:
        """A fetch awaits nothing any more."""
        self._forget(fetch, len(fetch.awaited))

    def close(self) -> None:
        """The process ends: nobody is answered any more."""
        self._alarm.due_ns = None
        self.by_chunk.clear()
        self._waiting.clear()

    # ------------------------------------------------------------------ news

    def chunks_available(self, keys: Iterable[ChunkKey]) -> None:
        """These may be here, or known to be somewhere, by now."""
        if not self.by_chunk:
            return
        for fetch in self._of(keys):
            self._advance(fetch)

    def claims_ended(self, keys: Sequence[ChunkKey], why: Freed) -> None:
        """One of those who computed these does so no more."""
        if not self.by_chunk:
            return
        for fetch in self._of(keys):
            self._check(fetch, why)

    def claims_made(self, keys: Iterable[ChunkKey]) -> None:
        """Those who compute these have said when they will be there."""
        self.claims_ended(tuple(keys), Freed.LATE)

    def deadline_passed(self, fetch: Fetch) -> None:
        """It ends with what is here."""
        self._stop(fetch, 0, Freed.DEADLINE)
        fetch.stopped = fetch.overdue(self._clock.now_ns)

    def _look_at_time(self) -> None:
        now_ns = self._clock.now_ns
        for fetch in list(self._waiting):
            if fetch.deadline_ns <= now_ns:
                self._cut(fetch, 0, Freed.DEADLINE)
            elif fetch.expected_ns <= now_ns:
                self._check(fetch, Freed.UNKNOWN)
        self._alarm.set(min((fetch.look_ns(now_ns) for fetch in self._waiting), default=None))

    # ------------------------------------------------------------------ inside

    def _of(self, keys: Iterable[ChunkKey]) -> list[Fetch]:
        """Those who wait for any of these, each once, in the order in which they came to wait."""
        found: dict[Fetch, None] = {}
        for key in keys:
            found |= dict.fromkeys(self.by_chunk.get(key, ()))
        return list(found)

    def _advance(self, fetch: Fetch) -> None:
        """Bring what has come to be there, up to the first chunk that is still being computed."""
        awaited = fetch.awaited
        count = next((place for place, key in enumerate(awaited) if not self._fetches.can_bring(key)), len(awaited))
        if count:
            for key in awaited[:count]:
                self._leave(fetch, key)
            self._fetches.bring_more(fetch, count)

    def _check(self, fetch: Fetch, why: Freed) -> None:
        """Go on waiting as far as there is something to wait for that may come in time."""
        now_ns = self._clock.now_ns
        if fetch.expected_ns > now_ns:
            return
        for place, key in enumerate(fetch.awaited):
            if self._fetches.can_bring(key) or self._pool.is_filling(key):
                continue
            computed = self._claims.find(key)
            if computed is None or now_ns + int(computed.ready_s * 1e9) > fetch.deadline_ns + _TOLERANCE_NS:
                self._cut(fetch, place, why if computed is None else Freed.LATE)
                return

    def _cut(self, fetch: Fetch, place: int, why: Freed) -> None:
        """Do not wait for the chunks from here on."""
        if fetch.awaited[place:]:
            self._stop(fetch, place, why)
            overdue = why is Freed.DEADLINE
            self._fetches.wait_ended(fetch, fetch.overdue(self._clock.now_ns) if overdue else Status.ABANDONED)

    def _stop(self, fetch: Fetch, place: int, why: Freed) -> None:
        if why in (Freed.LATE, Freed.DEADLINE):
            self._claims.waited_in_vain(fetch.awaited[place])
        self._forget(fetch, len(fetch.awaited) - place)
        self.counts.freed[why] += 1

    def _forget(self, fetch: Fetch, count: int) -> None:
        """It does not await the last `count` chunks any more."""
        for _ in range(count):
            self._leave(fetch, fetch.awaited.pop())

    def _leave(self, fetch: Fetch, key: ChunkKey) -> None:
        waiting = self.by_chunk.get(key, {})
        if fetch in waiting:
            del waiting[fetch]
            if not waiting:
                del self.by_chunk[key]
            self._waiting[fetch] -= 1
            if not self._waiting[fetch]:
                del self._waiting[fetch]
