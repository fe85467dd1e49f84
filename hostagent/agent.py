"""The agent: the shell of its core on one event loop. Clock, sockets, the pool's bytes, hashing and the disk's files.

Decides nothing: turns all input into events for `AgentCore` and carries out the core's effects in the order given.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import os
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from hostagent import limits
from hostagent.api.server import ApiServer, Welcome
from hostagent.api.tenancy import Admission, Tenancy
from hostagent.chunk_work import ChunkWork
from hostagent.coding import Coder
from hostagent.cold.cold_opening import open_store
from hostagent.cold.stores import ColdStore
from hostagent.cold.tier import ColdTier
from hostagent.config import AgentConfig
from hostagent.configured import core_options
from hostagent.controller import convert
from hostagent.controller.attachment import Attachment
from hostagent.core import effects, events
from hostagent.core.core import AgentCore
from hostagent.core.node import Knowledge
from hostagent.disk.store import DiskStore
from hostagent.event_loop import MachineTimer
from hostagent.examined import EXAMINING_ENGINE, Examined
from hostagent.hashing import Hashing
from hostagent.intake import Intake
from hostagent.lone_gets import LoneGets, WatchedLoneGets
from hostagent.memory.leases import local_leases
from hostagent.metrics import AgentMetrics
from hostagent.native.library import datapath
from hostagent.network import Network
from hostagent.outage_watch import OutageWatch, WatchedParts
from hostagent.pool_opening import holder_of, opened
from hostagent.relaying import Relaying
from hostagent.tier_metrics import Watched
from hostagent.tracing import Guarded, TraceExport, Tracer, tracing
from hostagent.transport import make_transport
from hostagent.transport.base import TransportFacts
from hostagent.transport.endpoints import host_port_of
from hostagent.transport.interfaces import interface_with
from hostagent.transport.link_rate import link_rate_bit_s
from hostagent.transport.path_probe import PathProbes
from hostagent.transport.read_tokens import TokenBook
from kvdaemon.health import Health, health_pages
from kvdaemon.http import HttpServer, Question, json_service, metrics_page
from kvdaemon.identity import Role
from kvdaemon.tls import Certificates
from kvpolicy.tiers.cost_question import QuestionError, TooManyQuestionsError, answer_to, question_of
from kvpolicy.tiers.form_costs import FormChoice, FormWork
from kvpolicy.tiers.gate import priors
from kvpolicy.value.costs import Tier
from kvproto import __version__
from kvproto.commands import Blame
from kvproto.fanout import Fanout
from kvproto.integrity import Integrity, code_of
from kvproto.rpc import control_pb2 as pb
from kvproto.rpc.versions import PROTOCOL

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
        self._holder = holder_of(config)
        self._flushed = asyncio.Event()
        self._carrying = 0
        """Events whose effects are being carried out, one within the other."""
        self._next: deque[Callable[[], None]] = deque()
        """What follows on them,"""
        self._following = False
        """at this moment."""
        self._certificates: Certificates | None = None

    # ------------------------------------------------------------------ lifetime

    async def start(self) -> None:
        """Bind everything. Raises TransportError, ApiError, NotShippedError, CannotRunError or
        OSError; nothing is left open then."""
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
            self._pool = await opened(config, self._holder, self._not_ready)
            self.memory = self._pool.memory
            await self._start_parts()
            self._holder.attend(self._loop)
        except BaseException:
            self._holder.close()
            await self.http.close()
            if self._traces is not None:
                await self._traces.close()
            raise
        if self._pool.is_kept:
            self.handle(events.PoolFound(self._pool.found))
        self.handle(
            events.Started(self.facts.receive_buffer_bytes, self.facts.rdma_mtu_bytes > 0, self.facts.read_endpoint)
        )
        if self.cold is not None:
            self.cold.open()
        if self.store is not None or self.cold is not None or self._wire_may_pay():
            self._work.try_forms()
        self._missing = None
        self.outages.start()
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
        intake = Intake(self.memory, config.write_region_bytes, self._loop, self.handle, self._soon)
        rails = config.data.each_rail()
        self._link_rate_bit_s = sum(map(link_rate_bit_s, rails))
        knowledge = Knowledge(config.node, priors(self._link_rate_bit_s))
        self.store: DiskStore | None = None
        if config.disk is not None:
            disk_pool = knowledge.disk_pool(config.disk.size_bytes)
            self.store = DiskStore(config.disk, self.memory, self._loop, disk_pool, self._form_measured)
        self.cold: ColdTier | None = None
        if config.cold is not None and self._cold_store is not None:
            self.cold = ColdTier(config.cold, self._cold_store, self.memory, self._loop, self.handle, config.node)
        self._coder = Coder(self.memory, self._loop, self.handle)
        self._work = ChunkWork(
            self._loop,
            self.handle,
            lambda: self.transport.casts.settle(),
            Hashing(self.memory, self._loop, self._soon),
            intake,
            self.store,
            self.cold,
        )
        library = datapath() if self._leases is not None else None
        self.core = AgentCore(
            replace(core_options(config), lone_gets=library is not None),
            knowledge,
            self.store,
            served_reads=self.transport.counters,
            index=self._pool.index,
            catalog=self._leases.catalog if self._leases is not None else None,
        )
        self._alarms = self.core.alarms
        self.lone_gets: LoneGets | None = None
        if library is not None:
            self.lone_gets = LoneGets(library, self.memory, self._loop, self.handle, self.tokens, self.transport.way_to)
            self.metrics.registry.register(WatchedLoneGets(self.lone_gets))
        self.relaying = Relaying(self._loop, self.handle, self.transport, self.memory, self.tokens, self.core.lend_part)
        network = Network(
            self.core, self.transport, self.memory, self._loop, self.handle, self._arm, self.relaying, self.lone_gets
        )
        self._carriers = {
            **self._own_carriers(),
            **network.carriers(),
            **self._work.carriers(),
            **self._coder.carriers(),
            **self.relaying.carriers(),
        }
        if self.lone_gets is not None:
            self._carriers |= self.lone_gets.carriers()
        self._probes = PathProbes(self.transport.ways_to, lambda *tried: self.handle(events.PathProbed(*tried)))
        self._timer = MachineTimer(self._loop, self._timer_fired)
        self.attachment = Attachment(
            config,
            self.transport.use_fabric,
            self._hello,
            self.handle,
            self._examine,
            self._certificates,
            self.tokens,
        )
        self.metrics.watch_refusals(self.attachment.refused, self.attachment.refusals.counts)
        self.examined = Examined(
            self.handle,
            self.memory,
            self.transport,
            self.core.directory,
            config.data.cast_port,
            lambda: self.attachment.fabric,
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
            intake,
            Admission(config.api_access, self.tenancy, self.metrics.api_refused),
            self._leases,
            self.lone_gets,
        )
        try:
            if self.store is not None:
                await self.store.open()
            self.facts: TransportFacts = await self.transport.start(network, self.attachment.fabric, self._moved)
            self.metrics.watch(self.core, self.transport.counters, self.store, self.cold, self.tenancy)
            self._watch_outages()
            self.api.listen(config.api_socket)
        except BaseException:
            await self._close_parts()
            raise

    async def stop(self) -> None:
        """Say goodbye, end everything, give everything back."""
        self.outages.close()
        await self.attachment.leave()
        self.api.close()
        await self._flush()
        await self.http.close()
        await self._close_parts()
        if self._traces is not None:
            await self._traces.close()

    def _watch_outages(self) -> None:
        parts = WatchedParts(
            self.core,
            self.transport.counters,
            self.attachment,
            self.store,
            self.cold,
            self._place,
            lambda: self.transport.network_trouble,
            self._further_places,
        )
        self.outages = OutageWatch(parts, self._loop)
        self.metrics.registry.register(Watched(self.outages.figures))

    def _place(self) -> tuple[str, str | None]:
        address = self._read_address()
        return address, self.config.data.interface or interface_with(address)

    def _further_places(self) -> list[tuple[str, str | None]]:
        return [
            (host_port_of(one)[0], name)
            for one, name in zip(self.facts.rail_endpoints, self.config.data.rails, strict=True)
        ]

    def _moved(self, facts: TransportFacts) -> None:
        """The data network changed: controller and peers have to know where this node is now."""
        if facts.read_endpoint != self.facts.read_endpoint:
            self.handle(events.Moved(facts.read_endpoint))
        self.facts = facts
        self.attachment.attach_again("this node is elsewhere on its data network now")

    def _data_ip(self) -> bytes:
        own = self.facts.address
        return own.to_bytes(4, "big") if own else ipaddress.ip_address(self._read_address()).packed

    def _read_address(self) -> str:
        """Where this node's reads come from."""
        return host_port_of(self.facts.read_endpoint)[0]

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
        self.api.close()
        self.examined.close()
        if self.lone_gets is not None:
            self.lone_gets.close()
        self.handle(events.Stopped())
        self._timer.cancel()
        self._probes.close()
        self.relaying.close()
        await self.transport.close()
        if self.store is not None:
            await self.store.close()
        self._work.close()
        self._coder.close()
        if self.cold is not None:
            await self.cold.close()
        if self._leases is not None:
            self._leases.close()
        self.memory.close()
        self._holder.close()

    def _form_measured(self, work: FormWork) -> None:
        self.handle(events.FormMeasured(work))

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
            tracer.saw(event, made, now_ns, self.core.fetches.arrivals.parameters)
        self._carrying += 1
        try:
            for effect in made:
                self._carriers[type(effect)](effect)
        finally:
            self._carrying -= 1
        due_ns = self._alarms.due_ns
        if due_ns < self._timer.due_ns:
            self._timer.set(due_ns, now_ns)
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
        if self._alarms.due_ns < self._timer.due_ns:
            self._timer.set(self._alarms.due_ns, now_ns)

    def _timer_fired(self) -> None:
        if self.core.fetches.judges_silence(time.monotonic_ns()):
            self.transport.casts.drain_receive()
        self.handle(events.TimerFired())

    def _own_carriers(self) -> Mapping[type, Callable[[Any], None]]:
        """Who carries out the effects that need neither the transport nor the bytes of chunks."""
        report = self._report
        return {
            effects.ReserveAnswered: self._answer,
            effects.CommitAnswered: self._answer,
            effects.FetchAnswered: self._answer,
            effects.FetchPartAnswered: self._answer,
            effects.PartsAnswered: self._answer,
            effects.KeysAnswered: self._answer,
            effects.ChunksKept: self._answer,
            effects.LeaseLeft: self._answer,
            effects.Flushed: lambda _: self._flushed.set(),
            effects.Announce: report,
            effects.ReportUsage: report,
            effects.ReportLoad: report,
            effects.ReportClaims: report,
            effects.LookUp: report,
            effects.ReportInterests: report,
            effects.ReportTaskProgress: report,
            effects.ReportTaskEnd: report,
            effects.ReportBadCopy: self._report_bad_copy,
            effects.ProbePath: lambda one: self._probes.probe(one.node, one.endpoint),
            effects.PathChanged: self._path_changed,
            effects.AttachAgain: lambda effect: self.attachment.attach_again(effect.reason),
            effects.ReportPaths: report,
            effects.BeatHeart: self._beat,
            effects.FetchPlanned: lambda _: None,  # for traces
            effects.ChunkProven: lambda _: None,  # for traces
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
        return answer_to(question, {node: quote})

    # ------------------------------------------------------------------ engines and the controller

    def _answer(self, answer: Any) -> None:
        if answer.engine == EXAMINING_ENGINE:
            self.examined.answer(answer)
        else:
            self.api.answer(answer)

    def _examine(self, task: pb.Task) -> None:
        self.examined.run(task)

    def _report(self, effect: convert.ControllerEffect) -> None:
        self.attachment.send(convert.message_of(effect, columns=self.attachment.takes_columns))

    def _report_bad_copy(self, effect: effects.ReportBadCopy) -> None:
        log.warning("%s holds a wrong copy of chunk %s: %s", effect.holder, effect.key.hex(), effect.blame.value)
        if effect.blame is Blame.DIGEST:
            self.metrics.checksum_failures.inc()
            self._report(effect)

    def _path_changed(self, effect: effects.PathChanged) -> None:
        if effect.reached:
            log.warning("%s can be reached on the data network again", effect.node)
            return
        self.transport.counters.reads_failed += 1
        log.warning("%s cannot be reached on the data network: it is asked for nothing until it can be", effect.node)

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
                data_ip=self._data_ip(),
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
                interests=convert.interests_of(self.core.engines.interests.current),
                link_rate=self._link_rate_bit_s,
                rail_endpoints=self.facts.rail_endpoints,
                takes_columns=True,
                follows=self.core.fetches.look_ups.follows,
                replica_rows=self.core.fetches.look_ups.whole_rows_max,
                member=self.core.member,
                fanouts=[pb.Fanout.ValueType(one.value) for one in Fanout],
                cell=self.config.cell,
                rack=self.config.rack,
            )
        )

    # ------------------------------------------------------------------ figures

    def health(self) -> Health:
        """An agent without its controller goes on with what it knows: it is ready, and says so. One that a controller
        will not have is not, and neither is one that has long been without what engines need."""
        if self._missing:
            return Health([self._missing], {"status": "starting", "node": self.config.node, "version": __version__})
        core = self.core
        usage = core.pool.usage()
        outages = self.outages.facts()
        controller = "none" if not self.attachment.has_controller else "connected" if core.connected else "away"
        facts = {
            "status": "degraded" if outages else "ok",
            "node": self.config.node,
            "cell": self.config.cell,
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
            "outages": outages,
        }
        refusal = self.attachment.refusal
        refused = (f"the controller refuses this node: {refusal}",) if refusal else ()
        return Health((*refused, *self.outages.missing()), facts)

    def stats(self) -> dict[str, float]:
        """Figures for an engine: everything in the metrics, flat."""
        self.handle(events.FiguresWanted())
        figures = self.metrics.flat()
        figures["directory_chunks"] = self.core.directory.chunks_count
        figures["engines"] = self.api.connections_count
        figures["engines_registered_bytes"] = self.api.registered_bytes
        figures["engines_wait"] = float(self.core.fetches.busy)
        figures["gate_rate_bytes_per_s"] = self.core.gate.costs.cost(Tier.REMOTE_DRAM).rate_bytes_per_s
        return figures
