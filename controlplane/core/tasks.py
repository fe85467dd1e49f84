"""Work given to agents and why: numbered, bounded per node, timed out. Pure.

Every task ends exactly once: with the agent's result, with its time, with its node, or cancelled.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from controlplane.core.ids import ChunkKey, JobId, NodeIndex, TaskId
from controlplane.core.limits import TASK_KEYS_MAX, TASKS_PER_NODE_MAX
from kvproto.rpc import control_pb2 as rpc


@dataclass(frozen=True, slots=True)
class FillFor:
    """The switch cache wants the chunk."""

    key: ChunkKey


@dataclass(frozen=True, slots=True)
class RecoveryOf:
    """The switch holds the last copy and is about to drop it."""

    key: ChunkKey


@dataclass(frozen=True, slots=True)
class ReplicationOf:
    """A node's pool is about to lose the last copy: another node takes it."""

    key: ChunkKey


@dataclass(frozen=True, slots=True)
class PushTo:
    """Chunks that the node is expected to want."""

    chunks: int


@dataclass(frozen=True, slots=True)
class JobPart:
    """A share of an operator's job."""

    job: JobId
    keys: tuple[ChunkKey, ...]


@dataclass(frozen=True, slots=True)
class ProbeStep:
    """A step of an examination."""

    examination: int
    index: int
    """Among the steps that run at the same time."""


@dataclass(frozen=True, slots=True)
class Housekeeping:
    """Pins, drops: nothing waits for the end."""

    what: str


Purpose: TypeAlias = FillFor | RecoveryOf | ReplicationOf | PushTo | JobPart | ProbeStep | Housekeeping


_GRACE_NS = 1_000_000_000
"""The agent times a task out by itself; the controller waits this much longer for its report."""


@dataclass(slots=True)
class PendingTask:
    """A task from creation to its end."""

    id: TaskId
    node: NodeIndex
    purpose: Purpose
    message: rpc.Task
    timeout_ns: int
    deadline_ns: int = 0
    """0 while it waits for its turn."""


@dataclass(slots=True)
class TaskTable:
    """All unfinished tasks. `first_id` differs from one controller incarnation to the next."""

    first_id: int
    default_timeout_ms: int = 60_000
    _tasks: dict[TaskId, PendingTask] = field(default_factory=dict)
    _waiting: dict[NodeIndex, deque[TaskId]] = field(default_factory=dict)
    _running: dict[NodeIndex, int] = field(default_factory=dict)
    _next: int = 0
    _cancelled: list[tuple[NodeIndex, TaskId]] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self._tasks)

    def add(self, node: NodeIndex, purpose: Purpose, work: rpc.Task, timeout_ms: int | None = None) -> TaskId:
        """Number a task; `take_ready` says when it may go out. `work` needs nothing but its oneof filled in; without
        `timeout_ms` it gets the default."""
        timeout_ms = timeout_ms or self.default_timeout_ms
        task_id = TaskId(self.first_id + self._next)
        self._next += 1
        work.task = task_id
        work.timeout_ms = timeout_ms
        self._tasks[task_id] = PendingTask(task_id, node, purpose, work, timeout_ms * 1_000_000)
        self._waiting.setdefault(node, deque()).append(task_id)
        return task_id

    def add_for_each(
        self, node: NodeIndex, what: str, keys: Sequence[ChunkKey], work: Callable[[Sequence[ChunkKey]], rpc.Task]
    ) -> None:
        """Housekeeping that names keys: as many tasks as it takes."""
        for at in range(0, len(keys), TASK_KEYS_MAX):
            self.add(node, Housekeeping(what), work(keys[at : at + TASK_KEYS_MAX]))

    def take_ready(self, now_ns: int) -> list[PendingTask]:
        """Tasks to send now; their time runs from here."""
        ready = []
        for node, waiting in self._waiting.items():
            while waiting and self._running.get(node, 0) < TASKS_PER_NODE_MAX:
                task = self._tasks[waiting.popleft()]
                task.deadline_ns = now_ns + task.timeout_ns + _GRACE_NS
                self._running[node] = self._running.get(node, 0) + 1
                ready.append(task)
        self._waiting = {node: waiting for node, waiting in self._waiting.items() if waiting}
        return ready

    def get(self, task_id: TaskId) -> PendingTask | None:
        """None for a task that has ended or never was."""
        return self._tasks.get(task_id)

    def with_purpose(self, purpose: Purpose) -> list[PendingTask]:
        """Unfinished tasks of exactly this purpose."""
        return [task for task in self._tasks.values() if task.purpose == purpose]

    def matching(self, accepts: Callable[[Purpose], bool]) -> list[PendingTask]:
        """Unfinished tasks whose purpose is accepted, in the order in which they were added."""
        return [task for task in self._tasks.values() if accepts(task.purpose)]

    def finish(self, task_id: TaskId) -> PendingTask | None:
        """The task ended; None for one that is not known (any more)."""
        task = self._tasks.pop(task_id, None)
        if task is None:
            return None
        if task.deadline_ns:
            self._running[task.node] -= 1
            if not self._running[task.node]:
                del self._running[task.node]
        else:
            self._waiting[task.node].remove(task_id)
        return task

    def cancel(self, task: PendingTask) -> None:
        """Take a task back; its end is not reported any more."""
        if self.finish(task.id) is not None and task.deadline_ns:
            self._cancelled.append((task.node, task.id))

    def take_cancelled(self) -> list[tuple[NodeIndex, TaskId]]:
        """Tasks that went out and were taken back since the last call: their nodes need to know."""
        cancelled, self._cancelled = self._cancelled, []
        return cancelled

    def expire(self, now_ns: int) -> list[PendingTask]:
        """Remove and return the tasks whose time is up."""
        late = [task.id for task in self._tasks.values() if task.deadline_ns and task.deadline_ns <= now_ns]
        return [task for task_id in late if (task := self.finish(task_id)) is not None]

    def node_left(self, node: NodeIndex) -> list[PendingTask]:
        """Remove and return a node's tasks."""
        theirs = [task.id for task in self._tasks.values() if task.node == node]
        return [task for task_id in theirs if (task := self.finish(task_id)) is not None]
