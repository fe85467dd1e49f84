"""Lookups and fetches of an engine's scheduler, in threads of their own, and the leases they bring.

The scheduler hands commands in and takes answers out; neither ever waits for the agent.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

from hostagent import limits
from hostagent.client import AgentClient, AgentError, AgentUnavailableError, ChunkSource, Fetched, FetchUnderWay, Status
from hostagent.client import Where as Where
from hostagent.engines.core.requests import Command, Fetch, LookUp, Release
from hostagent.engines.link import AgentLink
from kvproto.ids import ChunkKey

T = TypeVar("T")

FETCHES_AT_ONCE = 32


@dataclass(frozen=True, slots=True)
class LookedUp:
    request: str
    ticket: int
    where: tuple[Where, ...] | None
    """None: there is no agent."""


@dataclass(frozen=True, slots=True)
class FetchEnded:
    request: str
    ticket: int
    sources: tuple[ChunkSource, ...]
    sizes: tuple[int, ...]
    """Bytes of each leased chunk."""
    outcome: Status
    seconds: float


@dataclass(frozen=True, slots=True)
class Swept:
    chunks: tuple[tuple[ChunkKey, ...], ...]
    where: tuple[Where, ...]
    """Per key, flat."""
    agent_bytes_per_s: float
    """The agent's measured fetch rate; 0 when it did not say."""


Answer = LookedUp | FetchEnded | Swept


@dataclass(slots=True)
class _Lease:
    parts: list[Fetched]
    under_way: FetchUnderWay | None = None
    given_up: bool = False


class PoolIo:
    """All traffic of one scheduler with its agent."""

    def __init__(self, link: AgentLink, log: logging.Logger, clock: Callable[[], float]) -> None:
        self._link = link
        self._log = log
        self._clock = clock
        self.answers: queue.SimpleQueue[Answer] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._leases: dict[tuple[str, int], _Lease] = {}
        self._lookups = ThreadPoolExecutor(1, thread_name_prefix="kvcast-lookup")
        self._fetches = ThreadPoolExecutor(FETCHES_AT_ONCE, thread_name_prefix="kvcast-fetch")

    @property
    def leases_count(self) -> int:
        """Leases and fetches that are not released yet."""
        return len(self._leases)

    def do(self, commands: Sequence[Command]) -> None:
        """Begin what the core decided."""
        for command in commands:
            match command:
                case LookUp():
                    self._lookups.submit(self._look_up, command)
                case Fetch():
                    lease = _Lease([])
                    with self._lock:
                        self._leases[command.request, command.ticket] = lease
                    self._fetches.submit(self._fetch, command, lease)
                case Release(request, ticket):
                    self._release(request, ticket)

    def sweep(self, chunks: Sequence[tuple[ChunkKey, ...]]) -> None:
        """Ask where chunks are that routers were told of, and how fast the agent fetches."""
        self._lookups.submit(self._sweep, tuple(chunks))

    def end_sessions(self, keys: Sequence[ChunkKey]) -> None:
        """Tell the agent that these are not expected again."""
        self._lookups.submit(self._end_sessions, tuple(keys))

    def close(self) -> None:
        """Give everything back. The link is closed by its owner, before this, so that nothing waits."""
        with self._lock:
            leases = list(self._leases)
        for request, ticket in leases:
            self._release(request, ticket)
        self._lookups.shutdown(wait=True, cancel_futures=True)
        self._fetches.shutdown(wait=True, cancel_futures=True)

    # ------------------------------------------------------------------ in threads

    def _look_up(self, command: LookUp) -> None:
        where = self._call(lambda client: self._contains(client, command.keys))
        self.answers.put(LookedUp(command.request, command.ticket, tuple(where) if where is not None else None))

    def _fetch(self, command: Fetch, lease: _Lease) -> None:
        started_s = self._clock()
        outcome = self._call(lambda client: self._fetch_parts(client, command, lease, started_s))
        with self._lock:
            sources = tuple(source for part in lease.parts for source in part.sources)
            sizes = tuple(len(view) for part in lease.parts for view in part.views)
        if outcome is None:
            outcome = Status.UNAVAILABLE
        self.answers.put(
            FetchEnded(command.request, command.ticket, sources, sizes, outcome, self._clock() - started_s)
        )

    def _fetch_parts(self, client: AgentClient, command: Fetch, lease: _Lease, started_s: float) -> Status:
        """As many requests as the keys need; they end with the first that does not bring all of its own."""
        terms = command.terms
        outcome = Status.OK
        for at in range(0, len(command.keys), limits.API_KEYS_MAX):
            left_s = max(0.001, terms.deadline_s - (self._clock() - started_s))
            keys = command.keys[at : at + limits.API_KEYS_MAX]
            with self._lock:
                if lease.given_up:
                    return Status.CANCELLED
                lease.under_way = client.start_fetch(keys, deadline_s=left_s, recompute_s=terms.recompute_s)
            part = lease.under_way.wait()
            with self._lock:
                lease.under_way = None
                if lease.given_up:
                    part.release()
                    return Status.CANCELLED
                lease.parts.append(part)
            outcome = part.outcome
            if outcome is not Status.OK:
                break
        return outcome

    def _release(self, request: str, ticket: int) -> None:
        with self._lock:
            lease = self._leases.pop((request, ticket), None)
            if lease is None:
                return
            lease.given_up = True
            under_way, parts = lease.under_way, lease.parts
            lease.parts = []
        if under_way is not None:
            under_way.cancel()
        for part in parts:
            part.release()

    def _sweep(self, chunks: tuple[tuple[ChunkKey, ...], ...]) -> None:
        keys = [key for chunk in chunks for key in chunk]
        where = self._call(lambda client: self._contains(client, keys))
        figures = self._call(lambda client: client.stats())
        if where is None or figures is None:
            return
        self.answers.put(Swept(chunks, tuple(where), figures.get("gate_rate_bytes_per_s", 0.0)))

    def _end_sessions(self, keys: tuple[ChunkKey, ...]) -> None:
        def tell(client: AgentClient) -> bool:
            for at in range(0, len(keys), limits.API_KEYS_MAX):
                client.session_end(keys[at : at + limits.API_KEYS_MAX])
            return True

        self._call(tell)

    @staticmethod
    def _contains(client: AgentClient, keys: Sequence[ChunkKey]) -> list[Where]:
        where: list[Where] = []
        for at in range(0, len(keys), limits.API_KEYS_MAX):
            where += client.contains(keys[at : at + limits.API_KEYS_MAX])
        return where

    def _call(self, do: Callable[[AgentClient], T]) -> T | None:
        """None when there is no agent or it refuses."""
        client = self._link.client
        if client is None:
            return None
        try:
            return do(client)
        except AgentUnavailableError as error:
            self._link.lost(client, str(error))
        except AgentError as error:
            self._log.warning("kvcast: %s", error)
        return None
