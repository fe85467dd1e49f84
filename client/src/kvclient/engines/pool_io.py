"""Lookups and fetches of an engine's scheduler, and the leases that they bring.

The scheduler hands commands in and takes answers out; neither waits for the agent. All of it runs on the scheduler's
own thread: a request leaves when it is made, and the agent works on it while the engine goes on. Of chunks that are in
this node's pool the agent is not asked at all.
"""

from __future__ import annotations

import contextlib
import json
import logging
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from kvchunk.ids import ChunkKey
from kvchunk.sources import ChunkSource
from kvclient import messages
from kvclient.attach import AgentUnavailableError, LeaseLostError
from kvclient.engines.core.claims import Claim, Disclaim
from kvclient.engines.core.requests import Command, Fetch, LookUp, Release
from kvclient.engines.link import AgentLink
from kvclient.local import LocalLease
from kvclient.messages import Frame, MalformedFrameError, Status, Where
from kvclient.polled_client import PolledClient, lease_of, places_of

FETCHES_AT_ONCE = 32
"""More wait here, in order."""


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
    outcome: Status
    seconds: float
    """Until it was noticed here."""


@dataclass(frozen=True, slots=True)
class Swept:
    chunks: tuple[tuple[ChunkKey, ...], ...]
    where: tuple[Where, ...]
    """Per key, flat."""
    agent_bytes_per_s: float
    """The agent's measured fetch rate; 0 when it did not say."""


Answer = LookedUp | FetchEnded | Swept


@dataclass(slots=True)
class _Lookup:
    command: LookUp
    where: list[Where] = field(default_factory=list)


@dataclass(slots=True)
class _Sweep:
    chunks: tuple[tuple[ChunkKey, ...], ...]
    keys: list[ChunkKey]
    where: list[Where] = field(default_factory=list)


@dataclass(slots=True)
class _Fetching:
    command: Fetch
    started_s: float
    client: PolledClient | None = None
    """The client that holds its leases; None: not begun."""
    asked: int | None = None
    """Number of the request under way."""
    sources: list[ChunkSource] = field(default_factory=list)
    leases: list[int] = field(default_factory=list)
    here: LocalLease | None = None
    """Leased without the agent."""


class PoolIo:
    """All traffic of one scheduler with its agent."""

    def __init__(self, link: AgentLink[PolledClient], log: logging.Logger, clock: Callable[[], float]) -> None:
        self._link = link
        self._log = log
        self._clock = clock
        self._client: PolledClient | None = None
        """The client that owes the answers. It differs from the link's if the connection was lost meanwhile."""
        self._asked: dict[int, _Lookup | _Fetching | _Sweep] = {}
        """Unanswered requests by their numbers."""
        self.fetches: dict[tuple[str, int], _Fetching] = {}
        """Fetches that are not released yet, by request and ticket."""
        self._under_way_count = 0
        self._queued: deque[_Fetching] = deque()
        self._answers: list[Answer] = []

    def do(self, command: Command) -> None:
        """Carry out a command of the core."""
        match command:
            case LookUp(request, ticket, keys):
                if self._holds_here(keys):
                    self._answers.append(LookedUp(request, ticket, (Where.LOCAL,) * len(keys)))
                else:
                    self._ask_where(_Lookup(command))
            case Fetch():
                fetching = _Fetching(command, self._clock())
                self.fetches[command.request, command.ticket] = fetching
                if self._lease_here(fetching):
                    sources = (ChunkSource.LOCAL,) * len(command.keys)
                    self._answers.append(FetchEnded(command.request, command.ticket, sources, Status.OK, 0.0))
                elif command.terms.expected_s > 0:
                    # It may wait long for another engine, so it must not take the place of other fetches meanwhile.
                    self._ask_for(fetching)
                else:
                    self._queued.append(fetching)
                    self._begin_queued()
            case Release(request, ticket):
                fetching_or_none = self.fetches.pop((request, ticket), None)
                if fetching_or_none is not None:
                    self._release(fetching_or_none)

    def sweep(self, chunks: Sequence[tuple[ChunkKey, ...]]) -> None:
        """Ask where the announced chunks are, and how fast the agent fetches."""
        if not any(isinstance(asked, _Sweep) for asked in self._asked.values()):
            self._ask_where(_Sweep(tuple(chunks), [key for chunk in chunks for key in chunk]))

    def end_sessions(self, keys: Sequence[ChunkKey]) -> None:
        """Tell the agent that these are not expected again."""
        self._with_client(lambda client: client.session_end(keys))

    def claim(self, claim: Claim, size_bytes: int) -> None:
        """Tell the agent what the engine computes; `size_bytes` of each chunk."""
        self._with_client(lambda client: client.claim(claim.keys, size_bytes, claim.etas_s))

    def disclaim(self, disclaim: Disclaim) -> None:
        """Tell the agent what the engine does not compute after all."""
        self._with_client(lambda client: client.disclaim(disclaim.keys))

    def answers(self, wait_s: float = 0.0) -> list[Answer]:
        """Answers since the last call. Waits up to `wait_s` for one if any request is under way."""
        give_up_s = self._clock() + wait_s if wait_s else 0.0
        while self._client is not None and not self._client.is_idle:
            left_s = max(0.0, give_up_s - self._clock()) if wait_s and not self._answers else 0.0
            self._poll(self._client, left_s)
            if self._answers or left_s == 0:
                break
        answers, self._answers = self._answers, []
        return answers

    def close(self) -> None:
        """Forget everything. The link is closed by its owner: leases end with the connection."""
        self._asked.clear()
        self.fetches.clear()
        self._queued.clear()

    # ------------------------------------------------------------------ without the agent

    def _holds_here(self, keys: Sequence[ChunkKey]) -> bool:
        client = self._link.client
        return bool(keys) and client is not None and client.holds_here(keys)

    def _lease_here(self, fetching: _Fetching) -> bool:
        """Whether all of a fetch's chunks are leased now. A fetch that is traced is the agent's: it has spans."""
        client, command = self._link.client, fetching.command
        if client is not None and command.keys and command.terms.traceparent is None:
            fetching.here = client.lease_here(command.keys)
        return fetching.here is not None

    # ------------------------------------------------------------------ asking

    def _ask_where(self, asked: _Lookup | _Sweep) -> None:
        """The next part of a lookup: as many keys as one request takes."""
        keys = asked.command.keys if isinstance(asked, _Lookup) else asked.keys
        first = len(asked.where)
        part = keys[first : first + messages.KEYS_MAX]

        def ask(client: PolledClient) -> None:
            self._asked[client.contains(part) if part else client.stats()] = asked

        if not self._with_client(ask):
            self._unanswered(asked)

    def _begin_queued(self) -> None:
        while self._queued and self._under_way_count < FETCHES_AT_ONCE:
            fetching = self._queued.popleft()
            self._under_way_count += 1
            if (fetching.command.request, fetching.command.ticket) in self.fetches:
                self._ask_for(fetching)
            else:
                self._fetch_over(fetching, Status.CANCELLED)

    def _ask_for(self, fetching: _Fetching) -> None:
        """The next part of a fetch."""
        command = fetching.command
        part = command.keys[len(fetching.sources) : len(fetching.sources) + messages.KEYS_MAX]
        spent_s = self._clock() - fetching.started_s
        left_s = max(0.001, command.terms.deadline_s - spent_s)

        def ask(client: PolledClient) -> None:
            terms = command.terms
            fetching.asked = client.fetch(
                part,
                deadline_s=left_s,
                recompute_s=terms.recompute_s,
                queue_s=terms.queue_s,
                attention_share=terms.attention_share,
                traceparent=terms.traceparent,
                behind=terms.behind,
                expected_s=max(0.0, terms.expected_s - spent_s),
            )
            fetching.client = client
            self._asked[fetching.asked] = fetching

        if not self._with_client(ask):
            self._unanswered(fetching)

    def _release(self, fetching: _Fetching) -> None:
        if fetching.here is not None:
            # Nobody copied under this lease: it kept the chunks until the workers had leases of their own.
            with contextlib.suppress(LeaseLostError):
                fetching.here.release()

        def release(client: PolledClient) -> None:
            if client is not fetching.client:
                return
            if fetching.asked is not None:
                client.cancel(fetching.asked)
            for lease in fetching.leases:
                client.release(lease)

        if fetching.client is not None:
            self._with_client(release)

    # ------------------------------------------------------------------ being answered

    def _poll(self, client: PolledClient, wait_s: float) -> None:
        """Take in the agent's answers."""
        try:
            for frame in client.poll(wait_s):
                asked = self._asked.pop(frame.request, None)
                try:
                    if isinstance(asked, _Fetching):
                        self._fetched(client, asked, frame)
                    elif asked is not None:
                        self._told_where(asked, frame)
                except MalformedFrameError:
                    if asked is not None:
                        self._asked[frame.request] = asked
                    raise
        except (AgentUnavailableError, MalformedFrameError) as error:
            self._lost(client, str(error))
        self._begin_queued()

    def _told_where(self, asked: _Lookup | _Sweep, frame: Frame) -> None:
        if isinstance(asked, _Sweep) and len(asked.where) == len(asked.keys):
            rate = float(json.loads(frame.body).get("gate_rate_bytes_per_s", 0.0)) if frame.status == Status.OK else 0.0
            self._answers.append(Swept(asked.chunks, tuple(asked.where), rate))
            return
        places = places_of(frame)
        if not places:
            self._log.warning("kvcast: the agent refused to look up: %s", Status(frame.status).name.lower())
            self._unanswered(asked)
            return
        asked.where += places
        if isinstance(asked, _Sweep) or len(asked.where) < len(asked.command.keys):
            self._ask_where(asked)
        else:
            self._answers.append(LookedUp(asked.command.request, asked.command.ticket, tuple(asked.where)))

    def _fetched(self, client: PolledClient, fetching: _Fetching, frame: Frame) -> None:
        command = fetching.command
        fetching.asked = None
        lease, sources = lease_of(frame)
        if lease:
            fetching.leases.append(lease)
        fetching.sources += sources
        if (command.request, command.ticket) not in self.fetches:
            # Released while the answer was on its way.
            if lease:
                client.release(lease)
            self._fetch_over(fetching, Status.CANCELLED)
        elif frame.status == Status.OK and len(fetching.sources) < len(command.keys):
            self._ask_for(fetching)
        else:
            self._fetch_over(fetching, Status(frame.status))

    def _fetch_over(self, fetching: _Fetching, outcome: Status) -> None:
        name = (fetching.command.request, fetching.command.ticket)
        if not fetching.leases:
            self.fetches.pop(name, None)
        self._answers.append(FetchEnded(*name, tuple(fetching.sources), outcome, self._clock() - fetching.started_s))
        if not fetching.command.terms.expected_s:
            self._under_way_count -= 1

    def _unanswered(self, asked: _Lookup | _Fetching | _Sweep) -> None:
        """There is no agent, or it refused."""
        if isinstance(asked, _Lookup):
            self._answers.append(LookedUp(asked.command.request, asked.command.ticket, None))
        elif isinstance(asked, _Fetching):
            asked.asked = None
            asked.sources.clear()
            asked.leases.clear()
            self._fetch_over(asked, Status.UNAVAILABLE)

    # ------------------------------------------------------------------ the agent

    def _with_client(self, do: Callable[[PolledClient], None]) -> bool:
        """Whether there was an agent to do it with."""
        client = self._link.client
        if client is not self._client and self._asked:
            self._nobody_answers()
        self._client = client
        if client is None:
            return False
        try:
            do(client)
        except AgentUnavailableError as error:
            self._lost(client, str(error))
            return False
        return True

    def _lost(self, client: PolledClient, reason: str) -> None:
        self._link.connection_lost(client, reason)
        self._client = None
        self._nobody_answers()

    def _nobody_answers(self) -> None:
        """The agent that owed answers is gone, and its leases with it: answer every request."""
        asked, self._asked = self._asked, {}
        for each in asked.values():
            self._unanswered(each)
