"""Engines' fetches, some of whose chunks are still being computed: brought in parts, as they come. Pure.

The gate decides whether a fetch waits (`kvpolicy.tiers.merging`). Its first part brings what is there. Each time that
more of its chunks are there, a further part brings them at once; all who wait hear of a chunk in the same moment, so
that one cast serves them. A wait ends when everything has come, when its bound has passed, or when nobody computes the
next chunk any more: then the engine gets what is here, with the status ABANDONED, and computes the rest.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from hostagent import limits
from hostagent.core.claims import Claims, Freed
from hostagent.core.cold import ColdIndex
from hostagent.core.fetch import FetchResult, Progressed, Purpose
from hostagent.core.fetches import Fetches
from hostagent.core.node import Node
from hostagent.core.plan import FetchPlan
from hostagent.pool.chunks import Chunk
from hostagent.pool.tenants import NOBODY
from kvchunk.ids import ChunkKey
from kvchunk.sources import ChunkSource
from kvclient.messages import Status
from kvpolicy.tiers.gate import Gate, Prefill, Verdict
from kvpolicy.tiers.merging import NOTICE_S
from kvproto.ids import FetchId

_TOLERANCE_NS = int(NOTICE_S * 1e9)
"""A promise may be later than the bound of a wait by so much: it is an estimate."""


@dataclass(slots=True, eq=False)
class _Part:
    """Chunks that follow on each other and are fetched together."""

    keys: tuple[ChunkKey, ...]
    awaited: bool = False
    """They were being computed when the fetch began."""
    fetch: FetchId | None = None
    result: FetchResult | None = None
    so_far: list[tuple[Chunk, ChunkSource]] = field(default_factory=list)
    """Leading chunks that have come while it is under way, for one who wants to hear of them."""
    told_count: int = 0
    """Of its leading chunks, those that whoever waits has heard of."""

    @property
    def is_whole(self) -> bool:
        """Whether all of its chunks have come."""
        return self.result is not None and len(self.result.chunks) == len(self.keys)


@dataclass(slots=True, eq=False)
class Wait:
    """One fetch of an engine; most wait for nothing and have one part."""

    ended: Callable[[FetchResult], None]
    started_ns: int
    deadline_ns: int
    expected_ns: int
    """Until then somebody may begin to compute what nobody computes."""
    stopped: Status = Status.OK
    """Why the keys asked for go no further; OK when they do."""
    parts: list[_Part] = field(default_factory=list)
    awaited: list[ChunkKey] = field(default_factory=list)
    verdict: Verdict | None = None
    """Of a fetch that waited."""
    tenant: str = NOBODY
    progressed: Callable[[Sequence[tuple[Chunk, ChunkSource]]], None] | None = None
    """Hears of more leading chunks that have come, each pinned once for it."""
    over: bool = False


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
    """One node's."""

    def __init__(self, node: Node, fetches: Fetches, gate: Gate, claims: Claims, cold: ColdIndex) -> None:
        self._clock = node.clock
        self._pool = node.pool
        self._fetches = fetches
        self._gate = gate
        self._claims = claims
        self._cold = cold
        self._waiting: dict[ChunkKey, list[Wait]] = {}
        """By each chunk that they wait for."""
        self._alarm = node.alarms.add(self._look_at_time)
        self.counts = WaitCounts()

    @property
    def waiting_count(self) -> int:
        """Fetches that wait for something to be computed."""
        return len(self._all())

    def begin(
        self,
        keys: Sequence[ChunkKey],
        deadline_ns: int,
        ended: Callable[[FetchResult], None],
        prefill: Prefill | None,
        expected_s: float = 0.0,
        *,
        traced: bool = False,
        any_order: bool = False,
        tenant: str = NOBODY,
        progressed: Callable[[Sequence[tuple[Chunk, ChunkSource]]], None] | None = None,
    ) -> Wait | None:
        """As `Fetches.begin`, for an engine, which may have to wait. None: it has ended already. What nothing else has
        is looked for in the cold store first. `progressed`: hears of leading chunks that have come, each pinned once
        for it; `ended` has all of them all the same."""
        now_ns = self._clock.now_ns
        if prefill is not None and self._claims:
            prefill = replace(prefill, behind=max(prefill.behind, self._claims.behind))
        wait = Wait(ended, now_ns, deadline_ns, now_ns + int(expected_s * 1e9), tenant=tenant, progressed=progressed)
        part = _Part(tuple(keys))
        wait.parts.append(part)

        def begin() -> None:
            if wait.over:
                return
            part.fetch = self._fetches.begin(
                keys,
                Purpose.ENGINE,
                deadline_ns,
                partial(self._part_ended, wait, part),
                prefill=prefill,
                progressed=self._heard_by(wait, part),
                waits=partial(self._planned, wait, part),
                expected_s=expected_s,
                traced=traced,
                any_order=any_order,
                tenant=tenant,
            )

        if not self._looks(keys, prefill, deadline_ns, begin, any_order):
            begin()
        return None if wait.over else wait

    def _looks(
        self,
        keys: Sequence[ChunkKey],
        prefill: Prefill | None,
        deadline_ns: int,
        then: Callable[[], None],
        any_order: bool,
    ) -> bool:
        """Whether the fetch goes on with `then`, when the cold store has been asked for what nothing else has."""
        if not self._cold.has_store or deadline_ns - self._clock.now_ns < 4e9 * self._cold.wait_max_s:
            return False
        first = next((place for place, key in enumerate(keys) if self._is_nowhere(key)), None)
        if first is None:
            return False
        nowhere = [key for key in keys[first:] if self._is_nowhere(key)]
        compute_s = None if prefill is None else prefill.compute_s * len(nowhere) / len(keys)
        return self._cold.look(nowhere, compute_s, then, any_order=any_order)

    def _is_nowhere(self, key: ChunkKey) -> bool:
        here = self._fetches.can_bring(key) or self._pool.is_filling(key)
        return not here and self._claims.find(key) is None

    def cancel(self, wait: Wait) -> None:
        """Nobody wants it any more: `ended` is not called. Idempotent."""
        if wait.over:
            return
        wait.over = True
        self._forget(wait, wait.awaited)
        for part in wait.parts:
            self._drop(part)

    def close(self) -> None:
        """The process ends: nobody is answered any more."""
        self._alarm.cancel()
        for wait in self._all():
            self.cancel(wait)

    # ------------------------------------------------------------------ news

    def came(self, keys: Iterable[ChunkKey]) -> None:
        """These may be here, or known to be somewhere, by now."""
        if not self._waiting:
            return
        for wait in self._of(keys):
            self._advance(wait)

    def freed(self, keys: Sequence[ChunkKey], why: Freed) -> None:
        """One of those who computed these does so no more."""
        if not self._waiting:
            return
        for wait in self._of(keys):
            self._check(wait, why)

    def promised(self, keys: Iterable[ChunkKey]) -> None:
        """Those who compute these have said when they will be there."""
        self.freed(tuple(keys), Freed.LATE)

    def _look_at_time(self) -> None:
        now_ns = self._clock.now_ns
        for wait in self._all():
            if wait.deadline_ns <= now_ns:
                self._cut(wait, 0, Freed.DEADLINE)
            elif wait.expected_ns <= now_ns:
                self._check(wait, Freed.UNKNOWN)
        self._set_alarm()

    # ------------------------------------------------------------------ inside

    def _all(self) -> list[Wait]:
        return self._of(self._waiting)

    def _of(self, keys: Iterable[ChunkKey]) -> list[Wait]:
        """Those who wait for any of these, each once, in the order in which they came to wait."""
        found: dict[Wait, None] = {}
        for key in keys:
            found |= dict.fromkeys(self._waiting.get(key, ()))
        return list(found)

    def _planned(self, wait: Wait, part: _Part, plan: FetchPlan) -> None:
        part.keys = plan.keys
        wait.stopped = plan.stopped
        if not plan.awaited:
            return
        self.counts.begun += 1
        wait.verdict = plan.verdict
        if plan.verdict.give_up_s is not None:
            bound_ns = int(max(limits.GIVE_UP_S_MIN, plan.verdict.give_up_s) * 1e9)
            wait.deadline_ns = min(wait.deadline_ns, wait.started_ns + bound_ns)
        if not plan.keys:
            wait.parts.remove(part)
        wait.awaited = list(plan.awaited)
        for key in wait.awaited:
            self._waiting.setdefault(key, []).append(wait)
        self._set_alarm()

    def _set_alarm(self) -> None:
        now_ns = self._clock.now_ns
        times = [
            wait.expected_ns if now_ns < wait.expected_ns < wait.deadline_ns else wait.deadline_ns
            for wait in self._all()
        ]
        self._alarm.set(min(times, default=None))

    def _advance(self, wait: Wait) -> None:
        """Bring what has come to be there, up to the first chunk that is still being computed."""
        count = next(
            (place for place, key in enumerate(wait.awaited) if not self._fetches.can_bring(key)), len(wait.awaited)
        )
        if not count or wait.over:
            return
        part = _Part(tuple(wait.awaited[:count]), awaited=True)
        wait.parts.append(part)
        self._forget(wait, wait.awaited[:count])
        del wait.awaited[:count]
        part.fetch = self._fetches.begin(
            part.keys,
            Purpose.ENGINE,
            wait.deadline_ns,
            partial(self._part_ended, wait, part),
            tenant=wait.tenant,
            progressed=self._heard_by(wait, part),
        )

    def _check(self, wait: Wait, why: Freed) -> None:
        """Go on waiting as far as there is something to wait for that may come in time."""
        now_ns = self._clock.now_ns
        if wait.expected_ns > now_ns:
            return
        for place, key in enumerate(wait.awaited):
            if self._fetches.can_bring(key) or self._pool.is_filling(key):
                continue
            computed = self._claims.find(key)
            if computed is None or now_ns + int(computed.ready_s * 1e9) > wait.deadline_ns + _TOLERANCE_NS:
                self._cut(wait, place, why if computed is None else Freed.LATE)
                return

    def _cut(self, wait: Wait, place: int, why: Freed) -> None:
        """Do not wait for the chunks from here on."""
        if wait.over or not wait.awaited[place:]:
            return
        if why in (Freed.LATE, Freed.DEADLINE):
            self._claims.waited_in_vain(wait.awaited[place])
        self._forget(wait, wait.awaited[place:])
        del wait.awaited[place:]
        wait.stopped = Status.DEADLINE if why is Freed.DEADLINE else Status.ABANDONED
        self.counts.freed[why] += 1
        self._settle(wait)

    def _part_ended(self, wait: Wait, part: _Part, result: FetchResult) -> None:
        part.result = result
        part.so_far = list(result.chunks)
        if part.awaited:
            self.counts.chunks += len(result.chunks)
        if not part.is_whole and wait.awaited:
            self._forget(wait, wait.awaited)
            wait.awaited = []
        self._settle(wait)

    def _heard_by(self, wait: Wait, part: _Part) -> Progressed | None:
        """Whoever wants to hear of the leading chunks of a part."""
        if wait.progressed is None:
            return None

        def progressed(_: int, came: Sequence[tuple[Chunk, ChunkSource]]) -> None:
            part.so_far += came
            self._tell(wait)

        return progressed

    def _tell(self, wait: Wait) -> None:
        """Say which chunks have come, up to the first that has not."""
        if wait.progressed is None or wait.over:
            return
        for part in wait.parts:
            new = part.so_far[part.told_count :]
            if new:
                part.told_count = len(part.so_far)
                for chunk, _ in new:
                    self._pool.pin(chunk)
                wait.progressed(new)
            if not part.is_whole:
                break

    def _settle(self, wait: Wait) -> None:
        """Answer when nothing is under way or waited for any more."""
        if wait.over or wait.awaited or any(part.result is None for part in wait.parts):
            self._tell(wait)
            return
        wait.over = True
        chunks: list[tuple[Chunk, ChunkSource]] = []
        status = wait.stopped
        parts = iter(wait.parts)
        for part in parts:
            if part.result is not None:
                chunks += part.result.chunks
                if not part.is_whole:
                    status = part.result.status
                    break
        for part in parts:
            self._drop(part)
        if wait.verdict is not None:
            seconds = (self._clock.now_ns - wait.started_ns) / 1e9
            self.counts.waited_s += seconds
            self.counts.saved_s += self._gate.waited(wait.verdict, len(chunks), seconds)
        wait.ended(FetchResult(status, tuple(chunks)))

    def _drop(self, part: _Part) -> None:
        """Give back what a part brought, or end it."""
        if part.result is not None:
            for chunk, _ in part.result.chunks:
                self._pool.unpin(chunk)
        elif part.fetch is not None:
            self._fetches.cancel(part.fetch)

    def _forget(self, wait: Wait, keys: Iterable[ChunkKey]) -> None:
        for key in list(keys):
            waiting = self._waiting.get(key, [])
            if wait in waiting:
                waiting.remove(wait)
                if not waiting:
                    del self._waiting[key]
