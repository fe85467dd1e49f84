"""Fetches of more chunks than a window: looked for and asked for window by window (`hostagent.core.clock`). Pure.

How far such a fetch goes, and by which ways, the gate decides once, for all of it. What is here by then is pinned while
it is looked for. Then the others are planned and asked for in windows, as they can be had at that time: what others
have brought in the meantime is here, what went is left out, and in a prefix with all that follows on it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from itertools import islice
from typing import Protocol

from hostagent.core.clock import WINDOW, Windows, Work
from hostagent.core.fetch import Fetch, Stage
from hostagent.core.node import Node
from hostagent.core.plan import FetchPlan, FetchPlanner, Look
from kvchunk.ids import ChunkKey
from kvpolicy.value import Tier


class Carries(Protocol):
    """What carries plans out: `Fetches`."""

    def is_under_way(self, fetch: Fetch, /) -> bool:
        """Whether a fetch has not ended."""

    def decided(self, fetch: Fetch, plan: FetchPlan, /) -> Stage:
        """It is known how far a fetch goes; nothing of that was asked for."""

    def carry_on(self, fetch: Fetch, stage: Stage | None, plan: FetchPlan, keys: tuple[ChunkKey, ...], /) -> None:
        """Some more of a fetch is planned: `keys` follow, and those that were here before are among them. Without
        `stage`, the plan is one of its own."""

    def is_nowhere(self, key: ChunkKey, /) -> bool:
        """Whether nobody is known to have a chunk, or to be writing or computing it."""


class LongFetches:
    """Of one node."""

    def __init__(self, node: Node, planner: FetchPlanner, fetches: Carries) -> None:
        self._pool = node.pool
        self._emit = node.emit
        self._windows: Windows = node.windows
        self._planner = planner
        self._fetches = fetches

    def begin(self, fetch: Fetch, look_into_cold: Callable[[Fetch, list[ChunkKey]], bool] | None) -> None:
        """Look for all of it. `look_into_cold(fetch, keys)`: what nothing else has; whether it goes on after that."""
        fetch.unasked = deque(fetch.request.keys)
        self._windows.begin(self._planned(fetch) if look_into_cold is None else self._looked_up(fetch, look_into_cold))

    def find_nowhere(self, fetch: Fetch, found: Callable[[list[ChunkKey]], None]) -> None:
        """Call `found` with what nobody is known to have of it, unless it ends before that is known."""
        fetch.unasked = deque(fetch.request.keys)
        self._windows.begin(self._told_nowhere(fetch, found))

    def bring_more(self, fetch: Fetch, keys: Iterable[ChunkKey]) -> None:
        """Further chunks of a fetch can be brought."""
        is_idle = not fetch.unasked
        fetch.unasked.extend(keys)
        if is_idle:
            self._windows.begin(self._asked(fetch, None, {}))

    def _looked_up(self, fetch: Fetch, look_into_cold: Callable[[Fetch, list[ChunkKey]], bool]) -> Work:
        nowhere: list[ChunkKey] = []
        yield from self._told_nowhere(fetch, nowhere.extend)
        if self._fetches.is_under_way(fetch) and not (nowhere and look_into_cold(fetch, nowhere)):
            yield from self._planned(fetch)

    def _told_nowhere(self, fetch: Fetch, found: Callable[[list[ChunkKey]], None]) -> Work:
        nowhere: list[ChunkKey] = []
        for first in range(0, len(fetch.request.keys), WINDOW):
            if not self._fetches.is_under_way(fetch):
                return
            nowhere += filter(self._fetches.is_nowhere, fetch.request.keys[first : first + WINDOW])
            yield
        if self._fetches.is_under_way(fetch):
            found(nowhere)

    def _planned(self, fetch: Fetch) -> Work:
        """Look for all of it, decide, and ask for it."""
        request, look = fetch.request, Look()
        for first in range(0, len(request.keys), WINDOW):
            if look.is_over or not self._fetches.is_under_way(fetch):
                break
            self._planner.look(look, fetch, request.keys[first : first + WINDOW])
            yield
        if not self._fetches.is_under_way(fetch):
            return
        plan = self._planner.decide(look, request)
        for key in look.offered[len(plan.keys) :]:
            chunk = fetch.pinned.pop(key, None)
            if chunk is not None:
                self._pool.unpin(chunk)
        fetch.unasked = deque(plan.keys)
        stage = self._fetches.decided(fetch, plan)
        yield
        yield from self._asked(fetch, stage, dict(zip(plan.keys, plan.verdict.routes, strict=False)))
        if request.traced and self._fetches.is_under_way(fetch):
            self._emit(self._planner.trace_of_long(fetch, plan))

    def _asked(self, fetch: Fetch, stage: Stage | None, ways: Mapping[ChunkKey, Tier]) -> Work:
        """Ask for what was decided, and for what was computed in the meantime; the latter has no way yet."""
        while fetch.unasked and self._fetches.is_under_way(fetch):
            is_decided = fetch.unasked[0] in ways
            window = [key for key in islice(fetch.unasked, WINDOW) if (key in ways) is is_decided]
            self._ask(fetch, stage if is_decided else None, window, ways)
            yield

    def _ask(self, fetch: Fetch, stage: Stage | None, window: list[ChunkKey], ways: Mapping[ChunkKey, Tier]) -> None:
        request = fetch.request
        wanted = tuple(key for key in window if key not in fetch.pinned)
        plan = self._planner.plan(request._replace(keys=wanted, prefill=None, may_wait=False), ways)
        for _ in window:
            fetch.unasked.popleft()
        keys = tuple(window)
        if len(plan.keys) < len(wanted):
            had = fetch.pinned.keys() | set(plan.keys)
            if request.any_order:
                keys = tuple(key for key in window if key in had)
            else:
                keys = keys[: next(place for place, key in enumerate(window) if key not in had)]
                fetch.unasked.clear()
        self._fetches.carry_on(fetch, stage, plan, keys)
