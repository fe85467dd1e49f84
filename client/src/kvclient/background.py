"""Work for when no engine waits: jobs with priorities, step by step, over one agent's client.

A job is an iterator, as a generator function makes one: each step is what it does up to its next `yield`. Between two
steps it is preempted: by engines that wait for the agent, and by jobs of a higher priority. So a step should take
milliseconds: a chunk or a few. Like the agent's own background work (`kvpolicy.tiers.lane`) a job whose turn it is goes
one step further after `patience_s` even though engines wait, so that a node that is never idle still gets it done.
"""

from __future__ import annotations

import heapq
import itertools
import threading
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Protocol, Self

from kvclient.attach import AgentUnavailableError
from kvclient.forks import Threads

BUSY = "engines_wait"
"""Among the agent's figures: 1 while an engine waits for something that is on its way."""
JOBS_MAX = 1024
LOOK_S = 0.05
"""Between looks whether engines still wait."""
_END = object()


class Idle(Protocol):
    """Who knows whether engines wait: `AgentClient`."""

    def stats(self) -> dict[str, float]: ...


@dataclass(order=True, slots=True)
class _Job:
    rank: tuple[int, int]
    """Higher priority first, then who came first."""
    steps: Iterator[object] = field(compare=False)
    ended: Future[int] = field(compare=False, default_factory=Future)
    done: int = field(compare=False, default=0)


class Background:
    """Jobs of one process. Methods may be called from any thread."""

    def __init__(self, agent: Idle, *, patience_s: float = 1.0) -> None:
        """Jobs run in threads of its own until `close`."""
        self._agent = agent
        self._patience_s = patience_s
        self._numbers = itertools.count()
        self._jobs: list[_Job] = []
        self._changed = threading.Condition()
        self._closed = False
        self._threads = Threads(2, "kvcast-background")
        """One chooses, one takes steps, so that a job's failure is its own."""
        self._running = self._threads.submit(self._run)

    def submit(self, job: Iterable[object], *, priority: int = 0) -> Future[int]:
        """Run a job; the future has its number of steps, or what it raised. `priority`: higher ones go first.

        Raises ValueError when there are JOBS_MAX jobs already, RuntimeError after `close`.
        """
        with self._changed:
            if self._closed:
                raise RuntimeError("this Background is closed: make a new one")
            if len(self._jobs) >= JOBS_MAX:
                raise ValueError(f"{JOBS_MAX} jobs wait already: wait for some of them to end")
            made = _Job((-priority, next(self._numbers)), iter(job))
            heapq.heappush(self._jobs, made)
            self._changed.notify()
            return made.ended

    def close(self) -> None:
        """End after the step that runs now; jobs that have not ended are cancelled."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._running.result()
        self._threads.shutdown()
        for job in self._jobs:
            job.ended.cancel()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _run(self) -> None:
        while self._await_turn():
            job = self._jobs[0]
            step = self._threads.submit(next, job.steps, _END)
            if (error := step.exception()) is not None:
                self._end(job).set_exception(error)
            elif step.result() is _END:
                self._end(job).set_result(job.done)
            else:
                job.done += 1

    def _end(self, job: _Job) -> Future[int]:
        with self._changed:
            self._jobs.remove(job)
            heapq.heapify(self._jobs)
        return job.ended

    def _await_turn(self) -> bool:
        """Wait until there is a job, and no engine waits, or has for long; False: closed."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or self._jobs)
        since_s = time.monotonic()
        while not self._closed:
            if not self._engines_wait() or time.monotonic() - since_s >= self._patience_s:
                return True
            with self._changed:
                self._changed.wait_for(lambda: self._closed, LOOK_S)
        return False

    def _engines_wait(self) -> bool:
        try:
            return bool(self._agent.stats().get(BUSY))
        except AgentUnavailableError:
            return False  # whoever takes a step says so
