"""A node's GPU that prefills one request at a time, and looks each prefix up again when it is free for it.

As an engine with a scheduler does it: a request that has to queue is looked up when it arrives, so that what others
have is on its way meanwhile. At its turn the prefix is looked up again, because others may have computed it since. A
request that then waits (for a fetch, or for what another node computes) does not hold the GPU: the next one is looked
up.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

from hostagent.core import effects
from kvchunk.ids import ChunkKey
from planner.cluster.agent import Agent
from planner.cluster.clock import VirtualClock
from planner.cluster.options import Merging
from planner.cluster.requests import Request
from planner.hardware import Engine


@dataclass(slots=True, eq=False)
class Job:
    """A request between its arrival and its first token."""

    request: Request
    queued_s: float = 0.0
    """When it queued for the GPU."""
    granted_s: float | None = None
    """When it had its first turn."""
    answered: bool = False
    """It has been looked up at its turn: when it is its turn again, it computes."""
    prefill_s: float = 0.0
    answers: list[effects.FetchAnswered] = field(default_factory=list)


class Gpu:
    """The engine of one node: it serves one request after another."""

    def __init__(
        self, clock: VirtualClock, agent: Agent, engine: Engine, merging: Merging, ended: Callable[[Job, int], None]
    ) -> None:
        """`ended(job, node)`: it has its first token; chunks are in the pool, leases given back."""
        self._clock = clock
        self._agent = agent
        self._engine = engine
        self._merging = merging
        self._ended = ended
        self._queue: deque[Job] = deque()
        self._busy_until_s: float | None = None
        self._looking = False
        self._unsaved: set[ChunkKey] = set()
        """Chunks that this engine computed while its pool was being filled with them from elsewhere: it has its own."""
        self.busy_s = 0.0
        self.computed_chunks = 0

    # -- requests

    def arrive(self, request: Request) -> None:
        """A request arrives: while it queues, what others have of it is on its way."""
        job = Job(request)
        queue_s = self._queue_s()
        if request.keys and queue_s > 0:
            self._ask(job, queue_s, 0, self._fetched_early)
        job.queued_s = self._clock.now_s
        self._queue.append(job)
        self._next()

    def _fetched_early(self, answer: effects.FetchAnswered) -> None:
        """What was known on the request's arrival is here, and stays in the pool as far as there is room."""
        if answer.chunks:
            self._agent.release(answer.lease)

    def _cached(self, job: Job) -> int:
        """Leading chunks that need no computing."""
        keys = job.request.keys
        here = (key in self._unsaved or self._agent.find(key) is not None for key in keys)
        return next((count for count, one in enumerate(here) if not one), len(keys))

    def _queue_s(self) -> float:
        """Seconds until the GPU is through with all that are before a new request."""
        left_s = 0.0 if self._busy_until_s is None else self._busy_until_s - self._clock.now_s
        return left_s + sum(self._compute_s(job) for job in self._queue)

    def _compute_s(self, job: Job) -> float:
        request = job.request
        return self._engine.prefill_s(request.cached_tokens(self._cached(job)), request.tokens)

    def _ask(self, job: Job, queue_s: float, behind: int, then: Callable[[effects.FetchAnswered], None]) -> None:
        request = job.request
        here, whole = request.cached_tokens(self._cached(job)), request.cached_tokens(len(request.keys))
        recompute_s = self._engine.prefill_s(here, request.tokens) - self._engine.prefill_s(whole, request.tokens)
        self._agent.ask(request.keys, recompute_s, then, queue_s=queue_s, behind=behind)

    # -- turns

    def _next(self) -> None:
        """Give the GPU to the first request that can use it."""
        if self._looking:
            return  # the answer was immediate: the loop below continues with it
        self._looking = True
        while self._queue and self._busy_until_s is None:
            job = self._queue.popleft()
            if job.granted_s is None:
                job.granted_s = self._clock.now_s
            if job.answered or not job.request.keys:
                self._compute(job)
            else:
                self._ask(job, 0.0, len(self._queue), partial(self._answered, job))
        self._looking = False

    def _answered(self, job: Job, answer: effects.FetchAnswered) -> None:
        job.answered = True
        job.answers.append(answer)
        self._queue.appendleft(job)
        self._next()

    def _compute(self, job: Job) -> None:
        request, first = job.request, self._cached(job)
        here = request.cached_tokens(first)
        job.prefill_s = self._engine.prefill_s(here, request.tokens)
        takes_s = self._engine.load_s(first * self._agent.chunk_bytes) + job.prefill_s
        self._busy_until_s = self._clock.now_s + takes_s
        self.busy_s += takes_s
        keys = request.keys[first:]
        self.computed_chunks += len(keys)
        if self._merging is not Merging.OFF and keys:
            before_s = takes_s - job.prefill_s
            etas_s = [takes_s] * len(keys)
            if self._merging is Merging.CHUNKS:
                etas_s = [
                    before_s + self._engine.prefill_s(here, request.cached_tokens(first + count + 1))
                    for count in range(len(keys))
                ]
                for place, eta_s in enumerate(etas_s[:-1]):
                    self._clock.call_later(eta_s, self._agent.store, request.keys[: first + place + 1])
            self._agent.claim(keys, etas_s)
        self._clock.call_later(takes_s, self._first_token, job)

    def _first_token(self, job: Job) -> None:
        self._busy_until_s = None
        self._agent.store(job.request.keys)
        self._unsaved.update(key for key in job.request.keys if self._agent.is_coming(key))
        for answer in job.answers:
            if answer.chunks:
                self._agent.release(answer.lease)
        self._ended(job, self._agent.node)
        self._next()


def computed_chunks(gpus: Sequence[Gpu]) -> int:
    """Chunks that engines computed, the same one on several nodes included."""
    return sum(gpu.computed_chunks for gpu in gpus)
