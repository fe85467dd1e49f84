"""Casting over a UD queue pair in Python: posts runs of prepared work requests as the queue takes them.

Owns the sending queue pair; knows nothing of who receives.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from hostagent import limits
from hostagent.transport.base import ChunkPlace
from hostagent.transport.host import Host
from hostagent.transport.verbs import abi
from hostagent.transport.verbs.cast_chains import CastChain, ChainCache, dropped_for, make_sending_pair, queue_depth
from hostagent.transport.verbs.device import MemoryRegion, RdmaPort, VerbsError
from hostagent.transport.verbs.queues import CompletionChannel, CompletionQueue, Completions, CompletionWatch
from kvproto.wire.data import Fabric


@dataclass(slots=True)
class _Job:
    chain: CastChain
    segment: int
    end: int


class CastQueue:
    """Sends jobs in order, as fast as the queue pair takes them; reports what left by its completions."""

    def __init__(self, port: RdmaPort, pool: MemoryRegion, host: Host, broken: Callable[[VerbsError], None]) -> None:
        """`broken` gets the reason why nothing is sent any more; then give up and close. Raises VerbsError."""
        self._port = port
        self._loop = host.loop
        self._counters = host.counters
        self._sent = host.sink.segments_sent
        self._failed = host.sink.segments_failed
        self._broken = broken
        self._depth = queue_depth(port)
        self._chains = ChainCache(port, pool, host)
        self._jobs: deque[_Job] = deque()
        self._posted: deque[tuple[int, CastChain, int]] = deque()
        """The contents of the queue: work id, chain, segments."""
        self._room = self._depth
        self._work_id = 0
        self._scheduled = False
        self._open = True
        with contextlib.ExitStack() as undo:
            self._channel = CompletionChannel(port)
            undo.callback(self._channel.close)
            self._completions = CompletionQueue(port, self._channel, self._depth, limits.CAST_BATCH_PACKETS)
            undo.callback(self._completions.close)
            self._queue_pair = make_sending_pair(port, self._completions, self._depth)
            undo.callback(lambda: self._queue_pair.destroy())
            self._watch = CompletionWatch(
                self._channel, self._completions, host.loop, self._completed, broken, by_clock=False
            )
            undo.callback(self._watch.close)
            self._closing = undo.pop_all()

    def use_fabric(self, fabric: Fabric) -> None:
        """Forget chains of other fabrics; jobs already queued still leave as they were. Raises VerbsError."""
        self._chains.use_fabric(fabric, self._in_use())

    def add(self, chunk: ChunkPlace, first: int, count: int) -> None:
        """Queue segments [first, first + count); their outcome is reported later, maybe in parts."""
        chain = self._chains.of(chunk, first, count)
        if chain is None:
            return
        self._chains.close_retired([chain, *self._in_use()])
        self._jobs.append(_Job(chain, first, first + count))
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._run)

    def give_up(self) -> None:
        """Others send from now on: segments not known to have left are reported as failed, later."""
        for job in self._jobs:
            self._loop.call_soon(self._failed, job.chain.chunk.key, job.end - job.segment)
        self._jobs.clear()
        self._report_lost()

    def close(self) -> None:
        """Send and report nothing more, except segments that were given up."""
        if not self._open:
            return
        self._open = False
        self._closing.close()
        self._jobs.clear()
        self._posted.clear()
        self._chains.close()

    # ------------------------------------------------------------------ inside

    def _in_use(self) -> list[CastChain]:
        return [job.chain for job in self._jobs] + [chain for _, chain, _ in self._posted]

    def _run(self) -> None:
        self._scheduled = False
        while self._jobs and self._room and self._open:
            job = self._jobs[0]
            count = min(job.end - job.segment, self._room, limits.VERBS_CAST_CHAIN_SEGMENTS)
            self._work_id += 1
            try:
                job.chain.post(self._queue_pair, job.segment, count, self._work_id)
            except VerbsError:
                self._jobs.popleft()
                self._counters.drop("cast_post", job.end - job.segment)
                self._loop.call_soon(self._failed, job.chain.chunk.key, job.end - job.segment)
                self._restart()
                return
            self._posted.append((self._work_id, job.chain, count))
            self._room -= count
            job.segment += count
            if job.segment == job.end:
                self._jobs.popleft()

    def _completed(self, completions: Completions) -> None:
        for work_id, status, number in zip(
            completions["wr_id"].tolist(), completions["status"].tolist(), completions["qp_num"].tolist(), strict=True
        ):
            if number != self._queue_pair.number:
                continue
            if status != abi.WC_SUCCESS:
                self._counters.drop(dropped_for(status))
                self._restart()
                break
            # One completion per chain, in order.
            while self._posted and self._posted[0][0] <= work_id:
                _, chain, count = self._posted.popleft()
                self._room += count
                self._sent(chain.chunk.key, count)
                if not self._open:
                    return
        if self._open:
            self._chains.close_retired(self._in_use())
            self._run()

    def _restart(self) -> None:
        """The queue pair is in error: its requests are lost, as on any network; a fresh one goes on with the rest."""
        self._queue_pair.destroy()
        self._report_lost()
        self._room = self._depth
        try:
            self._queue_pair = make_sending_pair(self._port, self._completions, self._depth)
        except VerbsError as error:
            self._broken(error)
            return
        if self._jobs and not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._run)

    def _report_lost(self) -> None:
        for _, chain, count in self._posted:
            self._loop.call_soon(self._failed, chain.chunk.key, count)
        self._posted.clear()
