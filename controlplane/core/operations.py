"""What operators ask for: pin, evict, warm, drain. Pure; part of the core.

A warm or a drain is a job: it gives fetches to nodes, reports progress per node, and ends when all of them ended.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from controlplane.core.cluster import Cluster
from controlplane.core.directory import AmbiguousKeyError, UnknownKeyError
from controlplane.core.effects import JobProgress
from controlplane.core.ids import ChunkKey, JobId, Mark, NodeIndex
from controlplane.core.limits import CHUNK_BYTES_MAX, TASK_KEYS_MAX
from controlplane.core.nodes import Node
from controlplane.core.operator_state import OperatorState
from controlplane.core.publication import Publication
from controlplane.core.spill import Host, plan_drain
from controlplane.core.switch.chunk_states import ChunkState
from controlplane.core.switch_cache.cache import SwitchCache
from controlplane.core.tasks import JobPart, PendingTask
from kvproto.rpc import control_pb2 as rpc
from kvproto.twins import TWIN_CODES, twin_key

_Work: TypeAlias = Callable[[Sequence[ChunkKey]], rpc.Task]


def words_of(verb: str, request: rpc.PinRequest | rpc.EvictRequest | rpc.WarmRequest | rpc.DrainRequest) -> str:
    """What an operator had done, for the log: the names in it are those that the core has found."""
    match request:
        case rpc.PinRequest():
            return f"{verb} {request.key_hex}{' in the switch' if request.in_switch else ''}"
        case rpc.EvictRequest():
            return f"{verb} {request.key_hex}{' from hosts, too' if request.hosts else ''}"
        case rpc.WarmRequest():
            where = ", ".join(request.nodes) or "all nodes"
            return f"{verb} {where} with {request.key_hex}{' and pin it there' if request.pin else ''}"
        case rpc.DrainRequest():
            return f"{verb} {request.node}{' no longer' if request.cancel else ''}"


class OperatorError(Exception):
    """An operator's request cannot be met; one line, and the name of a gRPC status."""

    def __init__(self, code: str, reason: str) -> None:
        super().__init__(reason)
        self.code = code


@dataclass(slots=True)
class _Share:
    """What one node does for a job."""

    total: int
    done: int = 0
    bytes: int = 0
    running: dict[int, int] = field(default_factory=dict)
    """Chunks done so far in each unfinished task."""
    unfinished: int = 0
    problem: str = ""


@dataclass(slots=True)
class _Job:
    id: JobId
    drained: NodeIndex | None = None
    """The node that a drain empties; None for a warm."""
    stranded: int = 0
    shares: dict[NodeIndex, _Share] = field(default_factory=dict)


class Operations:
    """One method for each of operators' requests. Owns the jobs that last, and what each node does for them."""

    def __init__(
        self, cluster: Cluster, switch_cache: SwitchCache | None, publication: Publication, state: OperatorState
    ) -> None:
        """`switch_cache`: None where there is no kvcast switch."""
        self._cluster = cluster
        self._directory = cluster.directory
        self._nodes = cluster.nodes
        self._tasks = cluster.tasks
        self._switch_cache = switch_cache
        self._publication = publication
        self._state = state
        self._jobs: dict[JobId, _Job] = {}
        self._next_job = 1

    # -- pins

    def pin(self, request: rpc.PinRequest, mark: Mark) -> rpc.PinReply:
        """Keep a prefix in hosts' pools and, if asked for, in the switch. Raises OperatorError."""
        keys = self._prefix(request.key_hex)
        if request.in_switch and self._switch_cache is None:
            raise OperatorError("FAILED_PRECONDITION", "there is no kvcast switch to pin into")
        self._directory.set_pinned(keys, True)
        self._for_holders(keys, lambda some: rpc.Task(pin=rpc.PinChunks(keys=some)), "pin")
        if request.in_switch and self._switch_cache is not None:
            crossing = [self._directory.crossing(key) for key in keys]
            self._switch_cache.pin(crossing)
            self._state.set_switch_pins(crossing, True, mark)
        self._cluster.decisions["pinned"] += len(keys)
        return self._pin_reply(keys)

    def pin_progress(self, request: rpc.PinRequest) -> rpc.PinReply:
        """How far a pin into the switch has come. Raises OperatorError."""
        keys = self._prefix(request.key_hex)
        reply = self._pin_reply(keys)
        if self._switch_cache is not None:
            cache = self._switch_cache
            served = [ChunkState.SERVING in map(cache.state, (key, self._directory.crossing(key))) for key in keys]
            reply.served_chunks = sum(served)
            crossing = [self._directory.crossing(key) for key in keys]
            reply.problems.extend(dict.fromkeys(why for key in crossing if (why := cache.problem(key))))
        return reply

    def unpin(self, request: rpc.PinRequest, _: Mark) -> rpc.PinReply:
        """Let a prefix go again, wherever it is pinned. Raises OperatorError."""
        keys = self._prefix(request.key_hex)
        changed = self._directory.set_pinned(keys, False)
        self._for_holders(changed, lambda some: rpc.Task(unpin=rpc.UnpinChunks(keys=some)), "unpin")
        if self._switch_cache is not None:
            pinned = [one for key in keys for one in (key, *(twin_key(key, code) for code in TWIN_CODES))]
            self._switch_cache.unpin(pinned)
            self._state.set_switch_pins(pinned, False)
        self._cluster.decisions["unpinned"] += len(changed)
        return self._pin_reply(changed)

    def evict(self, request: rpc.EvictRequest, _: Mark) -> rpc.EvictReply:
        """From the switch, leaves first; with `hosts` from the agents' pools too (but for what is pinned). Raises
        OperatorError."""
        key = self._find(request.key_hex)
        directory, switch_cache = self._directory, self._switch_cache
        below = directory.subtree(key)[::-1]
        if switch_cache is not None:
            switch_cache.unpin(below)
            self._state.set_switch_pins(below, False)
        if request.hosts:
            below = [one for one in below if (chunk := directory.get(one)) is not None and not chunk.pinned]
        from_switch = 0
        if switch_cache is not None:
            from_switch = sum(switch_cache.evict(one, save=not request.hosts) for one in below)
        self._cluster.decisions["evicted_by_operator"] += from_switch
        copies = 0
        if request.hosts:
            copies = sum(len(chunk.holders) for one in below if (chunk := directory.get(one)) is not None)
            self._for_holders(below, lambda some: rpc.Task(drop=rpc.Drop(keys=some)), "drop", on_disk=True)
        return rpc.EvictReply(chunks_from_switch=from_switch, copies_from_hosts=copies)

    # -- jobs

    def warm(self, request: rpc.WarmRequest, _: Mark) -> JobId:
        """All nodes start at once, so that one cast serves them all. Progress comes as JobProgress."""
        keys = self._prefix(request.key_hex)
        nodes = self._named(request.nodes) if request.nodes else self._cluster.takers
        if not nodes:
            raise OperatorError("FAILED_PRECONDITION", "no node is attached")
        job = self._new_job()
        for node in nodes:
            missing = [key for key in keys if node.index not in self._holders(key)]
            share = _Share(total=len(keys), done=len(keys) - len(missing))
            job.shares[node.index] = share
            self._give(job, node.index, missing, rpc.Fetch.WARM, request.timeout_ms, pin=request.pin)
            if request.pin:
                mine = [key for key in keys if node.index in self._holders(key)]
                self._tasks.add_for_each(node.index, "pin", mine, lambda some: rpc.Task(pin=rpc.PinChunks(keys=some)))
        if request.pin:
            self._directory.set_pinned(keys, True)
        for node in nodes:
            self._report(job, node.index)
        self._finish_if_done(job)
        return job.id

    def drain(self, request: rpc.DrainRequest, mark: Mark) -> JobId:
        """Nothing new goes to the node; what only it holds goes to others. With `cancel` it is taken back."""
        node = self._nodes.named(request.node)
        if node is None:
            raise OperatorError("NOT_FOUND", f"no node is called '{request.node}': `kvcast top` shows all")
        if node.draining == request.cancel:
            node.draining = not request.cancel
            self._state.set_drained(node.facts.name, node.draining, mark)
            self._cluster.inform(f"node {node.facts.name} is {'draining' if node.draining else 'not drained any more'}")
            self._publication.node_changed(node.index)
        job = self._new_job(drained=node.index)
        if request.cancel:
            self._cancel_drains(node.index, job)
        else:
            self._move_out(job, node, request.timeout_ms)
        self._finish_if_done(job)
        return job.id

    def cancel(self, job_id: JobId) -> None:
        """The operator went away: take the job's tasks back."""
        job = self._jobs.pop(job_id, None)
        if job is not None:
            for task in self._tasks.matching(lambda one: isinstance(one, JobPart) and one.job == job_id):
                self._tasks.cancel(task)

    def part_progressed(self, task: PendingTask, progress: rpc.TaskProgress) -> None:
        """A node says how far its share has come."""
        job = self._job_of(task)
        if job is not None and isinstance(task.purpose, JobPart):
            job.shares[task.node].running[task.id] = min(progress.done, len(task.purpose.keys))
            self._report(job, task.node)

    def part_ended(self, task: PendingTask, result: rpc.TaskResult) -> None:
        """A task of a job is over."""
        job = self._job_of(task)
        if job is None or not isinstance(task.purpose, JobPart):
            return
        share = job.shares[task.node]
        share.running.pop(task.id, None)
        share.unfinished -= 1
        share.bytes += min(result.bytes, len(task.purpose.keys) * CHUNK_BYTES_MAX)
        if result.status == rpc.TaskResult.DONE:
            share.done += len(task.purpose.keys)
        else:
            share.done += min(result.done, len(task.purpose.keys))
            share.problem = result.detail or rpc.TaskResult.Status.Name(result.status).lower()
        self._report(job, task.node)
        self._finish_if_done(job)

    # -- inside

    def _move_out(self, job: _Job, node: Node, timeout_ms: int) -> None:
        chunks = [
            (key, chunk.facts.size_bytes)
            for key in self._directory.last_copies(node.index)
            if (chunk := self._directory.get(key)) is not None
        ]
        hosts = [Host(other.index, other.free_bytes) for other in self._cluster.takers if other.index != node.index]
        plan = plan_drain(chunks, hosts, self._may_take)
        job.stranded = len(plan.stranded)
        for move in plan.moves:
            share = job.shares.setdefault(move.node, _Share(total=0))
            share.total += len(move.keys)
            self._give(job, move.node, move.keys, rpc.Fetch.DRAIN, timeout_ms)
        self._cluster.decisions["drain_moves"] += sum(len(move.keys) for move in plan.moves)
        for index in job.shares:
            self._report(job, index)

    def _may_take(self, node: NodeIndex, key: ChunkKey) -> bool:
        taker, chunk = self._nodes.get(node), self._directory.get(key)
        return (
            taker is not None and chunk is not None and self._cluster.visibility.may_have(taker, chunk.facts.namespace)
        )

    def _cancel_drains(self, node: NodeIndex, but: _Job) -> None:
        for other in [one for one in self._jobs.values() if one.drained == node and one is not but]:
            self._cluster.emit(
                JobProgress(other.id, rpc.Progress(problem="drain was cancelled", finished=True), last=True)
            )
            self.cancel(other.id)

    def _give(
        self,
        job: _Job,
        node: NodeIndex,
        keys: Sequence[ChunkKey],
        reason: rpc.Fetch.Reason.ValueType,
        timeout_ms: int,
        pin: bool = False,
    ) -> None:
        for at in range(0, len(keys), TASK_KEYS_MAX):
            some = tuple(keys[at : at + TASK_KEYS_MAX])
            work = rpc.Task(fetch=rpc.Fetch(keys=some, reason=reason, pin=pin), foreground=True)
            self._tasks.add(node, JobPart(job.id, some), work, timeout_ms or None)
            job.shares[node].unfinished += 1

    def _report(self, job: _Job, index: NodeIndex) -> None:
        share = job.shares[index]
        node = self._nodes.get(index)
        progress = rpc.Progress(
            node=node.facts.name if node else f"node {index}",
            done=share.done + sum(share.running.values()),
            total=share.total,
            bytes=share.bytes,
            finished=share.unfinished == 0,
            problem=share.problem,
        )
        self._cluster.emit(JobProgress(job.id, progress))

    def _finish_if_done(self, job: _Job) -> None:
        if job.id not in self._jobs or any(share.unfinished for share in job.shares.values()):
            return
        del self._jobs[job.id]
        last = rpc.Progress(finished=True)
        if job.drained is not None:
            node = self._nodes.get(job.drained)
            last.node = node.facts.name if node else ""
            if job.stranded:
                last.problem = f"{job.stranded} chunks fit into no other pool that may have them"
        self._cluster.emit(JobProgress(job.id, last, last=True))

    def _new_job(self, drained: NodeIndex | None = None) -> _Job:
        job = _Job(JobId(self._next_job), drained)
        self._next_job += 1
        self._jobs[job.id] = job
        return job

    def _job_of(self, task: PendingTask) -> _Job | None:
        return self._jobs.get(task.purpose.job) if isinstance(task.purpose, JobPart) else None

    def _find(self, key_hex: str) -> ChunkKey:
        try:
            return self._directory.find(key_hex)
        except UnknownKeyError as error:
            raise OperatorError("NOT_FOUND", str(error)) from error
        except AmbiguousKeyError as error:
            raise OperatorError("FAILED_PRECONDITION", str(error)) from error

    def _prefix(self, key_hex: str) -> list[ChunkKey]:
        return self._directory.prefix(self._find(key_hex))

    def _holders(self, key: ChunkKey) -> frozenset[NodeIndex]:
        return self._directory.hosts(key)[0]

    def _named(self, names: Iterable[str]) -> list[Node]:
        nodes = []
        for name in dict.fromkeys(names):
            node = self._nodes.named(name)
            if node is None or not node.attached:
                raise OperatorError("NOT_FOUND", f"no node '{name}' is attached: `kvcast top` shows all")
            nodes.append(node)
        return nodes

    def _for_holders(self, keys: Sequence[ChunkKey], work: _Work, what: str, *, on_disk: bool = False) -> None:
        """`on_disk`: also those that have a chunk on disk only."""
        by_node: dict[NodeIndex, list[ChunkKey]] = {}
        for key in keys:
            chunk = self._directory.get(key)
            for node in self._holders(key) | (chunk.disk_holders if chunk is not None and on_disk else set()):
                by_node.setdefault(node, []).append(key)
        for node, theirs in sorted(by_node.items()):
            self._tasks.add_for_each(node, what, theirs, work)

    def _pin_reply(self, keys: Sequence[ChunkKey]) -> rpc.PinReply:
        sizes = [chunk.facts.size_bytes for key in keys if (chunk := self._directory.get(key)) is not None]
        return rpc.PinReply(chunks=len(keys), bytes=sum(sizes))
