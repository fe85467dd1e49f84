"""A node's GPU, as `planner.cluster.serial` models it, with a real agent: one request at a time, prefixes looked up
again when it is free, computing a wait of as long as the planner's hardware model says.

A request that has to queue is looked up when it comes, and again when its turn comes. One that then waits (for a fetch,
or for what another node computes) does not hold the GPU. The engine keeps what it computed, as engines do,
and saves it in the background: chunk by chunk as it is computed where work in flight is merged, otherwise at the end.
"""

from __future__ import annotations

import heapq
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from bmv2_testbed.limits import FETCH_DEADLINE_S
from kvclient.client import AgentClient, Fetched, FetchStream, Where
from planner.workloads.scaled_terms import Terms
from planner.workloads.workload_catalog import Prompt

LOOK_S: Final = 0.004
"""An agent answers sooner what it need not wait for; the GPU looks at no other request meanwhile."""


@dataclass(slots=True, eq=False)
class Job:
    """A request between its arrival and the KV of its prompt."""

    prompt: Prompt
    keys: Sequence[bytes]
    arrived_s: float
    answer: FetchStream | None = None
    """Of the lookup at its turn."""
    answered: threading.Event = field(default_factory=threading.Event)
    parked: bool = False
    """It waits beside the GPU for its answer."""
    waited: bool = False
    """It has waited beside the GPU."""
    ready_s: float = 0.0
    """When its KV was there."""
    computed: int = 0
    """Blocks that the GPU computed."""


class Saver:
    """Puts computed chunks into the pool at their times, in a thread of its own."""

    def __init__(self, put: Callable[[Job, int], None]) -> None:
        """`put(job, place)`: into the pool."""
        self._put = put
        self._due: list[tuple[float, int, Job, int]] = []
        self._number = 0
        self._changed = threading.Condition()
        self._ended = False
        self._thread = threading.Thread(target=self._work)
        self._thread.start()

    def at(self, due_s: float, job: Job, place: int) -> None:
        """Put a chunk of a job at that time."""
        with self._changed:
            self._number += 1
            heapq.heappush(self._due, (due_s, self._number, job, place))
            self._changed.notify()

    def end(self) -> None:
        """Return when all is put."""
        with self._changed:
            self._ended = True
            self._changed.notify()
        self._thread.join()

    def _work(self) -> None:
        while True:
            with self._changed:
                while not self._due or self._due[0][0] > time.monotonic():
                    if self._ended and not self._due:
                        return
                    self._changed.wait(self._due[0][0] - time.monotonic() if self._due else None)
                _, _, job, place = heapq.heappop(self._due)
            self._put(job, place)


Keep = Callable[[Sequence[bytes], Fetched | FetchStream], None]


class Gpu:
    """One node's. `arrive` from one thread; `end` when all requests have arrived."""

    def __init__(
        self, agent: AgentClient, terms: Terms, *, merges: bool, save: Callable[[Job, int], None], keep: Keep
    ) -> None:
        """`merges`: claim what is computed, and save it as it is. `save(job, place)`: put a chunk. `keep(keys,
        got)`: compare what was fetched and release it."""
        self._agent = agent
        self._terms = terms
        self._merges = merges
        self._keep = keep
        self._saver = Saver(save)
        self._own: set[bytes] = set()
        """Chunks that this engine has computed or loaded."""
        self._queue: deque[Job] = deque()
        self._unfinished = 0
        self._ended = False
        self._changed = threading.Condition()
        self._busy_until_s = 0.0
        self.done: list[Job] = []
        self._thread = threading.Thread(target=self._work)
        self._thread.start()

    def arrive(self, job: Job) -> None:
        """A request arrives: while it queues, what others have of it is on its way."""
        with self._changed:
            left_s = max(0.0, self._busy_until_s - time.monotonic())
            queue_s = left_s + sum(self._compute_s(queued) for queued in self._queue)
        if queue_s > 0:
            self._then(self._ask(job, queue_s, 0), partial(self._take, job))
        with self._changed:
            self._unfinished += 1
            self._queue.append(job)
            self._changed.notify()

    def end(self) -> None:
        """Return when all requests are done and saved."""
        with self._changed:
            self._ended = True
            self._changed.notify()
        self._thread.join()
        self._saver.end()

    def _compute_s(self, job: Job) -> float:
        return self._terms.compute_s(self._leading(job.keys), job.prompt.tokens)

    def _leading(self, keys: Sequence[bytes]) -> int:
        """Leading chunks that this engine has."""
        return next((count for count, key in enumerate(keys) if key not in self._own), len(keys))

    def _ask(self, job: Job, queue_s: float, behind: int) -> FetchStream:
        recompute_s = self._terms.recompute_s(self._leading(job.keys), len(job.keys))
        return self._agent.fetch_stream(
            job.keys, deadline_s=FETCH_DEADLINE_S, recompute_s=recompute_s, queue_s=queue_s, behind=behind
        )

    def _local(self, job: Job) -> int:
        """Leading chunks that are in the node's pool."""
        places = self._agent.contains(job.keys)
        return next((count for count, place in enumerate(places) if place is not Where.LOCAL), len(places))

    @staticmethod
    def _then(fetch: FetchStream, then: Callable[[FetchStream], None]) -> None:
        """Wait for a fetch beside everything else."""

        def wait() -> None:
            for _ in fetch:
                continue
            then(fetch)

        threading.Thread(target=wait).start()

    # -- turns

    def _work(self) -> None:
        while (job := self._next()) is not None:
            if job.answer is not None or self._look_up(job):
                self._compute(job)

    def _next(self) -> Job | None:
        """The first request that can use the GPU; None: there will be none."""
        with self._changed:
            while not self._queue:
                if self._ended and not self._unfinished:
                    return None
                self._changed.wait()
            return self._queue.popleft()

    def _look_up(self, job: Job) -> bool:
        """Whether the answer is here; otherwise the request is parked, and its answer queues it again."""

        def answered(got: FetchStream) -> None:
            with self._changed:
                job.answer = got
                if job.parked:
                    self._queue.appendleft(job)
                    self._changed.notify()
            job.answered.set()

        self._then(self._ask(job, 0.0, len(self._queue)), answered)
        job.answered.wait(LOOK_S)
        with self._changed:
            job.parked = job.waited = job.answer is None
            return not job.parked

    def _load(self, job: Job) -> int:
        """What the pool of this node has of the prompt by now; returns the leading chunks that need no computing."""
        got = job.answer
        assert got is not None
        self._take(job, got)
        if job.waited and self._leading(job.keys) < len(job.keys):  # meanwhile the pool may have more
            local = self._local(job)
            if local > self._leading(job.keys):
                self._take(job, self._agent.fetch(job.keys[:local], deadline_s=FETCH_DEADLINE_S))
        return self._leading(job.keys)

    def _take(self, job: Job, got: Fetched | FetchStream) -> None:
        self._own.update(job.keys[: got.count])
        self._keep(job.keys, got)

    def _compute(self, job: Job) -> None:
        first, keys = self._load(job), job.keys
        begun_s = time.monotonic()
        ends_s = begun_s + self._terms.compute_s(first, job.prompt.tokens)
        self._busy_until_s = ends_s
        fresh = keys[first:]
        etas_s = [self._terms.recompute_s(first, place + 1) for place in range(first, len(keys))]
        if self._merges and fresh:
            self._agent.claim(fresh, self._terms.block_bytes, etas_s)
        for place, eta_s in enumerate(etas_s, first):
            self._saver.at(begun_s + eta_s if self._merges else ends_s, job, place)
        time.sleep(max(0.0, ends_s - time.monotonic()))
        job.ready_s, job.computed = time.monotonic(), len(fresh)
        self._own.update(fresh)
        with self._changed:
            self.done.append(job)
            self._unfinished -= 1
