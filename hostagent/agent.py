"""The agent: pool, transport, fetching, serving, local API and controller, put together on one event loop.

Decides nothing itself: it routes what comes in to the part it concerns, and keeps what several parts need to know
(member, fabric, whether the controller is there).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from hostagent import __version__, limits
from hostagent.api.messages import ChunkSource, Hint, Status, Where
from hostagent.api.server import ApiServer, Cancellable, FetchResult
from hostagent.config import AgentConfig
from hostagent.controller.convert import RemoteProtocolError, delta_of, fabric_of
from hostagent.controller.link import ControllerLink
from hostagent.controller.reports import Reports
from hostagent.controller.tasks import TaskRunner
from hostagent.directory import DirectoryReplica
from hostagent.disk.tier import DiskTier
from hostagent.fetching import Fetching
from hostagent.hashing import Checksums
from hostagent.http import HttpServer
from hostagent.metrics import AgentMetrics, Watched
from hostagent.pool.chunks import Chunk, ChunkPool, DropOutcome, Refusal
from hostagent.pool.memory import PoolMemory
from hostagent.serving import Serving
from hostagent.tier_metrics import WatchedGate, WatchedLanes
from hostagent.transport import make_transport, wants_huge_pages
from hostagent.transport.base import ControlArrival, Extent, TransportError, TransportFacts
from kvproto.commands import Blame, FillEnded
from kvproto.ids import Address, ChunkKey, FillId, Member, NodeId, parse_address
from kvproto.rpc import control_pb2 as pb
from kvproto.session.parameters import ReaderParameters
from kvproto.tiers.gate import Gate
from kvproto.tiers.lane import Lane
from kvproto.value.costs import PRIORS, Source, SourceCost, SourceCosts
from kvproto.wire.control import Op
from kvproto.wire.data import Fabric, SegmentGroup

log = logging.getLogger(__name__)

_FOR_READER = frozenset({Op.NOTICE, Op.NAK})
_FOR_HOLDER = frozenset({Op.JOIN, Op.GET, Op.FILL_ACK})


class Agent:
    """One node's agent. `start`, then it lives on the event loop until `stop`."""

    def __init__(self, config: AgentConfig) -> None:
        self.config = config
        self.incarnation = time.time_ns()
        self.metrics = AgentMetrics()
        self.directory = DirectoryReplica()
        self.pool = ChunkPool(config.pool.size_bytes, limits.EXTENT_ALIGN_BYTES, time.monotonic_ns)
        self.controller_connected = False
        self._fabric = Fabric(
            group=parse_address(config.data.group), qkey=config.data.qkey, segment_bytes=config.data.segment_bytes
        )
        self._pool_address = parse_address(config.data.pool_address)
        self._member: Member | None = None
        self._switch_epoch: int | None = None
        self._interest_ttl_ns = 0
        self._link: ControllerLink | None = None
        self._heartbeat: asyncio.TimerHandle | None = None
        self._stale_timer: asyncio.TimerHandle | None = None
        self._heartbeat_s = limits.HEARTBEAT_S_DEFAULT

    async def start(self) -> None:
        """Bind everything. Raises TransportError, ApiError, HttpError or OSError; nothing is left open then."""
        self._loop = asyncio.get_running_loop()
        self._loop.set_exception_handler(self._bug)
        pool = self.config.pool
        huge_pages = pool.huge_pages == "auto" and wants_huge_pages(self.config.data)
        self.memory = PoolMemory(pool.size_bytes, prefault=pool.prefault, huge_pages=huge_pages)
        self.transport = make_transport(self.config.data, self.memory)
        self._checksums = Checksums(self.pool, self.memory, self._loop)
        self.gate = Gate(SourceCosts(_priors(self.config.gate_floor_bytes_per_s)))
        self.disk = DiskTier(self.config.disk, self.memory, self.pool, self._loop)
        self.serving = Serving(self.pool, self.transport, self._loop, self._fabric.segment_bytes, self.disk.prepare)
        self.http = HttpServer(self.metrics.registry, self.health)
        self.api = ApiServer(self, self.memory.fd, self.memory.size_bytes, self.incarnation)
        try:
            await self.disk.open()
            self.facts: TransportFacts = await self.transport.start(self, self._fabric)
            self.fetching = Fetching(
                self.pool,
                self.memory,
                self.transport,
                self.directory,
                self._checksums,
                self.gate,
                self.disk,
                self._loop,
                self,
                self._reader_parameters(),
                self.config.node,
            )
            self.fetching.sources.pool_address = self._pool_address
            self.tasks = TaskRunner(self, self._loop)
            self.reports = Reports(
                self.pool, self._loop, self.report, self.tasks.pinned_keys, self.disk, self.gate.take_measurements
            )
            self.metrics.watch(
                Watched(
                    self.pool,
                    self.transport.counters,
                    lambda: self.controller_connected,
                    lambda: self.fetching.led_count,
                    lambda: self.serving.counts,
                )
            )
            self.metrics.registry.register(WatchedGate(self.gate))
            self.disk.connect(self.fetching, self.pool_changed, self.metrics.registry)
            lanes: dict[str, Lane[Any]] = {"fetch": self.tasks.background}
            if self.disk.tiering is not None:
                lanes |= {"write": self.disk.tiering.writes, "promote": self.disk.tiering.promotions}
            self.metrics.registry.register(WatchedLanes(lanes))
            self.http_address = await self.http.listen(*self.config.http)
            self.api.listen(self.config.api_socket)
        except BaseException:
            await self._close_parts()
            raise
        self.disk.start()
        if self.config.controller:
            self._link = ControllerLink(self.config.controller, self)
            self._link.start()

    async def stop(self) -> None:
        """Say goodbye, end everything, give everything back."""
        if self._link is not None:
            await self._link.close(pb.FromAgent(leaving=pb.Leaving(reason="stopping")))
        self.api.close()
        await self.disk.flush()
        await self._close_parts()

    async def _close_parts(self) -> None:
        for timer in (self._heartbeat, self._stale_timer):
            if timer is not None:
                timer.cancel()
        self.api.close()
        await self.http.close()
        if hasattr(self, "fetching"):
            self.fetching.close()
            self.reports.close()
            self.tasks.close()
        await self.transport.close()
        self.serving.close()
        await self.disk.close()
        self._checksums.close()
        self.memory.close()

    def _bug(self, loop: asyncio.AbstractEventLoop, context: dict[str, object]) -> None:
        """An exception that reached the event loop is a bug of ours: told in full, counted, and life goes on."""
        self.metrics.internal_errors.inc()
        loop.default_exception_handler(context)

    def health(self) -> Mapping[str, object]:
        """For /healthz."""
        usage = self.pool.usage()
        return {
            "status": "ok",
            "node": self.config.node,
            "version": __version__,
            "controller": "none"
            if not self.config.controller
            else "connected"
            if self.controller_connected
            else "away",
            "member": self._member,
            "segment_bytes": self._fabric.segment_bytes,
            "receive_buffer_bytes": self.facts.receive_buffer_bytes,
            "directory_chunks": self.directory.chunks_count,
            "pool": {"size_bytes": usage.size_bytes, "free_bytes": usage.free_bytes, "chunks": usage.chunks_count},
            "disk": self.disk.health(),
            "engines": self.api.connections_count,
            "fetches": self.fetching.under_way_count,
        }

    # ------------------------------------------------------------------ from engines

    def reserve(
        self, key: ChunkKey, parent: ChunkKey | None, size_bytes: int, position: int | None, namespace: str
    ) -> Chunk | Refusal:
        """Room for a chunk that an engine writes."""
        if position is None and parent is not None and self.pool.find(parent) is None:
            before = self.directory.find(parent)
            position = before.position + 1 if before is not None else None
        made = self.pool.reserve(key, parent, size_bytes, position, namespace)
        self.metrics.puts.labels("reserved" if isinstance(made, Chunk) else made.value).inc()
        if isinstance(made, Chunk):
            self.pool_changed()
        return made

    def commit(self, chunk: Chunk, done: Callable[[int], None]) -> None:
        """An engine's chunk is written."""

        def summed(checksum: int) -> None:
            self.pool.commit(chunk, checksum)
            self.disk.arrived(chunk)
            self.pool_changed()
            done(checksum)

        self._checksums.start(chunk, summed)

    def abort(self, chunk: Chunk) -> None:
        """An engine gave a chunk up."""
        self.pool.abort(chunk)

    def fetch(
        self,
        keys: Sequence[ChunkKey],
        deadline_s: float,
        recompute_s: float | None,
        done: Callable[[FetchResult], None],
    ) -> Cancellable | None:
        """Chunks for an engine."""
        return self.fetching.fetch(keys, deadline_s, recompute_s, done)

    def where(self, key: ChunkKey) -> Where:
        """Where a chunk is known to be."""
        if self.pool.find(key) is not None or self.disk.find(key) is not None:
            return Where.LOCAL
        entry = self.directory.find(key)
        holders = [*self.directory.holders(key), *self.directory.disk_holders(key)]
        if entry is not None and entry.served:
            return Where.SWITCH
        if entry is not None and any(node.name != self.config.node for node in holders):
            return Where.REMOTE
        return Where.NOWHERE

    def find(self, key: ChunkKey) -> Chunk | None:
        """A chunk that is here."""
        return self.pool.find(key)

    def unpin(self, chunk: Chunk) -> None:
        """A lease ended."""
        self.pool.unpin(chunk)

    def hold(self, chunk: Chunk) -> None:
        """An engine pins a chunk."""
        self.pool.hold(chunk)

    def unhold(self, chunk: Chunk) -> None:
        """An engine takes its pin back."""
        self.pool.unhold(chunk)

    def drop(self, key: ChunkKey) -> DropOutcome:
        """An engine, or the controller, wants a chunk gone from here."""
        outcome = self.pool.drop(key)
        if outcome is not DropOutcome.HELD and self.disk.drop(key):
            outcome = DropOutcome.DROPPED if outcome is DropOutcome.ABSENT else outcome
        self.pool_changed()
        return outcome

    def hint(self, keys: Sequence[ChunkKey], hint: Hint, within_ms: int) -> None:
        """An engine knows something of the future: the pools of this node hear it at once, the controller soon."""
        for pool in [self.pool] if self.disk.store is None else [self.pool, self.disk.store.pool]:
            if hint is Hint.SESSION_ENDED:
                pool.finished(keys)
            else:
                pool.expect(keys, within_ms / 1000)
        self.reports.hinted(keys, hint, within_ms)

    def stats(self) -> dict[str, float]:
        """Figures for an engine: everything in the metrics, flat."""
        figures: dict[str, float] = {}
        for family in self.metrics.registry.collect():
            for sample in family.samples:
                if sample.name.endswith(("_created", "_bucket")):
                    continue
                labels = ",".join(sample.labels.values())
                name = sample.name.removeprefix("kvcast_agent_")
                figures[f"{name}{{{labels}}}" if labels else name] = sample.value
        figures["directory_chunks"] = self.directory.chunks_count
        figures["gate_rate_bytes_per_s"] = self.gate.costs.cost(Source.REMOTE_DRAM).rate_bytes_per_s
        return figures

    # ------------------------------------------------------------------ from the transport

    def controls_received(self, arrivals: Sequence[ControlArrival]) -> None:
        """Route control datagrams: what answers to the reader, what asks to the holder."""
        for_reader = [arrival for arrival in arrivals if arrival.message.op in _FOR_READER]
        if for_reader:
            self.fetching.controls_received(for_reader)
        for message, source in arrivals:
            if message.op in _FOR_HOLDER:
                self.serving.control_received(message, source)
            elif message.op not in _FOR_READER:
                # LEAVE is for switches; without one it ends here and means nothing to a holder.
                self.transport.counters.drop(f"control_{message.op.name.lower()}_ignored")

    def casts_received(self, group: SegmentGroup, payload: npt.NDArray[np.uint8]) -> None:
        """Segments of a chunk."""
        self.fetching.casts_received(group, payload)

    def segments_sent(self, key: ChunkKey, count: int) -> None:
        """Segments left."""
        self.serving.segments_sent(key, count)

    def segments_failed(self, key: ChunkKey, count: int) -> None:
        """Segments could not leave."""
        self.serving.segments_failed(key, count)

    def fill_sent(self, key: ChunkKey, count: int) -> None:
        """Segments of a fill left."""
        self.serving.fill_sent(key, count)

    def open_extent(self, key: ChunkKey) -> Extent | None:
        """A peer reads."""
        return self.serving.open_extent(key)

    def close_extent(self, extent: Extent) -> None:
        """A peer has read."""
        self.serving.close_extent(extent)

    def prepare(self, key: ChunkKey, then: Callable[[], None]) -> bool:
        """A peer wants what may lie on this node's disk."""
        return self.disk.prepare(key, then)

    # ------------------------------------------------------------------ from fetching

    def chunk_delivered(self, chunk: Chunk, source: ChunkSource, waited_s: float, holder: Address | None) -> None:
        """Count it, and tell the controller."""
        self.metrics.delivered(source, chunk.size_bytes)
        node = self.directory.node_at(holder) if holder is not None else None
        self.reports.fetched(chunk.key, source, chunk.size_bytes, waited_s, node.node if node is not None else 0)

    def chunk_missed(self, key: ChunkKey, waited_s: float) -> None:
        """A chunk that should have come did not."""
        self.reports.fetched(key, None, 0, waited_s, 0)

    def fetch_ended(self, status: Status, seconds: float) -> None:
        """Count it; background work may go on where no engine waits any more."""
        self.metrics.fetches.labels(status.name.lower()).inc()
        self.metrics.fetch_seconds.observe(seconds)
        if not self.fetching.busy:
            self.tasks.pump_soon()
            self.disk.quiet()

    def bad_copy(
        self, key: ChunkKey, holder: NodeId, expected: int, found: int, blame: Blame, *, from_switch: bool
    ) -> None:
        """A holder's copy was no good: the controller drops it from the directory."""
        log.warning("the copy of %s at %s is no good: %s", key.hex(), holder, blame.value)
        if blame is not Blame.CHECKSUM:
            return
        self.metrics.checksum_failures.inc()
        node = self.directory.node_named(holder)
        self.report(
            pb.FromAgent(
                bad_copy=pb.BadCopy(
                    key=key,
                    holder=node.node if node is not None else 0,
                    expected=expected,
                    found=found,
                    from_switch=from_switch,
                )
            )
        )

    def copy_arrived(self, key: ChunkKey, *, asked_for: bool) -> None:
        """A fetched copy is here: told at once when the controller wanted it, else when the rush is over."""
        chunk = self.pool.find(key)
        if chunk is not None:
            self.disk.arrived(chunk)
        if asked_for:
            self.reports.pool_changed()
        else:
            self.reports.fetched_copy(key)

    def pool_changed(self) -> None:
        """Chunks came or went: the directory wants to know."""
        self.reports.pool_changed()

    # ------------------------------------------------------------------ from and for the controller

    def hello(self) -> pb.FromAgent:
        """Who this node is."""
        return pb.FromAgent(
            hello=pb.Hello(
                node=self.config.node,
                incarnation=self.incarnation,
                data_ip=self.facts.address.to_bytes(4, "big"),
                data_mac=self.facts.mac,
                read_endpoint=self.facts.read_endpoint,
                control_port=self.config.data.control_port,
                switch_port=self.config.data.switch_port,
                pool_bytes=self.memory.size_bytes,
                disk_bytes=self.disk.size_bytes,
                segment_bytes=limits.SEGMENT_BYTES_SUPPORTED,
                transports=[pb.TRANSPORT_SOCKETS, *([pb.TRANSPORT_VERBS] if self.facts.rdma else [])],
                version=__version__,
            )
        )

    def received(self, message: pb.ToAgent) -> None:
        """A message of the controller. Raises RemoteProtocolError or SequenceGapError, which end the stream."""
        kind = message.WhichOneof("message")
        if kind == "welcome":
            self._welcomed(message.welcome)
        elif kind == "directory":
            applied = self.directory.apply(delta_of(message.directory))
            for key in applied.changed:
                entry = self.directory.find(key)
                if entry is not None:
                    self.pool.hear(key, entry.value)
                    self.disk.hear(key, entry.value)
            self.fetching.directory_changed(applied.changed, applied.nodes_lost)
            if self.directory.has_stale and self._stale_timer is None:
                self._stale_timer = self._loop.call_later(limits.STALE_DIRECTORY_S, self._forget_stale)
        elif kind == "task":
            self.tasks.run(message.task)
        elif kind == "cancel":
            self.tasks.cancel(message.cancel.task)
        elif kind == "switch_state":
            self._switch_is(message.switch_state)

    def lost(self) -> None:
        """The stream ended: go on with what is known; what fetches here teach goes on deciding what stays."""
        self.controller_connected = False
        self.reports.disconnected()
        self.tasks.abandon()
        if self._heartbeat is not None:
            self._heartbeat.cancel()
            self._heartbeat = None

    def report(self, message: pb.FromAgent) -> None:
        """Tell the controller, if it is there."""
        if self._link is not None:
            self._link.send(message)

    def fetch_for_task(
        self,
        keys: Sequence[ChunkKey],
        deadline_s: float,
        done: Callable[[FetchResult], None],
        progressed: Callable[[int], None],
    ) -> Cancellable | None:
        """Chunks that the controller wants here."""
        return self.fetching.fetch(keys, deadline_s, None, done, progressed)

    def fill(self, key: ChunkKey, pool: Address, timeout_s: float, ended: Callable[[FillEnded], None]) -> FillId:
        """A chunk that the controller wants in the switch."""
        return self.serving.fill(key, pool, timeout_s, ended)

    def busy(self) -> bool:
        """An engine waits for something."""
        return self.fetching.busy

    def cancel_fill(self, fill: FillId) -> None:
        """Not any more."""
        self.serving.cancel_fill(fill)

    def pool_address(self) -> Address | None:
        """Where FILL goes."""
        return self._pool_address or None

    def segments_of(self, chunk: Chunk) -> int:
        """Segments of a chunk in this fabric."""
        return -(-chunk.size_bytes // self._fabric.segment_bytes)

    def _welcomed(self, welcome: pb.Welcome) -> None:
        news = fabric_of(welcome.fabric, self._fabric)
        try:
            self.transport.use_fabric(news.fabric, news.from_switch_dscp or self.config.data.from_switch_dscp)
        except TransportError as error:
            raise RemoteProtocolError(f"a fabric that this node cannot use: {error}") from error
        self._member = Member(welcome.member) if welcome.HasField("member") else None
        self._interest_ttl_ns = news.interest_ttl_ns
        self._pool_address = news.pool_address or self._pool_address
        self._fabric = news.fabric
        self.fetching.sources.pool_address = self._pool_address
        self.serving.use_segment_bytes(news.fabric.segment_bytes)
        self.fetching.configure(self._reader_parameters())
        self.directory.restart(welcome.controller)
        self.controller_connected = True
        self.reports.snapshot()
        self._heartbeat_s = welcome.heartbeat_ms / 1000 or limits.HEARTBEAT_S_DEFAULT
        if self._heartbeat is not None:
            self._heartbeat.cancel()
        self._beat()
        if welcome.HasField("switch_state"):
            self._switch_is(welcome.switch_state)
        log.info("attached to the controller as node %d, member %s", welcome.node, self._member)

    def _forget_stale(self) -> None:
        self._stale_timer = None
        if self.controller_connected:
            applied = self.directory.forget_stale()
            self.fetching.directory_changed(applied.changed, applied.nodes_lost)
        else:
            self._stale_timer = self._loop.call_later(limits.STALE_DIRECTORY_S, self._forget_stale)

    def _switch_is(self, state: pb.SwitchState) -> None:
        epoch = state.epoch if state.present else None
        if epoch != self._switch_epoch:
            self._switch_epoch = epoch
            self.fetching.switch_changed()

    def _beat(self) -> None:
        usage = self.pool.usage()
        counters = self.transport.counters
        segment_bytes = self._fabric.segment_bytes
        self.report(
            pb.FromAgent(
                heartbeat=pb.Heartbeat(
                    pool_used_bytes=usage.size_bytes - usage.free_bytes,
                    pool_pinned_bytes=usage.pinned_bytes,
                    sent_bytes=counters.read_bytes_sent + counters.cast_packets_sent * segment_bytes,
                    received_bytes=counters.read_bytes_received + counters.cast_packets_received * segment_bytes,
                    directory_sequence=self.directory.sequence,
                    tasks_running=self.tasks.running_count,
                    chunks=usage.chunks_count,
                    next_victims=self.pool.next_victims(limits.NEXT_VICTIMS_TOLD),
                    disk_used_bytes=self.disk.used_bytes,
                )
            )
        )
        self._heartbeat = self._loop.call_later(self._heartbeat_s, self._beat)

    def _reader_parameters(self) -> ReaderParameters:
        segment_bytes = self._fabric.segment_bytes
        fitting = self.facts.receive_buffer_bytes // (2 * segment_bytes)
        return ReaderParameters(
            member=self._member,
            segment_bytes=segment_bytes,
            receive_window_segments=max(limits.RECEIVE_WINDOW_SEGMENTS_MIN, fitting),
            interest_ttl_ns=self._interest_ttl_ns or ReaderParameters(member=None).interest_ttl_ns,
        )


def _priors(floor_bytes_per_s: float) -> dict[Source, SourceCost]:
    """What is believed of sources before anything was measured; the network is what the operator says."""
    floor = SourceCost(PRIORS[Source.REMOTE_DRAM].overhead_s, floor_bytes_per_s)
    return {**PRIORS, Source.REMOTE_DRAM: floor, Source.SWITCH: floor, Source.REMOTE_DISK: floor}
