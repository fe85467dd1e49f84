"""Elects by a lease in some store: clock, timer and patience around `Candidate`."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time

from controlplane.core.election import Candidate, Hold, LeaseTerms, Look, Renew, Request, Standing, Take
from controlplane.core.events import ElectionEvent
from controlplane.election.contract import LeaseStore, Sink, StoreUnavailableError

LOG = logging.getLogger(__name__)

_ANSWERS_PER_LEASE = 3
"""A store that takes longer for an answer is asked again, and another of its servers."""
_WATCH_AGAIN_S = 0.5


class LeaseElection:
    """`Election` by lease."""

    def __init__(self, store: LeaseStore, name: str, lease_ms: int) -> None:
        """`name`: no other candidate has it, nor had it before."""
        self._store = store
        self._lease_s = lease_ms / 1000
        self._candidate = Candidate(name, LeaseTerms(lease_ms * 1_000_000, store.ends_by_itself))
        self._wake = asyncio.Event()
        self._problems: set[str] = set()
        """Of the store, as they were logged since it answered last."""
        self._told: ElectionEvent | None = None

    @property
    def hold(self) -> Hold | None:
        """What this controller holds now; None: it does not lead."""
        leads = self._candidate.standing(time.monotonic_ns()) is Standing.LEADING
        return self._candidate.hold if leads else None

    async def run(self, sink: Sink) -> None:
        """See `Election`."""
        self._told = None
        self._tell(sink)
        watch = asyncio.create_task(self._watch())
        try:
            while True:
                await self._step()
                self._tell(sink)
        finally:
            watch.cancel()
            await asyncio.gather(watch, return_exceptions=True)

    async def resign(self) -> None:
        """See `Election`."""
        hold = self._candidate.hold
        try:
            if hold is not None:
                async with asyncio.timeout(self._lease_s / _ANSWERS_PER_LEASE):
                    await self._store.release(hold)
        except (StoreUnavailableError, TimeoutError) as error:
            LOG.info("%s: the lease was not given back, it ends by itself: %s", self._store.place, _words(error))
        finally:
            await self._store.close()

    # -- inside

    async def _step(self) -> None:
        request = self._candidate.next_request(time.monotonic_ns())
        if request is not None:
            await self._ask(request)
            return
        due_ns = self._candidate.due_ns()
        if due_ns is None:
            raise AssertionError("every request is answered before the next step")
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout((due_ns - time.monotonic_ns()) / 1e9):
                await self._wake.wait()
        self._wake.clear()

    async def _ask(self, request: Request) -> None:
        candidate = self._candidate
        try:
            async with asyncio.timeout(self._lease_s / _ANSWERS_PER_LEASE):
                hold = await self._answer(request)
        except (StoreUnavailableError, TimeoutError) as error:
            candidate.request_failed(time.monotonic_ns())
            self._complain(_words(error))
            return
        heard = {Look: candidate.looked, Take: candidate.taken, Renew: candidate.renewed}[type(request)]
        heard(hold, time.monotonic_ns())
        self._complain("")

    async def _answer(self, request: Request) -> Hold | None:
        match request:
            case Look():
                return await self._store.look()
            case Take(epoch_above, instead_of):
                return await self._store.take(epoch_above, instead_of)
            case Renew(hold):
                return await self._store.renew(hold)

    def _tell(self, sink: Sink) -> None:
        news = self._candidate.news(self._store.place, time.monotonic_ns())
        if news is not None and news != self._told:
            self._told = news
            sink(news)

    async def _watch(self) -> None:
        while True:
            try:
                await self._store.watch(self._lease_changed)
            except StoreUnavailableError as error:
                LOG.debug("%s: %s", self._store.place, error)
            await asyncio.sleep(_WATCH_AGAIN_S)

    def _lease_changed(self) -> None:
        self._candidate.lease_changed(time.monotonic_ns())
        self._wake.set()

    def _complain(self, problem: str) -> None:
        """Say once what goes on."""
        if problem and problem not in self._problems:
            LOG.warning("%s: %s", self._store.place, problem)
            self._problems.add(problem)
        elif self._problems and not problem:
            LOG.info("%s answers again", self._store.place)
            self._problems.clear()


def _words(error: Exception) -> str:
    return "it does not answer in time" if isinstance(error, TimeoutError) else str(error)
