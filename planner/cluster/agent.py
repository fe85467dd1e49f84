"""One node: the agent's own pool, gate and reports, without memory, sockets and loop; and the engine's queue."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from hostagent import limits
from hostagent.api.messages import ChunkSource
from hostagent.controller.reports import Reports
from hostagent.pool.chunks import Chunk, ChunkPool, DropOutcome, PoolUsage, Refusal
from kvproto.ids import ChunkKey
from kvproto.rpc import control_pb2 as rpc
from kvproto.tiers.gate import Gate
from kvproto.value import Touch
from kvproto.value.costs import PRIORS, Source, SourceCost, SourceCosts
from planner.cluster.clock import VirtualClock
from planner.cluster.disk import VirtualDisk
from planner.cluster.options import Cluster


class Engine:
    """Prefills one request after the other, in the order in which their input was at hand."""

    def __init__(self, clock: VirtualClock) -> None:
        self._clock = clock
        self._queue: deque[tuple[Callable[[], float], Callable[[], None]]] = deque()
        self._busy = False
        self.busy_s = 0.0

    @property
    def waiting(self) -> int:
        """Requests in the queue or at work."""
        return len(self._queue) + self._busy

    def submit(self, begin: Callable[[], float], done: Callable[[], None]) -> None:
        """`begin` is called when the request's turn comes and says how long it takes; then `done`."""
        self._queue.append((begin, done))
        if not self._busy:
            self._next()

    def _next(self) -> None:
        self._busy = bool(self._queue)
        if self._busy:
            begin, done = self._queue.popleft()
            takes_s = begin()
            self.busy_s += takes_s
            self._clock.call_later(takes_s, self._done, done)

    def _done(self, done: Callable[[], None]) -> None:
        done()
        self._next()


@dataclass(slots=True, eq=False)
class Agent:
    """A node's agent. `send` is the stream to its controller; None: there is none."""

    node: int
    clock: VirtualClock
    cluster: Cluster
    send: Callable[[rpc.FromAgent], None] | None
    run_task: Callable[[int, rpc.Task], None]
    elsewhere: Callable[[int, ChunkKey], tuple[Source, ...]]
    """(this node, chunk) -> where it is besides this node."""
    pool: ChunkPool = field(init=False)
    disk: VirtualDisk | None = field(init=False, default=None)
    chunk_bytes: int = field(init=False)
    fetching: int = field(init=False, default=0)
    """Requests that wait for a fetch."""
    gate: Gate = field(init=False)
    engine: Engine = field(init=False)
    reports: Reports | None = field(init=False, default=None)
    _private: set[ChunkKey] = field(default_factory=set)
    """Copies that this node keeps to itself."""

    def __post_init__(self) -> None:
        cluster, align = self.cluster, limits.EXTENT_ALIGN_BYTES
        self.chunk_bytes = cluster.chunk_bytes
        pool_bytes = max(align, cluster.local_dram_bytes // align * align)
        self.pool = ChunkPool(pool_bytes, align, lambda: self.clock.now_ns, self._loss_of_dram)
        # Before the first fetch the gate believes in the link and the device; what it measures then counts.
        believed = {
            Source.SWITCH: cluster.link_rate,
            Source.REMOTE_DRAM: cluster.link_rate,
            Source.REMOTE_DISK: min(cluster.link_rate, cluster.disk_rate),
            Source.LOCAL_DISK: cluster.disk_rate,
        }
        priors = {source: SourceCost(PRIORS[source].overhead_s, rate) for source, rate in believed.items()}
        self.gate = Gate(SourceCosts({**PRIORS, **priors}))
        self.engine = Engine(self.clock)
        if cluster.local_disk_bytes:
            self.disk = VirtualDisk(
                self.clock, self.pool, cluster.local_disk_bytes, cluster.disk_rate, self._loss_of_disk
            )
        if self.send is not None:
            # The reports use three methods of their loop, which the virtual clock has.
            self.reports = Reports(
                self.pool, cast("Any", self.clock), self._report, list, self.disk, self.gate.take_measurements
            )
            self.reports.connected = True
        if self.disk is not None:
            self.disk.connect(lambda: self.fetching > 0, self.changed)

    def _loss_of_dram(self, key: ChunkKey, size_bytes: int) -> float:
        on_disk = (Source.LOCAL_DISK,) if self.disk is not None and self.disk.find(key) is not None else ()
        return self.gate.costs.loss_s(size_bytes, Source.LOCAL_DRAM, (*self.elsewhere(self.node, key), *on_disk))

    def _loss_of_disk(self, key: ChunkKey, size_bytes: int) -> float:
        return self.gate.costs.loss_s(size_bytes, Source.LOCAL_DISK, self.elsewhere(self.node, key))

    def _report(self, message: rpc.FromAgent) -> None:
        if self.send is None:
            raise AssertionError("only an agent with a controller reports")
        if message.HasField("announce") and self._private:
            told = [record for record in message.announce.added if record.key not in self._private]
            del message.announce.added[:]
            message.announce.added.extend(told)
            if not told and not message.announce.removed and not message.announce.removed_from_disk:
                return
        self.send(message)

    # -- the pool

    def find(self, key: ChunkKey) -> Chunk | None:
        return self.pool.find(key)

    def asked(self, keys: Sequence[ChunkKey]) -> None:
        """A request wants these, in prefix order, here or not: the pool's values learn from it."""
        parents = (None, *keys)
        touches = [Touch(key, parents[place], place, self.chunk_bytes) for place, key in enumerate(keys)]
        self.pool.fetched(touches)
        if self.disk is not None:
            self.disk.fetched(touches)

    def fetch_ended(self) -> None:
        """A request waits no more; background work may go on where none does."""
        self.fetching -= 1
        if self.disk is not None and not self.fetching:
            self.disk.quiet()

    def use(self, chunk: Chunk) -> None:
        """A request reads it: it stays while pinned."""
        self.pool.pin(chunk)

    def release(self, chunks: Iterable[Chunk]) -> None:
        for chunk in chunks:
            self.pool.unpin(chunk)

    def reserve(self, key: ChunkKey, parent: ChunkKey | None, position: int) -> Chunk | Refusal:
        return self.pool.reserve(key, parent, self.chunk_bytes, position)

    def store(self, keys: Sequence[ChunkKey]) -> list[ChunkKey]:
        """Keep what the engine computed, in prefix order, as far as there is room; returns what is new here."""
        stored = []
        for position, key in enumerate(keys):
            found = self.reserve(key, keys[position - 1] if position else None, position)
            if isinstance(found, Chunk):
                self._private.discard(key)
                self.commit(found)
                stored.append(key)
            elif found in (Refusal.FULL, Refusal.TOO_LARGE):
                break
        self.changed()
        return stored

    def commit(self, chunk: Chunk) -> None:
        self.pool.commit(chunk, checksum=int.from_bytes(chunk.key[:8], "big"))
        if self.disk is not None:
            self.disk.arrived(chunk)

    def drop(self, keys: Iterable[ChunkKey]) -> list[ChunkKey]:
        """What the controller wants gone; returns what could not go."""
        kept = [key for key in keys if self.pool.drop(key) is DropOutcome.HELD]
        self.changed()
        return kept

    # -- the controller

    def changed(self) -> None:
        """The pool's content changed: announce it in a moment."""
        if self.reports is not None:
            self.reports.pool_changed()

    def fetched_copy(self, key: ChunkKey) -> None:
        """A copy came by an engine's fetch."""
        if self.reports is not None:
            self.reports.fetched_copy(key)

    def keep_private(self, key: ChunkKey) -> None:
        """A copy that the directory shall not know of."""
        self._private.add(key)

    def used(self, key: ChunkKey, source: ChunkSource | None, waited_s: float, holder: int) -> None:
        """A request got a chunk from `source`, or had to compute it (None)."""
        if self.reports is not None:
            self.reports.fetched(key, source, self.chunk_bytes, waited_s, holder)

    def hear(self, scores: Sequence[tuple[ChunkKey, float]]) -> None:
        """What chunks are worth to all nodes, as the controller tells."""
        for key, score in scores:
            self.pool.hear(key, score)

    def task(self, task: rpc.Task) -> None:
        self.run_task(self.node, task)

    def answer(self, task: int, done: int, size_bytes: int, failed: Sequence[ChunkKey] = ()) -> None:
        """A task of the controller's is done."""
        if self.send is not None:
            status = rpc.TaskResult.PARTIAL if failed else rpc.TaskResult.DONE
            result = rpc.TaskResult(task=task, status=status, done=done, bytes=size_bytes, failed_keys=list(failed))
            self.send(rpc.FromAgent(task_result=result))

    def heartbeat(self) -> rpc.FromAgent:
        usage: PoolUsage = self.pool.usage()
        disk = self.disk.pool.usage() if self.disk is not None else None
        return rpc.FromAgent(
            heartbeat=rpc.Heartbeat(
                pool_used_bytes=usage.size_bytes - usage.free_bytes,
                pool_pinned_bytes=usage.pinned_bytes,
                chunks=usage.chunks_count,
                next_victims=self.pool.next_victims(limits.NEXT_VICTIMS_TOLD),
                disk_used_bytes=disk.size_bytes - disk.free_bytes if disk is not None else 0,
            )
        )
