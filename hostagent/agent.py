"""The agent: pool, transport, fetching, serving, local API and controller, put together on one event loop.

Decides nothing itself: it routes what comes in to the part it concerns.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from hostagent import limits
from hostagent.api.messages import ChunkSource, Hint, Status, Where
from hostagent.api.server import ApiServer, Cancellable, FetchResult
from hostagent.config import AgentConfig
from hostagent.controller.attachment import Attachment
from hostagent.controller.reports import Reports
from hostagent.controller.tasks import TaskRunner
from hostagent.directory import DirectoryReplica
from hostagent.disk.tier import DiskTier
from hostagent.fetching import Fetching
from hostagent.hashing import Checksums
from hostagent.losses import Losses
from hostagent.metrics import AgentMetrics, Watched
from hostagent.pool.chunks import Chunk, ChunkPool, DropOutcome, Refusal
from hostagent.pool.memory import PoolMemory
from hostagent.serving import Serving
from hostagent.tier_metrics import WatchedGate, WatchedLanes
from hostagent.transport import make_transport, wants_huge_pages
from hostagent.transport.base import ControlArrival, Extent, TransportFacts
from kvproto import __version__
from kvproto.commands import Blame, FillEnded
from kvproto.daemon.http import HttpServer, json_page, metrics_page
from kvproto.ids import Address, ChunkKey, FillId, NodeId
from kvproto.rpc import control_pb2 as pb
from kvproto.tiers.gate import Gate
from kvproto.tiers.lane import Lane
from kvproto.value.costs import PRIORS, Source, SourceCost, SourceCosts
from kvproto.wire.control import Op
from kvproto.wire.data import SegmentGroup

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
        self.costs = SourceCosts(_priors(config.gate_floor_bytes_per_s))
        self.losses = Losses(self.costs, self.directory, config.node)
        self.pool = ChunkPool(config.pool.size_bytes, limits.EXTENT_ALIGN_BYTES, time.monotonic_ns, self.losses.of_dram)
        self.attachment = Attachment(self)

    async def start(self) -> None:
        """Bind everything. Raises TransportError, ApiError, CannotRunError or OSError; nothing is left open then."""
        self._loop = asyncio.get_running_loop()
        self._loop.set_exception_handler(self._bug)
        pool = self.config.pool
        huge_pages = pool.huge_pages == "auto" and wants_huge_pages(self.config.data)
        self.memory = PoolMemory(pool.size_bytes, prefault=pool.prefault, huge_pages=huge_pages)
        self.transport = make_transport(self.config.data, self.memory)
        self._checksums = Checksums(self.pool, self.memory, self._loop)
        self.gate = Gate(self.costs)
        self.disk = DiskTier(self.config.disk, self.memory, self.pool, self._loop, self.losses.of_disk)
        self.losses.is_stored = self.disk.find
        segment_bytes = self.attachment.fabric.segment_bytes
        self.serving = Serving(self.pool, self.transport, self._loop, segment_bytes, self.disk.prepare)
        self.http = HttpServer({"/metrics": metrics_page(self.metrics.registry), "/healthz": json_page(self.health)})
        self.api = ApiServer(self, self.memory.fd, self.memory.size_bytes, self.incarnation)
        try:
            await self.disk.open()
            self.facts: TransportFacts = await self.transport.start(self, self.attachment.fabric)
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
                self.attachment.reader_parameters(),
                self.config.node,
            )
            self.fetching.sources.pool_address = self.attachment.pool_address
            self.tasks = TaskRunner(self, self._loop)
            self.reports = Reports(
                self.pool, self._loop, self.report, self.tasks.pinned_keys, self.disk, self.gate.take_measurements
            )
            self.metrics.watch(
                Watched(
                    self.pool,
                    self.transport.counters,
                    lambda: self.attachment.connected,
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
            self.http_address = await self.http.listen(*self.config.http, "change http.address or http.port")
            self.api.listen(self.config.api_socket)
        except BaseException:
            await self._close_parts()
            raise
        self.disk.start()
        self.attachment.start()

    async def stop(self) -> None:
        """Say goodbye, end everything, give everything back."""
        await self.attachment.leave()
        self.api.close()
        await self.disk.flush()
        await self._close_parts()

    async def _close_parts(self) -> None:
        self.attachment.close()
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
            "controller": self.attachment.health,
            "member": self.attachment.member,
            "segment_bytes": self.attachment.fabric.segment_bytes,
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

    def cast_patience_s(self) -> float:
        """See `TransportSink.cast_patience_s`."""
        return self.fetching.cast_patience_s()

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

    def report(self, message: pb.FromAgent) -> None:
        """Tell the controller, if it is there."""
        self.attachment.send(message)

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
        return self.attachment.pool_address or None

    def segments_of(self, chunk: Chunk) -> int:
        """Segments of a chunk in this fabric."""
        return -(-chunk.size_bytes // self.attachment.fabric.segment_bytes)


def _priors(floor_bytes_per_s: float) -> dict[Source, SourceCost]:
    """What is believed of sources before anything was measured; the network is what the operator says."""
    floor = SourceCost(PRIORS[Source.REMOTE_DRAM].overhead_s, floor_bytes_per_s)
    return {**PRIORS, Source.REMOTE_DRAM: floor, Source.SWITCH: floor, Source.REMOTE_DISK: floor}
