"""Carries out what the controller asks: fill the switch, fetch, drop, pin, unpin. Each task ends in one result."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import assert_never

from hostagent import limits
from hostagent.core import effects, events
from hostagent.core.fetch import FetchRequest, FetchResult, Purpose
from hostagent.core.fetches import Fetches
from hostagent.core.node import Node
from hostagent.core.serving import Serving
from hostagent.core.work import (
    DropWork,
    FetchWork,
    FillWork,
    PinWork,
    RecheckWork,
    RefusedWork,
    Task,
    TaskStatus,
    UnpinWork,
)
from hostagent.pool.chunks import Chunk, ChunkState
from hostagent.tree import Hashed
from kvchunk.ids import ChunkKey
from kvchunk.sources import ChunkSource
from kvclient.messages import Status
from kvpolicy.tiers.lane import Lane, LaneLimits
from kvproto.commands import FillEnded
from kvproto.ids import FetchId, FillId
from kvproto.integrity import algorithm_of

BACKGROUND_FETCHES_MAX = 2
"""Background fetch tasks at once; they stay below what engines wait for."""
BACKGROUND_BATCH_CHUNKS = 8
"""A background fetch goes in steps of this many chunks, and lets engines' fetches go first between them."""
BACKGROUND_PATIENCE_NS = 250_000_000
_PUMP_NS_MIN = 1_000_000


@dataclass(slots=True, eq=False)
class _Running:
    task: Task
    deadline_ns: int
    keys: tuple[ChunkKey, ...] = ()
    """Of a fetch."""
    arrived: int = 0
    """Number of leading keys that are here."""
    moved_bytes: int = 0
    fetch: FetchId | None = None
    fill: FillId | None = None
    ended: bool = False


@dataclass(slots=True, eq=False)
class _Rechecks:
    """A task that compares chunks."""

    running: _Running
    keys: tuple[ChunkKey, ...]
    left_count: int
    wrong: list[ChunkKey]


class Tasks:
    """Tasks of one controller; a lost controller's tasks are given up."""

    def __init__(self, node: Node, fetches: Fetches, serving: Serving, drop: Callable[[ChunkKey], object]) -> None:
        """`drop(key)`: take a chunk out of the pool and off the disk."""
        self._clock = node.clock
        self._emit = node.emit
        self._pool = node.pool
        self._fetches = fetches
        self._serving = serving
        self._drop_copies = drop
        self._fabric = node.fabric
        self._running: dict[int, _Running] = {}
        self.background: Lane[int] = Lane(
            LaneLimits(limits.TASKS_RUNNING_MAX, BACKGROUND_FETCHES_MAX, BACKGROUND_PATIENCE_NS)
        )
        """Numbers of background fetches."""
        self._pump_alarm = node.alarms.add(self._pump)
        self._taken: list[_Running] = []
        """Steps of background fetches that begin in a moment: fetches that fail at once must not nest."""
        self._begin_alarm = node.alarms.add(self._begin_taken)
        self._pinned: dict[ChunkKey, Chunk] = {}
        self._rechecked: dict[Chunk, _Rechecks] = {}
        """Chunks whose bytes are being compared with their digests."""

    @property
    def running_count(self) -> int:
        """Tasks of the controller that have not ended."""
        return len(self._running)

    def pinned_keys(self) -> list[ChunkKey]:
        """Chunks kept because the controller said so."""
        self._pinned = {key: chunk for key, chunk in self._pinned.items() if chunk.state is ChunkState.READY}
        return sorted(self._pinned)

    def run(self, task: Task) -> None:
        """Start a task."""
        if task.number in self._running or len(self._running) >= limits.TASKS_RUNNING_MAX:
            detail = "too many tasks, or the same one twice"
            self._emit(effects.ReportTaskEnd(task.number, TaskStatus.REFUSED, 0, 0, (), detail))
            return
        running = _Running(task, self._clock.now_ns + int(task.timeout_s * 1e9))
        self._running[task.number] = running
        match task.work:
            case FillWork():
                self._start_fill(running, task.work)
            case FetchWork():
                self._queue_fetch(running, task.work)
            case DropWork(keys):
                self._end_with(running, keys, [key for key in keys if not self._drop(key)])
            case RecheckWork(keys):
                self._recheck(running, keys)
            case PinWork(keys):
                self._end_with(running, keys, [key for key in keys if not self._pin(key)])
            case UnpinWork(keys):
                for key in keys:
                    self._unpin(key)
                self._end_with(running, keys, [])
            case RefusedWork(why):
                self._end(running, TaskStatus.REFUSED, detail=why)
            case _:
                assert_never(task.work)

    def cancel(self, number: int) -> None:
        """The controller no longer wants it."""
        running = self._running.get(number)
        if running is not None:
            self._stop(running)
            self._end(running, TaskStatus.CANCELLED)

    def abandon(self) -> None:
        """The controller is gone: nobody waits for results. Its pins stay; it will ask for them back or again."""
        for running in list(self._running.values()):
            self._stop(running)
            running.ended = True
            self.background.ended(running.task.number)
        self._running.clear()
        self.background.drop(lambda _: True)

    def close(self) -> None:
        """Start nothing any more."""
        self._pump_alarm.due_ns = None
        self._begin_alarm.due_ns = None
        for chunk in self._rechecked:
            self._pool.unpin(chunk)
        self._rechecked.clear()

    # ------------------------------------------------------------------ rechecks

    def _recheck(self, running: _Running, keys: Sequence[ChunkKey]) -> None:
        """Somebody got other bytes from here than the digest says. Whether that is so, only this node can tell."""
        chunks = [chunk for key in set(keys) if (chunk := self._pool.find(key)) and chunk not in self._rechecked]
        rechecks = _Rechecks(running, tuple(keys), len(chunks), [])
        for chunk in chunks:
            self._pool.pin(chunk)
            self._rechecked[chunk] = rechecks
            self._emit(effects.ComputeDigest(chunk, algorithm_of(chunk.digest), events.DigestUse.RECHECK))
        if not chunks:
            self._end_with(running, keys, [])

    def digest_computed(self, chunk: Chunk, hashed: Hashed) -> None:
        """The digest of a chunk that was READY already."""
        rechecks = self._rechecked.pop(chunk, None)
        if rechecks is None:
            return
        rechecks.left_count -= 1
        if hashed.digest != chunk.digest:
            rechecks.wrong.append(chunk.key)
            if self._pool.find(chunk.key) is chunk:
                self._pool.drop(chunk.key, force=True)
                self._drop_copies(chunk.key)
        if not rechecks.left_count and not rechecks.running.ended:
            self._end_with(rechecks.running, rechecks.keys, rechecks.wrong)

    # ------------------------------------------------------------------ fill

    def _start_fill(self, running: _Running, work: FillWork) -> None:
        chunk = self._pool.find(work.key)
        pool_address = self._fabric.pool_address
        if chunk is None or pool_address is None:
            self._end(running, TaskStatus.FAILED, failed=[work.key], detail="the chunk is not here")
            return
        segments = -(-chunk.size_bytes // self._fabric.segment_bytes)
        if segments != work.segments:
            detail = f"{work.segments} segments asked for, the chunk has {segments}"
            self._end(running, TaskStatus.REFUSED, failed=[work.key], detail=detail)
            return
        running.fill = self._serving.fill(work, pool_address, running.deadline_ns, partial(self._filled, running, work))

    def _filled(self, running: _Running, work: FillWork, ended: FillEnded) -> None:
        running.fill = None
        if ended.complete:
            self._end(running, TaskStatus.DONE, done=ended.acknowledged)
        else:
            detail = f"{ended.acknowledged} of {work.segments} segments acknowledged"
            self._end(running, TaskStatus.FAILED, done=ended.acknowledged, failed=[work.key], detail=detail)

    # ------------------------------------------------------------------ fetch

    def _queue_fetch(self, running: _Running, work: FetchWork) -> None:
        running.keys = work.keys
        if not work.keys or len(set(work.keys)) != len(work.keys):
            self._end(running, TaskStatus.REFUSED, failed=work.keys, detail="no keys, or one of them twice")
        elif running.task.foreground:
            self._fetch_next(running, len(work.keys))
        else:
            self.background.offer(running.task.number, 0, self._clock.now_ns)
            self._pump()

    def engines_served(self) -> None:
        """No engine waits any more: fetches that had to wait may start."""
        if self.background.waiting:
            self._pump_alarm.set(self._clock.now_ns)

    def _pump(self) -> None:
        """Start background fetches that may start now; come back when more may."""
        self._pump_alarm.due_ns = None
        busy, now_ns = self._fetches.busy, self._clock.now_ns
        while (number := self.background.take(busy, now_ns)) is not None:
            running = self._running.get(number)
            if running is None:
                self.background.ended(number)
            else:
                self._taken.append(running)
                self._begin_alarm.set(now_ns)
        due_ns = self.background.due_ns(busy, now_ns)
        if due_ns is not None:
            self._pump_alarm.set(max(now_ns + _PUMP_NS_MIN, due_ns))

    def _begin_taken(self) -> None:
        taken, self._taken = self._taken, []
        for running in taken:
            self._fetch_next(running, BACKGROUND_BATCH_CHUNKS)

    def _fetch_next(self, running: _Running, count: int) -> None:
        if running.ended:
            self.background.ended(running.task.number)
            return
        if running.deadline_ns <= self._clock.now_ns:
            self._end_fetch(running, "its time had passed")
            return
        keys = running.keys[running.arrived : running.arrived + count]
        running.fetch = self._fetches.begin(
            FetchRequest(tuple(keys), Purpose.TASK, running.deadline_ns),
            partial(self._fetch_ended, running, keys),
            partial(self._fetch_progressed, running, keys),
        )

    def _fetch_progressed(
        self, running: _Running, keys: Sequence[ChunkKey], first: int, came: Sequence[tuple[Chunk, ChunkSource]]
    ) -> None:
        self._report_progress(running, keys, first + len(came))

    def _report_progress(self, running: _Running, keys: Sequence[ChunkKey], leading: int) -> None:
        done = [self._pool.find(key) for key in keys[:leading]]
        size_bytes = sum(chunk.size_bytes for chunk in done if chunk is not None)
        self._emit(
            effects.ReportTaskProgress(
                running.task.number, running.arrived + leading, len(running.keys), running.moved_bytes + size_bytes
            )
        )

    def _fetch_ended(self, running: _Running, keys: Sequence[ChunkKey], result: FetchResult) -> None:
        running.fetch = None
        work = running.task.work
        for chunk, _ in result.chunks:
            if isinstance(work, FetchWork) and work.pin and not running.ended:
                self._pin(chunk.key)
            self._pool.unpin(chunk)
        running.arrived += len(result.chunks)
        running.moved_bytes += sum(chunk.size_bytes for chunk, _ in result.chunks)
        if len(result.chunks) < len(keys) or running.arrived == len(running.keys):
            full = result.status is Status.POOL_FULL and not running.arrived
            self._end_fetch(running, result.status.name.lower().replace("_", " "), refused=full)
            return
        self.background.ended(running.task.number)
        self.background.offer(running.task.number, 0, self._clock.now_ns)
        self._report_progress(running, (), 0)
        self._pump()

    def _end_fetch(self, running: _Running, why: str, *, refused: bool = False) -> None:
        failed = running.keys[running.arrived :]
        status = TaskStatus.DONE
        if failed:
            status = TaskStatus.PARTIAL if running.arrived else TaskStatus.FAILED
        if refused:
            status = TaskStatus.REFUSED
        self._end(
            running,
            status,
            done=running.arrived,
            moved_bytes=running.moved_bytes,
            failed=failed,
            detail=why if failed else "",
        )

    # ------------------------------------------------------------------ drop, pin, unpin

    def _drop(self, key: ChunkKey) -> bool:
        chunk = self._pool.find(key)
        if chunk is not None and (chunk.pins or chunk.holds):
            return False
        self._drop_copies(key)
        return True

    def _pin(self, key: ChunkKey) -> bool:
        chunk = self._pool.find(key)
        if chunk is None:
            return False
        if self._pinned.get(key) is not chunk:
            self._pool.retain(chunk)
            self._pinned[key] = chunk
        return True

    def _unpin(self, key: ChunkKey) -> None:
        chunk = self._pinned.pop(key, None)
        if chunk is not None and chunk.state is ChunkState.READY:
            self._pool.release(chunk)

    # ------------------------------------------------------------------ ends

    def _stop(self, running: _Running) -> None:
        if running.fetch is not None:
            self._fetches.cancel(running.fetch)
        if running.fill is not None:
            self._serving.cancel_fill(running.fill)

    def _end_with(self, running: _Running, keys: Sequence[ChunkKey], failed: Sequence[ChunkKey]) -> None:
        done = len(keys) - len(failed)
        status = TaskStatus.DONE if not failed else TaskStatus.PARTIAL if done else TaskStatus.FAILED
        self._end(running, status, done=done, failed=failed)

    def _end(
        self,
        running: _Running,
        status: TaskStatus,
        *,
        done: int = 0,
        moved_bytes: int = 0,
        failed: Sequence[ChunkKey] = (),
        detail: str = "",
    ) -> None:
        if running.ended:
            return
        running.ended = True
        number = running.task.number
        self._running.pop(number, None)
        self.background.drop(lambda waiting: waiting == number)
        self.background.ended(number)
        self._emit(effects.ReportTaskEnd(number, status, done, moved_bytes, failed, detail))
        self.engines_served()
