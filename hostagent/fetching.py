"""The fetching side: runs the protocol's reader, places what arrives into the pool, verifies it, and delivers.

Owns the memory of chunks on their way and the pins of fetches. What to ask whom, and when, is the reader's.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol, assert_never

import numpy as np
import numpy.typing as npt

from hostagent import limits
from hostagent.api.messages import ChunkSource, Status
from hostagent.api.server import FetchResult
from hostagent.arriving import Arriving
from hostagent.directory import DirectoryReplica, NodeEntry
from hostagent.disk.store import LoadOutcome
from hostagent.fetch_plan import FetchPlan, FetchPlanner
from hostagent.hashing import Checksums
from hostagent.pool.chunks import Chunk, ChunkPool, ChunkState
from hostagent.pool.memory import PoolMemory
from hostagent.sources import COSTS_AS, TOLD_AS, LocalDisk, Sources
from hostagent.timers import MachineTimer
from hostagent.transport.base import ControlArrival, ReadHandle, ReadOutcome, ReadRequest, Transport
from kvproto import events
from kvproto.commands import (
    AbortRead,
    Blame,
    DeliverFetch,
    DropChunk,
    FetchProgress,
    Outcome,
    ReaderCommand,
    ReportBadCopy,
    SendControl,
    Source,
    StartRead,
    VerifyChunk,
)
from kvproto.ids import Address, ChunkKey, FetchId, NodeId, ReadId
from kvproto.limits import FETCHES_MAX
from kvproto.session.parameters import ReaderParameters
from kvproto.session.reader import Reader
from kvproto.tiers.gate import Gate, Ticket
from kvproto.value import Source as CostSource
from kvproto.wire.data import SegmentGroup

_OUTCOMES = {Outcome.GONE: Status.UNAVAILABLE, Outcome.LATE: Status.DEADLINE}


class FetchObserver(Protocol):
    """Who wants to know what fetches did: metrics, and the controller."""

    def chunk_delivered(self, chunk: Chunk, source: ChunkSource, waited_s: float, holder: Address | None) -> None: ...
    def fetch_ended(self, status: Status, seconds: float) -> None: ...
    def chunk_missed(self, key: ChunkKey, waited_s: float) -> None: ...
    def bad_copy(
        self, key: ChunkKey, holder: NodeId, expected: int, found: int, blame: Blame, *, from_switch: bool
    ) -> None: ...
    def copy_arrived(self, key: ChunkKey, *, asked_for: bool) -> None:
        """A verified copy lies in the pool; `asked_for`: a task brought it, not (only) an engine's fetch."""
        ...


@dataclass(slots=True, eq=False)
class Fetch:
    """One fetch under way. `cancel` is the engine's; no result comes after it."""

    shell: Fetching
    fetch: FetchId
    keys: tuple[ChunkKey, ...]
    stopped: Status
    """Why the keys asked for go no further than `keys`; OK when they do."""
    done: Callable[[FetchResult], None]
    started_s: float
    ticket: Ticket
    pinned: dict[ChunkKey, Chunk] = field(default_factory=dict)
    came_from: dict[ChunkKey, Address | None] = field(default_factory=dict)
    routes: dict[ChunkKey, CostSource] = field(default_factory=dict)
    progressed: Callable[[int], None] | None = None
    """Of a task: who is told how far it is. None: an engine waits for it."""

    def cancel(self) -> None:
        """Give it up. Idempotent."""
        self.shell.cancel(self)


class Fetching:
    """The shell of the reader."""

    def __init__(
        self,
        pool: ChunkPool,
        memory: PoolMemory,
        transport: Transport,
        directory: DirectoryReplica,
        checksums: Checksums,
        gate: Gate,
        disk: LocalDisk,
        loop: asyncio.AbstractEventLoop,
        observer: FetchObserver,
        parameters: ReaderParameters,
        node_name: str,
    ) -> None:
        self._pool = pool
        self._memory = memory
        self._transport = transport
        self._directory = directory
        self._checksums = checksums
        self._gate = gate
        self._disk = disk
        self._loop = loop
        self._observer = observer
        self._parameters = parameters
        self._reader = Reader(parameters)
        self._timer = MachineTimer(loop, self._timer_fired)
        self._fetches: dict[FetchId, Fetch] = {}
        self._arriving: dict[ChunkKey, Arriving] = {}
        self._reads: dict[ReadId, ReadHandle] = {}
        self._fetch_id = 0
        self.sources = Sources(directory, disk, node_name)
        self._planner = FetchPlanner(pool, directory, disk, self.sources, gate, self._arriving, self._kept)

    @property
    def under_way_count(self) -> int:
        return len(self._fetches)

    @property
    def busy(self) -> bool:
        """Whether an engine waits for something."""
        return any(fetch.progressed is None for fetch in self._fetches.values())

    @property
    def led_count(self) -> int:
        """Chunks that this node pulls for everybody at the moment."""
        return self._reader.led_count

    # ------------------------------------------------------------------ fetches

    def fetch(
        self,
        keys: Sequence[ChunkKey],
        deadline_s: float,
        recompute_s: float | None,
        done: Callable[[FetchResult], None],
        progressed: Callable[[int], None] | None = None,
        *,
        from_disk_only: bool = False,
    ) -> Fetch | None:
        """See `api.server.Backend.fetch`; keys are distinct; `progressed` hears how many leading chunks are here.

        `from_disk_only`: chunks are loaded from this node's disk, never asked of others.
        """
        started_s = self._loop.time()
        if len(self._fetches) >= FETCHES_MAX:
            done(FetchResult(Status.BUSY, ()))
            return None
        plan = self._planner.plan(keys, recompute_s, from_disk_only=from_disk_only, is_engines=progressed is None)
        for entry, chunk, route in plan.to_come:
            size = self._parameters.segment_bytes
            self._arriving[entry.key] = Arriving.into(chunk, entry, size, self._memory, route)
        if len(plan.pinned) == len(plan.keys):
            self._deliver_local(plan, done, started_s)
            if plan.untaught:
                self._planner.teach(keys, plan.untaught)
            return None
        self._fetch_id += 1
        ticket = self._gate.started(plan.verdict)
        fetch = Fetch(self, FetchId(self._fetch_id), plan.keys, plan.stopped, done, started_s, ticket, plan.pinned)
        fetch.progressed = progressed
        for key in plan.keys:
            if key in self._arriving:
                self._arriving[key].fetches.add(fetch.fetch)
                fetch.routes[key] = self._arriving[key].route
        self._fetches[fetch.fetch] = fetch
        deadline_ns = time.monotonic_ns() + int(deadline_s * 1e9)
        wanted = tuple(self._wanted(key, fetch, from_disk_only) for key in plan.keys)
        self._handle(events.FetchRequested(fetch.fetch, wanted, deadline_ns))
        for key in plan.to_load:
            self._load(key)
        return fetch if fetch.fetch in self._fetches else None

    def cancel(self, fetch: Fetch) -> None:
        """The engine no longer wants it."""
        if self._fetches.pop(fetch.fetch, None) is None:
            return
        self._gate.cancelled(fetch.ticket)
        self._forget(fetch)
        self._handle(events.FetchCancelled(fetch.fetch))
        self._observer.fetch_ended(Status.CANCELLED, self._loop.time() - fetch.started_s)

    def _kept(self, key: ChunkKey) -> Chunk | None:
        """A chunk that arrived for a fetch under way and was dropped from the pool since: its bytes stay until that
        fetch is over, and the reader counts it as here."""
        if not self._reader.is_here(key):
            return None
        return next(fetch.pinned[key] for fetch in self._fetches.values() if key in fetch.pinned)

    def _wanted(self, key: ChunkKey, fetch: Fetch, from_disk_only: bool) -> events.ChunkWanted:
        chunk = fetch.pinned.get(key)
        if chunk is not None:
            segments = -(-chunk.size_bytes // self._parameters.segment_bytes)
            return events.ChunkWanted(key, segments, chunk.size_bytes, (), present=True)
        arriving = self._arriving[key]
        holders = () if from_disk_only else self.sources.holders(arriving.entry)
        return events.ChunkWanted(
            key,
            arriving.segments_count,
            arriving.entry.size_bytes,
            holders,
            loading=arriving.route is CostSource.LOCAL_DISK,
            read_alone=arriving.route is CostSource.REMOTE_DRAM and arriving.entry.served,
        )

    # ------------------------------------------------------------------ this node's disk

    def _load(self, key: ChunkKey) -> None:
        arriving = self._arriving.get(key)
        if arriving is not None:
            self._disk.load(key, arriving.chunk, partial(self._loaded, arriving))

    def _loaded(self, arriving: Arriving, outcome: LoadOutcome, checksum: int) -> None:
        key = arriving.chunk.key
        if self._arriving.get(key) is not arriving:
            return
        if outcome is LoadOutcome.DONE:
            self._take_in(arriving, checksum, from_here=True)
            self._handle(events.ChunkLoaded(key))
        else:
            arriving.route = CostSource.REMOTE_DRAM
            self._handle(events.LoadFailed(key))

    def _deliver_local(self, plan: FetchPlan, done: Callable[[FetchResult], None], started_s: float) -> None:
        chunks = tuple((plan.pinned[key], ChunkSource.LOCAL) for key in plan.keys)
        # The engine goes on while the rest is noted.
        done(FetchResult(plan.stopped, chunks))
        for chunk, _ in chunks:
            self._observer.chunk_delivered(chunk, ChunkSource.LOCAL, 0.0, None)
        self._observer.fetch_ended(plan.stopped, self._loop.time() - started_s)

    # ------------------------------------------------------------------ directory

    def directory_changed(self, keys: Iterable[ChunkKey], nodes_lost: Iterable[str]) -> None:
        """The replica learnt something: tell the reader what concerns chunks on their way."""
        changed: dict[ChunkKey, tuple[events.HolderRef, ...]] = {}
        for key in keys:
            if key in self._arriving:
                entry = self._directory.find(key)
                changed[key] = () if entry is None else self.sources.holders(entry)
        if changed:
            self._handle(events.HoldersChanged(changed))
        for name in nodes_lost:
            if self._fetches:
                self._handle(events.HolderLost(NodeId(name)))

    def switch_changed(self) -> None:
        """The switch's program restarted."""
        self._handle(events.SwitchChanged())

    def configure(self, parameters: ReaderParameters) -> None:
        """The node's parameters changed; another segment size ends what is under way."""
        if parameters == self._parameters:
            return
        if parameters.segment_bytes != self._parameters.segment_bytes:
            self._parameters = parameters
            self._restart()
            return
        self._parameters = parameters
        now_ns = time.monotonic_ns()
        self._carry_out(self._reader.configure(parameters, now_ns), now_ns)

    def _node(self, name: NodeId) -> NodeEntry | None:
        return self._directory.node_named(name)

    # ------------------------------------------------------------------ the network

    def controls_received(self, arrivals: Sequence[ControlArrival]) -> None:
        """NOTICEs and NAKs."""
        now_ns = time.monotonic_ns()
        heard = [events.ControlReceived(message, source) for message, source in arrivals]
        self._carry_out(self._reader.handle_all(heard, now_ns), now_ns)

    def cast_patience_s(self) -> float:
        """While others pull and much is still to come, nothing depends on a segment being seen at once."""
        return limits.CAST_FOLLOWER_POLL_S_MAX if self._reader.patient else limits.CAST_POLL_S_MAX

    def casts_received(self, group: SegmentGroup, payload: npt.NDArray[np.uint8]) -> None:
        """Segments came: place those that are missing, report all."""
        arriving = self._arriving.get(group.key)
        missing = self._reader.missing(group.key) if arriving is not None else None
        counters = self._transport.counters
        if arriving is None or missing is None:
            counters.drop("cast_unwanted", len(group.rows))
            # A LEAVE may have been lost: the reader sends another where the switch goes on counting us in.
            self._handle(events.SegmentsReceived(group.key, group.segments, group.source, group.from_switch))
            return
        if group.segments_in_chunk != arriving.segments_count:
            counters.drop("cast_other_size", len(group.rows))
            return
        arriving.place(group.segments, payload, missing[group.segments])
        arriving.last_source = group.source
        arriving.from_switch += group.from_switch
        self._handle(events.SegmentsReceived(group.key, group.segments, group.source, group.from_switch))

    def _read_ended(self, read: ReadId, outcome: ReadOutcome) -> None:
        if self._reads.pop(read, None) is None:
            return
        if outcome is ReadOutcome.DONE:
            self._handle(events.ReadDone(read))
        else:
            self._handle(events.ReadFailed(read, gone=outcome is ReadOutcome.ABSENT))

    def _read_progressed(self, read: ReadId, have_bytes: int) -> None:
        if read in self._reads:
            self._handle(events.ReadProgress(read, have_bytes // self._parameters.segment_bytes))

    # ------------------------------------------------------------------ the machine

    def close(self) -> None:
        """End all fetches without a word and give everything back."""
        self._timer.cancel()
        for handle in self._reads.values():
            handle.cancel()
        self._reads.clear()
        for fetch in list(self._fetches.values()):
            self._forget(fetch)
        self._fetches.clear()
        for arriving in self._arriving.values():
            if arriving.chunk.state is ChunkState.FILLING:
                self._pool.abort(arriving.chunk)
        self._arriving.clear()

    def _restart(self) -> None:
        """Deliver what is here of every fetch, and begin with a fresh reader."""
        for handle in self._reads.values():
            handle.cancel()
        self._reads.clear()
        fetches = list(self._fetches.values())
        for fetch in fetches:
            leading = 0
            while leading < len(fetch.keys) and fetch.keys[leading] in fetch.pinned:
                leading += 1
            sources = (Source.LOCAL,) * leading
            self._deliver(DeliverFetch(fetch.fetch, Outcome.GONE, leading, sources))
        for arriving in self._arriving.values():
            if arriving.chunk.state is ChunkState.FILLING:
                self._pool.abort(arriving.chunk)
        self._arriving.clear()
        self._reader = Reader(self._parameters)

    def _timer_fired(self) -> None:
        # A rule that concludes something from what has not come must know what has.
        self._transport.look()
        now_ns = time.monotonic_ns()
        self._carry_out(self._reader.handle_timer(now_ns), now_ns)

    def _handle(self, event: events.ReaderEvent) -> None:
        now_ns = time.monotonic_ns()
        self._carry_out(self._reader.handle(event, now_ns), now_ns)

    def _carry_out(self, commands: list[ReaderCommand], now_ns: int) -> None:
        for command in commands:
            match command:
                case SendControl(message, address):
                    self._transport.send_control(message, address)
                case StartRead():
                    self._start_read(command)
                case AbortRead(read):
                    handle = self._reads.pop(read, None)
                    if handle is not None:
                        handle.cancel()
                case VerifyChunk(key):
                    arriving = self._arriving[key]
                    self._checksums.start(arriving.chunk, partial(self._verified, arriving))
                case DropChunk(key):
                    dropped = self._arriving.pop(key, None)
                    if dropped is not None:
                        self._pool.abort(dropped.chunk)
                case FetchProgress(fetch, leading):
                    under_way = self._fetches.get(fetch)
                    if under_way is not None and under_way.progressed is not None:
                        under_way.progressed(leading)
                case DeliverFetch():
                    self._deliver(command)
                case ReportBadCopy(key, holder, blame):
                    self._report(key, holder, blame)
                case _:
                    assert_never(command)
        self._timer.set(self._reader.next_timeout_ns(), now_ns)

    def _start_read(self, command: StartRead) -> None:
        arriving = self._arriving[command.key]
        size = self._parameters.segment_bytes
        offset = command.first * size
        size_bytes = min(command.count * size, arriving.entry.size_bytes - offset)
        node = self._node(command.holder)
        ended = partial(self._read_ended, command.read)
        if node is None:
            # Gone from the directory meanwhile; told like any other failure, never from inside a command.
            self._reads[command.read] = _NoRead()
            self._loop.call_soon(ended, ReadOutcome.FAILED)
            return
        arriving.last_source = node.address
        progressed = partial(self._read_progressed, command.read) if size_bytes > limits.READ_PROGRESS_BYTES else None
        pool_offset = arriving.chunk.offset + offset
        self._reads[command.read] = self._transport.read(
            ReadRequest(node.read_endpoint, command.key, offset, size_bytes, pool_offset, ended, progressed)
        )

    def _verified(self, arriving: Arriving, checksum: int) -> None:
        key = arriving.chunk.key
        if self._arriving.get(key) is not arriving:
            return
        good = checksum == arriving.entry.checksum
        arriving.found = checksum
        if good:
            self._take_in(arriving, checksum, from_here=False)
        self._handle(events.ChunkVerified(key, good))

    def _take_in(self, arriving: Arriving, checksum: int, *, from_here: bool) -> None:
        """A chunk is whole and right: READY, pinned for the fetches that want it, and told of."""
        key = arriving.chunk.key
        del self._arriving[key]
        self._pool.commit(arriving.chunk, checksum)
        for fetch in arriving.fetches:
            under_way = self._fetches.get(fetch)
            if under_way is not None:
                self._pool.pin(arriving.chunk)
                under_way.pinned[key] = arriving.chunk
                under_way.came_from[key] = arriving.last_source
        asked_for = any(self._fetches[fetch].progressed is not None for fetch in arriving.fetches)
        self._observer.copy_arrived(key, asked_for=asked_for or from_here)

    def _deliver(self, command: DeliverFetch) -> None:
        fetch = self._fetches.pop(command.fetch, None)
        if fetch is None:
            return
        delivered: list[tuple[Chunk, ChunkSource]] = []
        seconds = self._loop.time() - fetch.started_s
        arrived: Counter[CostSource] = Counter()
        for key, source in zip(fetch.keys[: command.leading], command.sources, strict=True):
            chunk = fetch.pinned[key]
            self._pool.pin(chunk)
            delivered.append((chunk, TOLD_AS[source]))
            if source is not Source.LOCAL:
                by_disk = fetch.routes.get(key) is CostSource.REMOTE_DISK
                arrived[CostSource.REMOTE_DISK if by_disk else COSTS_AS[source]] += chunk.size_bytes
        status = fetch.stopped if command.leading == len(fetch.keys) else _OUTCOMES[command.outcome]
        self._gate.ended(fetch.ticket, arrived, seconds, time.monotonic_ns())
        self._forget(fetch)
        for chunk, chunk_source in delivered:
            self._observer.chunk_delivered(chunk, chunk_source, seconds, fetch.came_from.get(chunk.key))
        for key in fetch.keys[command.leading :]:
            self._observer.chunk_missed(key, seconds)
        self._observer.fetch_ended(status, seconds)
        fetch.done(FetchResult(status, tuple(delivered)))

    def _forget(self, fetch: Fetch) -> None:
        """Give back the fetch's own pins and its interest in chunks on their way."""
        for chunk in fetch.pinned.values():
            self._pool.unpin(chunk)
        fetch.pinned.clear()
        for key in fetch.keys:
            arriving = self._arriving.get(key)
            if arriving is not None:
                arriving.fetches.discard(fetch.fetch)

    def _report(self, key: ChunkKey, holder: NodeId, blame: Blame) -> None:
        arriving = self._arriving.get(key)
        expected = arriving.entry.checksum if arriving is not None else 0
        found = arriving.found if arriving is not None else 0
        from_switch = arriving is not None and arriving.from_switch > 0
        self._observer.bad_copy(key, holder, expected, found, blame, from_switch=from_switch)


class _NoRead:
    """A read that could not even be started."""

    def cancel(self) -> None:
        """Nothing to give up."""
