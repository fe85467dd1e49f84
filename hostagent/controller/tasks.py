"""Carries out what the controller asks: fill the switch, fetch, drop, pin, unpin. Each task ends in one result."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from hostagent import limits
from hostagent.api.messages import Status
from hostagent.api.server import Cancellable, FetchResult
from hostagent.controller.convert import key_of
from hostagent.pool.chunks import Chunk, ChunkPool, ChunkState
from kvproto.commands import FillEnded
from kvproto.ids import Address, ChunkKey, FillId
from kvproto.rpc import control_pb2 as pb

BACKGROUND_FETCHES_MAX = 2
"""Background fetch tasks at once; they stay below what engines wait for."""


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
    def pool_changed(self) -> None: ...


@dataclass(slots=True, eq=False)
class _Task:
    number: int
    message: pb.Task
    deadline_s: float
    under_way: Cancellable | None = None
    fill: FillId | None = None
    ended: bool = False


@dataclass(slots=True)
class TaskRunner:
    """Tasks of one controller; a lost controller's tasks are given up."""

    host: TaskHost
    loop: asyncio.AbstractEventLoop
    _tasks: dict[int, _Task] = field(default_factory=dict)
    _waiting: deque[_Task] = field(default_factory=deque)
    _background: set[int] = field(default_factory=set)
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
        self._tasks.clear()
        self._waiting.clear()
        self._background.clear()

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
        if not task.message.foreground and len(self._background) >= BACKGROUND_FETCHES_MAX:
            self._waiting.append(task)
            return
        if not task.message.foreground:
            self._background.add(task.number)
        keys = [key_of(key) for key in task.message.fetch.keys]
        left_s = task.deadline_s - self.loop.time()
        if left_s <= 0:
            self._end(task, pb.TaskResult.FAILED, failed=list(task.message.fetch.keys), detail="its time had passed")
            return
        if not keys or len(set(keys)) != len(keys):
            detail = "no keys, or one of them twice"
            self._end(task, pb.TaskResult.REFUSED, failed=list(task.message.fetch.keys), detail=detail)
            return
        task.under_way = self.host.fetch_for_task(
            keys,
            left_s,
            lambda result: self._fetched(task, keys, result),
            lambda leading: self._progressed(task, keys, leading),
        )

    def _progressed(self, task: _Task, keys: Sequence[ChunkKey], leading: int) -> None:
        done = [self.host.pool.find(key) for key in keys[:leading]]
        size_bytes = sum(chunk.size_bytes for chunk in done if chunk is not None)
        self.host.report(
            pb.FromAgent(
                task_progress=pb.TaskProgress(task=task.number, done=leading, total=len(keys), bytes=size_bytes)
            )
        )

    def _fetched(self, task: _Task, keys: Sequence[ChunkKey], result: FetchResult) -> None:
        for chunk, _ in result.chunks:
            if task.message.fetch.pin and not task.ended:
                self._pin(chunk.key)
            self.host.pool.unpin(chunk)
        moved = sum(chunk.size_bytes for chunk, _ in result.chunks)
        failed = list(keys[len(result.chunks) :])
        if not failed:
            self._end(task, pb.TaskResult.DONE, done=len(keys), moved=moved)
            return
        status = pb.TaskResult.PARTIAL if result.chunks else pb.TaskResult.FAILED
        if result.status is Status.POOL_FULL and not result.chunks:
            status = pb.TaskResult.REFUSED
        detail = result.status.name.lower().replace("_", " ")
        self._end(task, status, done=len(result.chunks), moved=moved, failed=failed, detail=detail)

    # ------------------------------------------------------------------ drop, pin, unpin

    def _drop(self, key: ChunkKey) -> bool:
        chunk = self.host.pool.find(key)
        if chunk is None:
            return True
        if chunk.pins or chunk.holds:
            return False
        self.host.pool.drop(key)
        self.host.pool_changed()
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
        if task in self._waiting:
            self._waiting.remove(task)

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
        self._background.discard(task.number)
        self._report(
            pb.TaskResult(
                task=task.number, status=status, done=done, bytes=moved, failed_keys=list(failed), detail=detail
            )
        )
        if self._waiting and len(self._background) < BACKGROUND_FETCHES_MAX:
            # From the loop, not from here: a queue of fetches that all fail at once must not nest.
            self._background.add(self._waiting[0].number)
            self.loop.call_soon(self._next, self._waiting.popleft())

    def _next(self, task: _Task) -> None:
        self._background.discard(task.number)
        if not task.ended:
            self._queue_fetch(task)

    def _report(self, result: pb.TaskResult) -> None:
        self.host.report(pb.FromAgent(task_result=result))
