"""Carries out what the controller asks: fill the switch, fetch, drop, pin, unpin. Each task ends in one result."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from hostagent import limits
from hostagent.api.messages import Status
from hostagent.api.server import Cancellable, FetchResult
from hostagent.controller.convert import key_of
from hostagent.pool.chunks import Chunk, ChunkPool, ChunkState, DropOutcome
from kvproto.commands import FillEnded
from kvproto.ids import Address, ChunkKey, FillId
from kvproto.rpc import control_pb2 as pb
from kvproto.tiers.lane import Lane, LaneLimits

BACKGROUND_FETCHES_MAX = 2
"""Background fetch tasks at once; they stay below what engines wait for."""
BACKGROUND_BATCH_CHUNKS = 8
"""A background fetch goes in steps of so many chunks, and lets engines' fetches go first between them."""
BACKGROUND_PATIENCE_NS = 250_000_000


class TaskHost(Protocol):
    """What tasks need of the agent."""

    pool: ChunkPool

    def fetch_for_task(
        self,
        keys: Sequence[ChunkKey],
        deadline_s: float,
        done: Callable[[FetchResult], None],
        progressed: Callable[[int], None],
    ) -> Cancellable | None: ...
    def fill(self, key: ChunkKey, pool: Address, timeout_s: float, ended: Callable[[FillEnded], None]) -> FillId: ...
    def cancel_fill(self, fill: FillId) -> None: ...
    def pool_address(self) -> Address | None: ...
    def segments_of(self, chunk: Chunk) -> int: ...
    def report(self, message: pb.FromAgent) -> None: ...
    def drop(self, key: ChunkKey) -> DropOutcome: ...
    def busy(self) -> bool:
        """An engine waits for something."""
        ...


@dataclass(slots=True, eq=False)
class _Task:
    number: int
    message: pb.Task
    deadline_s: float
    keys: list[ChunkKey] = field(default_factory=list)
    """Of a fetch."""
    arrived: int = 0
    """Leading keys that are here."""
    moved_bytes: int = 0
    under_way: Cancellable | None = None
    fill: FillId | None = None
    ended: bool = False


@dataclass(slots=True)
class TaskRunner:
    """Tasks of one controller; a lost controller's tasks are given up."""

    host: TaskHost
    loop: asyncio.AbstractEventLoop
    _tasks: dict[int, _Task] = field(default_factory=dict)
    background: Lane[int] = field(
        default_factory=lambda: Lane(
            LaneLimits(limits.TASKS_RUNNING_MAX, BACKGROUND_FETCHES_MAX, BACKGROUND_PATIENCE_NS)
        )
    )
    """Numbers of background fetches."""
    _pump_timer: asyncio.TimerHandle | None = None
    _pinned: dict[ChunkKey, Chunk] = field(default_factory=dict)

    @property
    def running_count(self) -> int:
        return len(self._tasks)

    def pinned_keys(self) -> list[ChunkKey]:
        """Chunks kept because the controller said so."""
        self._pinned = {key: chunk for key, chunk in self._pinned.items() if chunk.state is ChunkState.READY}
        return sorted(self._pinned)

    def run(self, message: pb.Task) -> None:
        """Start a task."""
        if message.task in self._tasks or len(self._tasks) >= limits.TASKS_RUNNING_MAX:
            detail = "too many tasks, or the same one twice"
            self._report(pb.TaskResult(task=message.task, status=pb.TaskResult.REFUSED, detail=detail))
            return
        timeout_s = (message.timeout_ms or limits.TASK_TIMEOUT_MS) / 1000
        task = _Task(message.task, message, self.loop.time() + timeout_s)
        self._tasks[task.number] = task
        kind = message.WhichOneof("work")
        if kind == "fill":
            self._start_fill(task, timeout_s)
        elif kind == "fetch":
            self._queue_fetch(task)
        elif kind == "drop":
            self._end_with(task, [key for key in message.drop.keys if not self._drop(key_of(key))], message.drop.keys)
        elif kind == "pin":
            self._end_with(task, [key for key in message.pin.keys if not self._pin(key_of(key))], message.pin.keys)
        elif kind == "unpin":
            self._end_with(
                task, [key for key in message.unpin.keys if not self._unpin(key_of(key))], message.unpin.keys
            )
        else:
            self._end(task, pb.TaskResult.REFUSED, detail="this agent does not know the task: update it")

    def cancel(self, number: int) -> None:
        """The controller no longer wants it."""
        task = self._tasks.get(number)
        if task is None:
            return
        self._stop(task)
        self._end(task, pb.TaskResult.CANCELLED)

    def abandon(self) -> None:
        """The controller is gone: nobody waits for results. Its pins stay; it will ask for them back or again."""
        for task in list(self._tasks.values()):
            self._stop(task)
            task.ended = True
            self.background.ended(task.number)
        self._tasks.clear()
        self.background.drop(lambda _: True)

    # ------------------------------------------------------------------ fill

    def _start_fill(self, task: _Task, timeout_s: float) -> None:
        key = key_of(task.message.fill.key)
        chunk = self.host.pool.find(key)
        pool_address = self.host.pool_address()
        if chunk is None or pool_address is None:
            self._end(task, pb.TaskResult.FAILED, failed=[key], detail="the chunk is not here")
        elif self.host.segments_of(chunk) != task.message.fill.segments:
            self._end(
                task,
                pb.TaskResult.REFUSED,
                failed=[key],
                detail=f"{task.message.fill.segments} segments asked for, the chunk has {self.host.segments_of(chunk)}",
            )
        else:
            task.fill = self.host.fill(key, pool_address, timeout_s, lambda ended: self._filled(task, ended))

    def _filled(self, task: _Task, ended: FillEnded) -> None:
        task.fill = None
        if ended.complete:
            self._end(task, pb.TaskResult.DONE, done=ended.acknowledged)
        else:
            detail = f"{ended.acknowledged} of {task.message.fill.segments} segments acknowledged"
            self._end(
                task, pb.TaskResult.FAILED, done=ended.acknowledged, failed=[task.message.fill.key], detail=detail
            )

    # ------------------------------------------------------------------ fetch

    def _queue_fetch(self, task: _Task) -> None:
        task.keys = [key_of(key) for key in task.message.fetch.keys]
        if not task.keys or len(set(task.keys)) != len(task.keys):
            self._end(task, pb.TaskResult.REFUSED, failed=task.keys, detail="no keys, or one of them twice")
        elif task.message.foreground:
            self._fetch_next(task, len(task.keys))
        else:
            self.background.offer(task.number, 0, time.monotonic_ns())
            self.pump()

    def pump(self) -> None:
        """Start background fetches that may start now; come back when more may."""
        if self._pump_timer is not None:
            self._pump_timer.cancel()
            self._pump_timer = None
        busy, now_ns = self.host.busy(), time.monotonic_ns()
        while (number := self.background.take(busy, now_ns)) is not None:
            task = self._tasks.get(number)
            if task is None:
                self.background.ended(number)
            else:
                # From the loop, not from here: a queue of fetches that all fail at once must not nest.
                self.loop.call_soon(self._fetch_next, task, BACKGROUND_BATCH_CHUNKS)
        due_ns = self.background.due_ns(busy, now_ns)
        if due_ns is not None:
            self._pump_timer = self.loop.call_later(max(0.001, (due_ns - now_ns) / 1e9), self.pump)

    def pump_soon(self) -> None:
        """The same from the loop, if anything waits."""
        if len(self.background):
            self.loop.call_soon(self.pump)

    def close(self) -> None:
        """Start nothing any more."""
        if self._pump_timer is not None:
            self._pump_timer.cancel()

    def _fetch_next(self, task: _Task, count: int) -> None:
        if task.ended:
            self.background.ended(task.number)
            return
        left_s = task.deadline_s - self.loop.time()
        if left_s <= 0:
            self._end_fetch(task, "its time had passed")
            return
        keys = task.keys[task.arrived : task.arrived + count]
        task.under_way = self.host.fetch_for_task(
            keys,
            left_s,
            lambda result: self._fetched(task, keys, result),
            lambda leading: self._progressed(task, keys, leading),
        )

    def _progressed(self, task: _Task, keys: Sequence[ChunkKey], leading: int) -> None:
        done = [self.host.pool.find(key) for key in keys[:leading]]
        size_bytes = sum(chunk.size_bytes for chunk in done if chunk is not None)
        progress = pb.TaskProgress(
            task=task.number,
            done=task.arrived + leading,
            total=len(task.keys),
            bytes=task.moved_bytes + size_bytes,
        )
        self.host.report(pb.FromAgent(task_progress=progress))

    def _fetched(self, task: _Task, keys: Sequence[ChunkKey], result: FetchResult) -> None:
        task.under_way = None
        for chunk, _ in result.chunks:
            if task.message.fetch.pin and not task.ended:
                self._pin(chunk.key)
            self.host.pool.unpin(chunk)
        task.arrived += len(result.chunks)
        task.moved_bytes += sum(chunk.size_bytes for chunk, _ in result.chunks)
        if len(result.chunks) < len(keys) or task.arrived == len(task.keys):
            full = result.status is Status.POOL_FULL and not task.arrived
            self._end_fetch(task, result.status.name.lower().replace("_", " "), refused=full)
            return
        self.background.ended(task.number)
        self.background.offer(task.number, 0, time.monotonic_ns())
        self._progressed(task, (), 0)
        self.pump()

    def _end_fetch(self, task: _Task, why: str, *, refused: bool = False) -> None:
        failed = task.keys[task.arrived :]
        status = pb.TaskResult.DONE
        if failed:
            status = pb.TaskResult.PARTIAL if task.arrived else pb.TaskResult.FAILED
        if refused:
            status = pb.TaskResult.REFUSED
        self._end(task, status, done=task.arrived, moved=task.moved_bytes, failed=failed, detail=why if failed else "")

    # ------------------------------------------------------------------ drop, pin, unpin

    def _drop(self, key: ChunkKey) -> bool:
        chunk = self.host.pool.find(key)
        if chunk is not None and (chunk.pins or chunk.holds):
            return False
        self.host.drop(key)
        return True

    def _pin(self, key: ChunkKey) -> bool:
        chunk = self.host.pool.find(key)
        if chunk is None:
            return False
        if self._pinned.get(key) is not chunk:
            self.host.pool.hold(chunk)
            self._pinned[key] = chunk
        return True

    def _unpin(self, key: ChunkKey) -> bool:
        chunk = self._pinned.pop(key, None)
        if chunk is not None and chunk.state is ChunkState.READY:
            self.host.pool.unhold(chunk)
        return True

    # ------------------------------------------------------------------ ends

    def _stop(self, task: _Task) -> None:
        if task.under_way is not None:
            task.under_way.cancel()
        if task.fill is not None:
            self.host.cancel_fill(task.fill)

    def _end_with(self, task: _Task, failed: Sequence[bytes], keys: Sequence[bytes]) -> None:
        done = len(keys) - len(failed)
        status = pb.TaskResult.DONE if not failed else pb.TaskResult.PARTIAL if done else pb.TaskResult.FAILED
        self._end(task, status, done=done, failed=failed)

    def _end(
        self,
        task: _Task,
        status: pb.TaskResult.Status.ValueType,
        *,
        done: int = 0,
        moved: int = 0,
        failed: Sequence[bytes] = (),
        detail: str = "",
    ) -> None:
        if task.ended:
            return
        task.ended = True
        self._tasks.pop(task.number, None)
        self.background.drop(lambda number: number == task.number)
        self.background.ended(task.number)
        self._report(
            pb.TaskResult(
                task=task.number, status=status, done=done, bytes=moved, failed_keys=list(failed), detail=detail
            )
        )
        self.pump_soon()

    def _report(self, result: pb.TaskResult) -> None:
        self.host.report(pb.FromAgent(task_result=result))
