"""The agent: the shell of its core on one event loop. Clock, sockets, the pool's bytes, hashing and the disk's files.

Decides nothing: turns all input into events for `AgentCore` and carries out the core's effects in the order given.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections import defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from hostagent import coding, limits
from hostagent.api.access import Admission
from hostagent.api.server import ApiServer, Welcome
from hostagent.api.tenancy import Tenancy
from hostagent.cold.cold_opening import open_store
from hostagent.cold.stores import ColdStore
from hostagent.cold.tier import ColdTier
from hostagent.config import AgentConfig
from hostagent.configured import configured_fabric, core_options
from hostagent.controller import convert
from hostagent.controller.attachment import Attachment
from hostagent.core import effects, events
from hostagent.core.core import AgentCore
from hostagent.core.knowledge import Knowledge
from hostagent.disk.store import DiskStore
from hostagent.examined import EXAMINING_ENGINE, Examined
from hostagent.hashing import Hashing
from hostagent.link_rate import link_rate_bit_s
from hostagent.metrics import AgentMetrics
from hostagent.pool.chunks import Chunk
from hostagent.pool.intake import Intake
from hostagent.pool.leases import local_leases
from hostagent.pool.opening import opened
from hostagent.tenant_metrics import WatchedTenants
from hostagent.timers import MachineTimer
from hostagent.tracing import Guarded, TraceExport, Tracer, tracing
from hostagent.transport import make_transport
from hostagent.transport.base import (
    ChunkPlace,
    ControlArrival,
    Extent,
    ReadHandle,
    ReadOutcome,
    ReadRequest,
    TransportFacts,
)
from hostagent.transport.read_tokens import TokenBook
from hostagent.tree import Hashed
from hostagent.twin_coding import TwinCoding
from kvdaemon.health import Health, health_pages
from kvdaemon.http import HttpServer, Question, json_service, metrics_page
from kvdaemon.identity import Role
from kvdaemon.tls import Certificates
from kvpolicy.tiers.cost_question import QuestionError, TooManyQuestionsError, question_of
from kvpolicy.tiers.form_costs import FormChoice, FormWork
from kvpolicy.tiers.gate import priors
from kvpolicy.tiers.holder_load import HolderLoad
from kvpolicy.value.costs import Tier
from kvproto import __version__
from kvproto import events as protocol
from kvproto.commands import AbortRead, Blame, SendControl
from kvproto.ids import ChunkKey, ReadId
from kvproto.integrity import Integrity, code_of
from kvproto.rpc import control_pb2 as pb
from kvproto.rpc.versions import PROTOCOL
from kvproto.units import format_bytes
from kvproto.wire.data import SegmentGroup

log = logging.getLogger(__name__)


class Agent:
    """One node's agent. `start`, then it lives on the event loop until `stop`."""

    def __init__(self, config: AgentConfig, tracer: Tracer | None = None, cold_store: ColdStore | None = None) -> None:
        """`tracer`: makes traces, in place of what the configuration says of them; `cold_store`: the store, in place
        of the one that the configuration describes."""
        self.config = config
        self._cold_store = cold_store
        self.tracer = tracer
        self._traces: TraceExport | None = None
        self._missing: str | None = "it is starting"
        """Why it is not ready."""
        self.incarnation = time.time_ns()
        self.metrics = AgentMetrics()
        self.tenancy = Tenancy(config.tenants)
        self._reads: dict[ReadId, ReadHandle] = {}
        self._peers_waiting: dict[ChunkKey, list[Callable[[], None]]] = defaultdict(list)
        """Callbacks of peers that wait for chunks from this node's disk."""
        self._flushed = asyncio.Event()
        self._carrying = 0
        """Events whose effects are being carried out, one within the other."""
        self._next: deque[Callable[[], None]] = deque()
        """What follows on them,"""
        self._following = False
        """at this moment."""
        self._certificates: Certificates | None = None
        self._forms_tried: asyncio.Task[None] | None = None
        self._carriers = self._carriers_by_effect()

    # ------------------------------------------------------------------ lifetime

    async def start(self) -> None:
        """Bind everything. Raises TransportError, ApiError, CannotRunError or OSError; nothing is left open then."""
        config = self.config
        self._loop = asyncio.get_running_loop()
        self._loop.set_exception_handler(self._bug)
        if config.cold is not None and self._cold_store is None:
            self._cold_store = open_store(config.cold)
        if config.tracing is not None and self.tracer is None:
            tracer, self._traces = tracing(config.tracing, config.node)
            self.tracer = Guarded(tracer, self._tracing_broke)
        if config.tls is not None:
            self._certificates = Certificates(config.tls, Role.AGENT, config.node)
            self.metrics.watch_certificate(self._certificates.ends_s)
        self.http = HttpServer(
            {"/metrics": metrics_page(self.metrics.registry, "agent"), **health_pages(self.health)},
            services={"/v1/cost": json_service(self._cost, QuestionError, TooManyQuestionsError)},
            private={} if config.insecure or config.remote_cost else {"/v1/cost": "set http.remote_cost: true"},
        )
        self.http_address = await self.http.listen(*config.http, "change http.address or http.port")
        try:
            self._pool = await opened(config, self._not_ready)
            self.memory = self._pool.memory
            await self._start_parts()
        except BaseException:
            await self.http.close()
            if self._traces is not None:
                await self._traces.close()
            raise
        if self._pool.is_kept:
            self.handle(events.PoolFound(self._pool.found))
        self.handle(events.Started(self.facts.receive_buffer_bytes, self.facts.rdma_mtu_bytes > 0))
        if self.cold is not None:
            self.cold.open()
        if self.store is not None or self.cold is not None or self._wire_may_pay():
            self._forms_tried = self._loop.create_task(self._try_forms())
        self._missing = None
        self.attachment.start()

    def _wire_may_pay(self) -> bool:
        """Whether any chunk could cross the network in fewer bytes."""
        slow = self._link_rate_bit_s <= limits.WIRE_FORM_LINK_BIT_S_MAX
        return slow and self.config.wire.form is not FormChoice.RAW

    def _not_ready(self, why: str) -> None:
        self._missing = why

    async def _start_parts(self) -> None:
        """All the rest. Raises what `start` does; nothing but the HTTP server is left open then."""
        config = self.config
        self.tokens = TokenBook(demands=bool(config.controllers))
        self._leases = local_leases(config.pool.size_bytes)
        self.transport = make_transport(config.data, self.memory, self.tokens, self._leases)
        self._hashing = Hashing(self.memory, self._loop, self._soon)
        self._intake = Intake(self.memory, config.write_region_bytes, self._loop)
        self._link_rate_bit_s = config.link_rate_bit_s or link_rate_bit_s(config.data)
        knowledge = Knowledge(config.node, priors(self._link_rate_bit_s))
        self.store: DiskStore | None = None
        if config.disk is not None:
            disk_pool = knowledge.disk_pool(config.disk.size_bytes)
            self.store = DiskStore(config.disk, self.memory, self._loop, disk_pool, self._form_measured)
        self.cold: ColdTier | None = None
        if config.cold is not None and self._cold_store is not None:
            self.cold = ColdTier(config.cold, self._cold_store, self.memory, self._loop, self.handle, config.node)
        self._twins = TwinCoding(self.memory, self._loop, self.handle)
        self.core = AgentCore(
            core_options(config),
            knowledge,
            self.store,
            served_reads=self.transport.counters,
            index=self._pool.index,
            catalog=self._leases.catalog if self._leases is not None else None,
        )
        self._timer = MachineTimer(self._loop, self._timer_fired)
        self.attachment = Attachment(
            config.controllers,
            configured_fabric(config),
            self.transport.use_fabric,
            self._hello,
            self.handle,
            lambda task: self.examined.run(task),
            self._certificates,
            config.data.integrity,
            self.tokens,
        )
        self.examined = Examined(
            self.handle,
            self.memory,
            self.transport,
            self.core.directory,
            config.data.cast_port,
            self.attachment.send,
            self._certificates.ends_s if self._certificates is not None else None,
        )
        self.api = ApiServer(
            self.handle,
            self.stats,
            Welcome(
                self.memory.readers_fd,
                self.memory.size_bytes,
                self.incarnation,
                frozenset({0, os.geteuid()}) if self.memory.handed_on else frozenset(),
            ),
            self._intake,
            Admission(config.api_access, self.metrics.api_refused, self.tenancy.connections_max),
            self.tenancy,
            self._leases,
        )
        try:
            if self.store is not None:
                await self.store.open()
            self.facts: TransportFacts = await self.transport.start(self, self.attachment.fabric)
            self.metrics.watch(self.core, self.transport.counters, self.store, self.cold)
            self.metrics.registry.register(WatchedTenants(self.core.pool.tenants, self.tenancy))
            self.api.listen(config.api_socket)
        except BaseException:
            await self._close_parts()
            raise

    async def stop(self) -> None:
        """Say goodbye, end everything, give everything back."""
        await self.attachment.leave()
        self.api.close()
        await self._flush()
        await self.http.close()
        await self._close_parts()
        if self._traces is not None:
            await self._traces.close()

    async def _flush(self) -> None:
        """Write unsaved chunks to disk, for at most `flush_s` (how long an orderly stop may take)."""
        if self.config.disk is None:
            return
        self.handle(events.FlushRequested())
        try:
            async with asyncio.timeout(self.config.disk.flush_s):
                await self._flushed.wait()
        except TimeoutError:
            log.info("stopping before all of the pool is on disk")

    async def _close_parts(self) -> None:
        if self._forms_tried is not None:
            # A thread ends what it has begun; nobody hears of it.
            self._forms_tried.cancel()
        self.api.close()
        self.examined.close()
        self.handle(events.Stopped())
        self._timer.cancel()
        await self.transport.close()
        if self.store is not None:
            await self.store.close()
        self._intake.close()
        self._twins.close()
        if self.cold is not None:
            await self.cold.close()
        self._hashing.close()
        if self._leases is not None:
            self._leases.close()
        self.memory.close()

    def _tracing_broke(self, error: Exception) -> None:
        self._loop.call_exception_handler({"message": "no more traces are made", "exception": error})

    def _bug(self, loop: asyncio.AbstractEventLoop, context: dict[str, object]) -> None:
        """An exception that reached the event loop is our bug: log it in full, count it, and go on."""
        self.metrics.internal_errors.inc()
        loop.default_exception_handler(context)

    # ------------------------------------------------------------------ the core

    def handle(self, event: events.Event) -> None:
        """Receive, decide, transmit."""
        now_ns = time.monotonic_ns()
        tracer = self.tracer
        if tracer is None:
            made = self.core.handle(event, now_ns)
        else:
            event = tracer.begun(event, now_ns)
            made = self.core.handle(event, now_ns)
            tracer.saw(event, made, now_ns, member=self.core.member, segment_bytes=self.core.segment_bytes)
        self._carrying += 1
        try:
            for effect in made:
                self._carriers[type(effect)](effect)
        finally:
            self._carrying -= 1
        self._arm(now_ns)
        if self._next and not self._carrying and not self._following:
            self._follow()

    def _follow(self) -> None:
        """What `_soon` was given, one after the other."""
        self._following = True
        try:
            while self._next:
                self._next.popleft()()
        finally:
            self._following = False

    def _soon(self, call: Callable[[], None]) -> None:
        """Once the effects of the event at hand are carried out: a turn of the event loop sooner than the next one."""
        if self._carrying:
            self._next.append(call)
        else:
            self._loop.call_soon(call)

    def _arm(self, now_ns: int) -> None:
        due_ns = self.core.next_timeout_ns()
        if due_ns is not None and due_ns < self._timer.due_ns:
            self._timer.set(due_ns, now_ns)

    def _timer_fired(self) -> None:
        if self.core.judges_silence(time.monotonic_ns()):
            self.transport.drain_receive()
        self.handle(events.TimerFired())

    def _carriers_by_effect(self) -> Mapping[type, Callable[[Any], None]]:
        """Who carries out which effect."""
        report = self._report
        return {
            effects.ReserveAnswered: self._answer,
            effects.CommitAnswered: self._answer,
            effects.FetchAnswered: self._answer,
            effects.FetchPartAnswered: self._answer,
            effects.PartsAnswered: self._answer,
            effects.KeysAnswered: self._answer,
            SendControl: lambda effect: self.transport.send_control(effect.message, effect.address),
            effects.CastSegments: lambda one: self.transport.cast(_place(one.chunk), one.first, one.count),
            effects.FillSegments: lambda one: self.transport.fill(
                _place(one.chunk), one.first, one.count, one.pool_address, cast_too=one.cast_too
            ),
            effects.ExpectCasts: lambda one: self.transport.expect(_place(one.chunk), one.missing),
            effects.ForgetCasts: lambda one: self.transport.forget(one.key),
            effects.StartRead: self._start_read,
            effects.ReadPieces: self._read_pieces,
            effects.ReadLeaves: self._read_leaves,
            AbortRead: self._abort_read,
            effects.PeerLoadEnded: self._peer_load_ended,
            effects.DatagramsDropped: lambda one: self.transport.counters.drop(one.reason, one.count),
            effects.TakeChunk: self._take_chunk,
            effects.ComputeDigest: self._compute_digest,
            effects.HashPieces: self._hash_pieces,
            effects.ForgetPieces: lambda one: self._hashing.forget(one.chunk.offset),
            effects.LoadChunk: self._load,
            effects.SaveChunk: self._save,
            effects.ForgetStored: self._forget_stored,
            effects.LookUpCold: self._in_cold(ColdTier.look_up),
            effects.LoadCold: self._in_cold(ColdTier.load),
            effects.SaveCold: self._in_cold(ColdTier.save),
            effects.ForgetCold: self._in_cold(ColdTier.forget),
            effects.EncodeTwin: lambda one: self._twins.encode(one),
            effects.PlaceTwin: lambda one: self._twins.place(one),
            effects.DecodeTwin: lambda one: self._twins.decode(one),
            effects.Flushed: lambda _: self._flushed.set(),
            effects.Announce: report,
            effects.ReportUsage: report,
            effects.ReportLoad: report,
            effects.ReportClaims: report,
            effects.ReportInterests: report,
            effects.ReportTaskProgress: report,
            effects.ReportTaskEnd: report,
            effects.ReportBadCopy: self._report_bad_copy,
            effects.BeatHeart: self._beat,
            effects.FetchPlanned: lambda _: None,  # for traces
            effects.PoolAdopted: self._pool_adopted,
            effects.FetchEnded: self.metrics.fetch_ended,
            effects.ReservationEnded: lambda one: self.metrics.puts.labels(one.outcome).inc(),
        }

    def _cost(self, asked: Question) -> Mapping[str, object]:
        """For routers: what it would take this node to have the chunks of a prefix."""
        if reason := self._missing:
            raise QuestionError(reason)
        question, node = question_of(asked.query, asked.body), self.config.node
        if question.nodes not in ((), (node,)):
            raise QuestionError(f"nodes: an agent answers for its own node, {node}; ask the controller for others")
        quote = self.core.quote(question, time.monotonic_ns())
        return {"chunks": len(question.keys), "nodes": {node: quote.to_json()}}

    # ------------------------------------------------------------------ engines and the controller

    def _answer(self, answer: Any) -> None:
        if answer.engine == EXAMINING_ENGINE:
            self.examined.answer(answer)
        else:
            self.api.answer(answer)

    def _report(self, effect: convert.ControllerEffect) -> None:
        self.attachment.send(convert.message_of(effect))

    def _report_bad_copy(self, effect: effects.ReportBadCopy) -> None:
        log.warning("the copy of %s at %s is no good: %s", effect.key.hex(), effect.holder, effect.blame.value)
        if effect.blame is Blame.DIGEST:
            self.metrics.checksum_failures.inc()
            self._report(effect)

    def _beat(self, effect: effects.BeatHeart) -> None:
        counters, segment_bytes = self.transport.counters, self.core.segment_bytes
        sent_bytes = counters.read_bytes_sent + counters.cast_packets_sent * segment_bytes
        received_bytes = counters.read_bytes_received + counters.cast_packets_received * segment_bytes
        self.attachment.send(convert.heartbeat_of(effect, sent_bytes, received_bytes, counters.dropped))

    def _hello(self) -> pb.FromAgent:
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
                disk_bytes=self.store.size_bytes if self.store is not None else 0,
                segment_bytes=limits.SEGMENT_BYTES_SUPPORTED,
                transports=[pb.TRANSPORT_SOCKETS, *([pb.TRANSPORT_VERBS] if self.facts.rdma_mtu_bytes else [])],
                rdma_mtu=self.facts.rdma_mtu_bytes,
                version=__version__,
                integrities=[pb.Integrity.ValueType(code_of(one)) for one in Integrity],
                protocol=PROTOCOL,
                interests=convert.interests_of(self.core.interests.current),
                link_rate=self._link_rate_bit_s,
            )
        )

    # ------------------------------------------------------------------ from the transport (`TransportSink`)

    def controls_received(self, arrivals: Sequence[ControlArrival]) -> None:
        """Control datagrams."""
        received = tuple(protocol.ControlReceived(message, source) for message, source in arrivals)
        self.handle(events.ControlsReceived(received))

    def casts_received(self, group: SegmentGroup, payload: npt.NDArray[np.uint8]) -> None:
        """Segments of a chunk: those that are missing are placed, all are reported."""
        wanted = self.core.wanted(group.key)
        if wanted is None:
            self.transport.counters.drop("cast_unwanted", len(group.rows))
        elif wanted.segments_count != group.segments_in_chunk:
            self.transport.counters.drop("cast_other_size", len(group.rows))
            return
        else:
            chunk, segments = wanted.chunk, group.segments
            missing = wanted.missing[segments]
            self.transport.counters.cast_packets_duplicate += len(missing) - int(np.count_nonzero(missing))
            self.memory.place(chunk.offset, chunk.size_bytes, segments, payload, missing)
        self.handle(protocol.SegmentsReceived(group.key, group.segments, group.source, group.from_switch))

    def casts_placed(self, arrivals: Sequence[protocol.SegmentsReceived]) -> None:
        """Segments of chunks, in the pool already."""
        self.handle(events.CastsPlaced(tuple(arrivals)))

    def casts_unexpected(self, arrivals: Sequence[protocol.SegmentsReceived]) -> None:
        """Segments that were thrown away."""
        self.handle(events.CastsUnexpected(tuple(arrivals)))

    def cast_patience_segments(self) -> int:
        """The same patience as `cast_patience_s`, in segments."""
        return limits.CAST_FOLLOWER_WAKE_SEGMENTS if self.core.fetches.patient else limits.CAST_WAKE_SEGMENTS

    def cast_patience_s(self) -> float:
        """While others pull and much is still to come, nothing depends on a segment being seen at once."""
        return limits.CAST_FOLLOWER_POLL_S_MAX if self.core.fetches.patient else limits.CAST_POLL_S_MAX

    def segments_sent(self, key: ChunkKey, count: int) -> None:
        """Segments left."""
        self.handle(protocol.SegmentsSent(key, count))

    def segments_failed(self, key: ChunkKey, count: int) -> None:
        """Segments could not leave."""
        self.handle(protocol.SendFailed(key, count))

    def fill_sent(self, key: ChunkKey, count: int) -> None:
        """Segments of a fill left."""
        self.handle(events.FillSent(key, count))

    def casts_queued_bytes(self) -> int:
        """Of casts that this node was asked for."""
        return self.core.casts_queued_bytes

    def open_extent(self, key: ChunkKey) -> Extent | None:
        """A peer reads."""
        now_ns = time.monotonic_ns()
        chunk = self.core.lend(key, now_ns)
        self._arm(now_ns)
        return Extent(chunk.offset, chunk.size_bytes, chunk) if chunk is not None else None

    def namespace_of(self, key: ChunkKey) -> str | None:
        """Whose a chunk of this node is."""
        return self.core.namespace_of(key)

    def leaves(self, key: ChunkKey) -> bytes | None:
        """A peer wants to know which part of a chunk it got wrong."""
        chunk = self.core.pool.find(key)
        return chunk.leaves if chunk is not None and chunk.leaves else None

    def close_extent(self, extent: Extent) -> None:
        """A peer has read."""
        if not isinstance(extent.token, Chunk):
            raise TypeError("an extent that was not opened here")
        self.handle(events.PeerReadEnded(extent.token))

    def peers_read(self, keys: Sequence[ChunkKey]) -> None:
        """Peers have read, without a word."""
        self.handle(events.PeersRead(tuple(keys)))

    def prepare(self, key: ChunkKey, then: Callable[[], None]) -> bool:
        """A peer wants a chunk that may lie on this node's disk."""
        if not self.core.can_load_for_peer(key):
            return False
        self._peers_waiting[key].append(then)
        self.handle(events.PeerLoadRequested(key))
        return True

    def _peer_load_ended(self, effect: effects.PeerLoadEnded) -> None:
        for then in self._peers_waiting.pop(effect.key, ()):
            then()
        if effect.chunk is not None:
            self._loop.call_soon(self.handle, events.PeerReadEnded(effect.chunk))

    def _start_read(self, effect: effects.StartRead) -> None:
        ended = partial(self._read_ended, effect.read)
        progressed = None
        if effect.size_bytes > limits.READ_PROGRESS_BYTES:
            progressed = partial(self._read_progressed, effect.read, self.core.segment_bytes)
        chunk, offset = effect.chunk, effect.offset
        self._reads[effect.read] = self.transport.read(
            ReadRequest(
                effect.endpoint,
                chunk.key,
                offset,
                effect.size_bytes,
                chunk.offset + offset,
                ended,
                progressed,
                partial(self._holder_told, effect.node),
                effect.wanted_bytes,
            )
        )

    def _read_pieces(self, effect: effects.ReadPieces) -> None:
        self._reads[effect.read] = self.transport.read(
            ReadRequest(
                effect.endpoint,
                effect.into.key,
                effect.offset,
                effect.size_bytes,
                effect.pool_offset,
                partial(self._read_ended, effect.read),
                None,
                partial(self._holder_told, effect.node),
                effect.wanted_bytes,
            )
        )

    def _holder_told(self, node: str, load: HolderLoad) -> None:
        """What a peer has queued for others; whoever waits for what comes with it comes first."""
        self._loop.call_later(0, self.handle, events.HolderTold(node, load))

    def _abort_read(self, effect: AbortRead) -> None:
        handle = self._reads.pop(effect.read, None)
        if handle is not None:
            handle.cancel()

    def _read_leaves(self, effect: effects.ReadLeaves) -> None:
        leaves = bytearray(effect.size_bytes)
        ended = partial(self._leaves_ended, effect.read, leaves)
        request = ReadRequest(effect.endpoint, effect.key, 0, effect.size_bytes, 0, ended, leaves=leaves)
        self._reads[effect.read] = self.transport.read(request)

    def _leaves_ended(self, read: ReadId, leaves: bytearray, outcome: ReadOutcome) -> None:
        if outcome is ReadOutcome.DONE:
            del self._reads[read]
            self.handle(events.LeavesRead(read, bytes(leaves)))
        else:
            self._read_ended(read, outcome)

    def _read_ended(self, read: ReadId, outcome: ReadOutcome) -> None:
        del self._reads[read]
        if outcome is ReadOutcome.DONE:
            self.handle(protocol.ReadDone(read))
        else:
            self.handle(protocol.ReadFailed(read, gone=outcome is ReadOutcome.ABSENT))

    def _read_progressed(self, read: ReadId, segment_bytes: int, have_bytes: int) -> None:
        self.handle(protocol.ReadProgress(read, have_bytes // segment_bytes))

    # ------------------------------------------------------------------ hashing and the disk

    def _take_chunk(self, effect: effects.TakeChunk) -> None:
        chunk = effect.chunk
        done = partial(self._chunk_taken, chunk)
        self._intake.take(effect.engine, effect.region_offset, chunk.offset, chunk.size_bytes, done)

    def _chunk_taken(self, chunk: Chunk, whole: bool) -> None:
        self.handle(events.ChunkTaken(chunk, whole))

    def _compute_digest(self, effect: effects.ComputeDigest) -> None:
        chunk = effect.chunk
        done = partial(self._digest_computed, chunk)
        self._hashing.start(chunk.offset, chunk.size_bytes, effect.integrity, done, in_background=effect.in_background)

    def _hash_pieces(self, effect: effects.HashPieces) -> None:
        # A cast that was let in before its segment came another way may still be being written.
        self.transport.settle()
        self._hashing.begin(effect.chunk.offset, effect.chunk.size_bytes, effect.pieces)

    def _pool_adopted(self, effect: effects.PoolAdopted) -> None:
        log.info(
            "the pool of the agent before: %d chunks of %s are right, %d are not",
            effect.chunks_count,
            format_bytes(effect.size_bytes),
            effect.lost_count,
        )

    def _digest_computed(self, chunk: Chunk, hashed: Hashed) -> None:
        self.handle(events.DigestComputed(chunk, hashed))

    def _load(self, effect: effects.LoadChunk) -> None:
        if self.store is None:
            raise AssertionError("a load without a disk")
        self.store.load(effect.into.key, effect.into, partial(self._loaded, effect.into))

    def _loaded(self, into: Chunk, outcome: events.LoadOutcome, hashed: Hashed) -> None:
        self.handle(events.LoadEnded(into, outcome, hashed))

    def _save(self, effect: effects.SaveChunk) -> None:
        if self.store is None:
            raise AssertionError("a save without a disk")
        if not self.store.save(effect.chunk, partial(self._saved, effect.chunk), effect.form):
            ended = events.SaveEnded(effect.chunk, events.SaveOutcome.REFUSED)
            self._loop.call_soon(self.handle, ended)

    def _saved(self, chunk: Chunk, stored: bool) -> None:
        outcome = events.SaveOutcome.STORED if stored else events.SaveOutcome.FAILED
        self.handle(events.SaveEnded(chunk, outcome))

    def _form_measured(self, work: FormWork) -> None:
        self.handle(events.FormMeasured(work))

    async def _try_forms(self) -> None:
        """Learn what chunks in fewer bytes take here; until then they stay as they are."""
        for work in await self._loop.run_in_executor(None, coding.try_out):
            self._form_measured(work)

    def _in_cold(self, method: Callable[[ColdTier, Any], None]) -> Callable[[Any], None]:
        """What carries out an effect in the cold store."""

        def carry(effect: Any) -> None:
            if self.cold is None:
                raise AssertionError("work for a cold store that there is not")
            method(self.cold, effect)

        return carry

    def _forget_stored(self, effect: effects.ForgetStored) -> None:
        if self.store is not None:
            self.store.drop(effect.key)

    # ------------------------------------------------------------------ figures

    def health(self) -> Health:
        """An agent without its controller goes on with what it knows: it is ready, and says so."""
        if self._missing:
            return Health([self._missing], {"status": "starting", "node": self.config.node, "version": __version__})
        core = self.core
        usage = core.pool.usage()
        controller = "none" if not self.attachment.has_controller else "connected" if core.connected else "away"
        facts = {
            "status": "ok",
            "node": self.config.node,
            "version": __version__,
            "controller": controller,
            "security": self.config.security,
            "member": core.member,
            "segment_bytes": core.segment_bytes,
            "receive_buffer_bytes": self.facts.receive_buffer_bytes,
            "directory_chunks": core.directory.chunks_count,
            "pool": {
                "size_bytes": usage.size_bytes,
                "free_bytes": usage.free_bytes,
                "chunks": usage.chunks_count,
                "taking_over": core.adoption.left_count,
            },
            "disk": self.store.health() if self.store is not None else {"state": "off", "reason": "not configured"},
            "cold": self.cold.health() if self.cold is not None else {"state": "off", "reason": "not configured"},
            "engines": self.api.connections_count,
            "fetches": core.fetches.under_way_count,
        }
        return Health(facts=facts)

    def stats(self) -> dict[str, float]:
        """Figures for an engine: everything in the metrics, flat."""
        self.handle(events.FiguresWanted())
        figures = self.metrics.flat()
        figures["directory_chunks"] = self.core.directory.chunks_count
        figures["gate_rate_bytes_per_s"] = self.core.gate.costs.cost(Tier.REMOTE_DRAM).rate_bytes_per_s
        return figures


def _place(chunk: Chunk) -> ChunkPlace:
    return ChunkPlace(chunk.key, chunk.offset, chunk.size_bytes)
