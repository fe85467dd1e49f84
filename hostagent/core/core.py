"""One node's agent without its daemon: input from engines, peers, controller, disk; effects out. Pure.

    handle(event, now_ns) -> effects        next_timeout_ns() -> when TimerFired should come

The agent makes every decision here or in a part called from here: `Engines` (who holds what), `Fetches` (chunks on
their way), `PartFetches` (parts of chunks), `Claims` and `Waits` (chunks that are still being computed),
`FetchPlanner` (from where, or not at all), `Serving` (what peers get), `Tiering` and `PeerLoads` (the disk),
`ColdIndex` and `ColdWrites` (the cold store), `Twins` (chunks in fewer bytes for the network),
`Membership` (this node's place in the fabric), `DirectoryNews` (what is heard of others), `Tasks` (the controller's
work), `Reports`, `LoadReports` and `Heartbeat` (what the controller is told). What they share is a `Node`. The shell
owns clock, sockets, the bytes of chunks, hashing and disk I/O: it feeds one event at a time and carries out the effects
in the order given.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from hostagent import limits
from hostagent.core import effects, events
from hostagent.core.adoption import Adoption
from hostagent.core.claims import Claims, Freed
from hostagent.core.clock import NEVER, Alarms, Windows
from hostagent.core.cold import ColdIndex, ColdWrites
from hostagent.core.directory_news import DirectoryNews
from hostagent.core.disk_index import DiskIndex
from hostagent.core.engines import Engines
from hostagent.core.fetch import MakeReader, ReaderMachine, Wanted
from hostagent.core.fetches import Fetches
from hostagent.core.forms import Forms
from hostagent.core.lone_chunks import LoneChunks
from hostagent.core.membership import Membership
from hostagent.core.node import FabricState, Knowledge, Node
from hostagent.core.options import CoreOptions
from hostagent.core.parts import PartFetches
from hostagent.core.paths import Paths
from hostagent.core.plan import Ways
from hostagent.core.reports import Heartbeat, LoadReports, NoReads, Reports, ServedReads
from hostagent.core.serving import Serving
from hostagent.core.sources import Sources
from hostagent.core.tasks import Tasks
from hostagent.core.tiering import PeerLoads, Tiering
from hostagent.pool.catalog import Catalog
from hostagent.pool.chunks import Chunk, ChunkPool, ChunkState, DropOutcome
from hostagent.pool.index import PoolIndex
from hostagent.pool.tenants import Tenants
from hostagent.tree import Hashed
from kvchunk.ids import ChunkKey
from kvclient.messages import Hint
from kvpolicy.tiers.cost_question import Allowance, CostQuestion, Quote
from kvpolicy.tiers.gate import Gate, GateParameters
from kvpolicy.tiers.holder_load import HolderLoads
from kvpolicy.tiers.lane import Lane
from kvpolicy.value import Tier, Touch
from kvproto import events as protocol
from kvproto.ids import Member
from kvproto.session.parameters import ReaderParameters
from kvproto.session.rail_reader import RailReader
from kvproto.session.reader import Reader
from kvproto.wire.control import Op

_FOR_READER = frozenset({Op.NOTICE, Op.NAK})
_FOR_HOLDER = frozenset({Op.JOIN, Op.GET, Op.FILL_ACK})
_FOR_KEEPER = _FOR_HOLDER | {Op.LEAVE}


def reader_for(parameters: ReaderParameters) -> ReaderMachine:
    """Of a node with these rails."""
    return RailReader(parameters) if parameters.cast_rails > 1 else Reader(parameters)


class AgentCore:
    """Owns the parts, and what concerns several of them. Deterministic: the same events at the same times give the same
    effects."""

    def __init__(
        self,
        options: CoreOptions,
        knowledge: Knowledge,
        disk: DiskIndex | None = None,
        make_reader: MakeReader = reader_for,
        served_reads: ServedReads | None = None,
        index: PoolIndex | None = None,
        catalog: Catalog | None = None,
    ) -> None:
        """`served_reads`: of peers, by the shell; None: it serves none. `index`: of the pool's memory, where somebody
        keeps that for the next agent. `catalog`: of the pool's chunks, for engines that read without asking."""
        self._knowledge = knowledge
        self._disk = disk
        self._allowance = Allowance()
        self._effects: list[effects.Effect] = []
        alarms = Alarms(knowledge.clock)
        self.cold = ColdIndex(options, alarms, self._effects.append)
        self.pool = ChunkPool(
            options.pool_bytes,
            limits.EXTENT_ALIGN_BYTES,
            knowledge.clock.read,
            self._costs_of_dram,
            index,
            Tenants(options.pool_bytes, options.tenant_weights),
            catalog,
        )
        fabric = FabricState(options.pool_address, options.segment_bytes)
        self.windows = Windows(alarms)
        self._node = node = Node(
            options, alarms, self._effects.append, self.pool, disk, knowledge, fabric, self.windows
        )
        self.alarms = alarms
        self.directory = node.directory
        self._clock = knowledge.clock
        self.gate = Gate(node.costs, GateParameters(wait_max_s=options.merge_wait_max_s))
        loads = HolderLoads(lambda: node.costs.cost(Tier.REMOTE_DRAM).rate_bytes_per_s)
        self.busy_nodes = loads.by_name
        """Of others it would be no news that they have nothing queued."""
        self.forms = Forms(node)
        sources = Sources(node, loads, self.cold)
        self.claims = Claims(node, self._claims_ended)
        self.paths = Paths(node, lambda name: self.fetches.directory_changed((), (name,)))
        ways = Ways(node, sources, self.gate, self.claims, self.forms, self.paths)
        self.fetches = Fetches(ways, self, make_reader)
        self.twins = self.fetches.twins
        self.waits = self.fetches.waits
        self.relays = self.fetches.arrivals.relays
        self.parts = PartFetches(node, self.fetches)
        self._peer_loads = PeerLoads(node, self.fetches)
        had_from = self.fetches.arrivals.had_from
        self.serving_by_rail = tuple(
            [
                Serving(node, self._peer_loads.load, self._peer_asked, partial(had_from, rail=rail), rail)
                for rail in range(options.rails)
            ]
        )
        """A rail that takes nothing holds up nobody on another one."""
        self.serving = self.serving_by_rail[0]
        self._tasks = Tasks(node, self.fetches, self.serving, self.drop)
        self._reports = Reports(node, self._tasks.pinned_keys, self.gate.take_measurements)
        self._load_reports = LoadReports(node, served_reads or NoReads(), self.serving)
        heartbeat = Heartbeat(node, self.fetches, self._tasks, self.gate)
        self._membership = Membership(
            node, self.fetches, self.serving_by_rail, self.claims, self._reports, self._load_reports, heartbeat
        )
        self.engines = Engines(node, self.fetches, self.parts, self.claims, self.cold, self._reports, self)
        self.lone_gets = LoneChunks(node, self.fetches, self, self.forms, self.engines.tenant_of)
        self._directory_news = DirectoryNews(
            node, loads, self.fetches, self.claims, self.waits, self.paths, self.lone_gets.directory_changed
        )
        self.tiering = self._make_tiering()
        self.cold_writes = self._make_cold_writes()
        self.adoption = Adoption(node, self._chunk_adopted)
        self._digest_users: Mapping[events.DigestUse, Callable[[Chunk, Hashed], None]] = {
            events.DigestUse.ARRIVAL: self.fetches.arrivals.digest_computed,
            events.DigestUse.PARTS: self.parts.digest_computed,
            events.DigestUse.PUT: self.engines.digest_computed,
            events.DigestUse.ADOPTION: self.adoption.digest_computed,
            events.DigestUse.RECHECK: self._tasks.digest_computed,
        }
        self._handlers = self._routes()

    def _make_tiering(self) -> Tiering | None:
        """What moves chunks between DRAM and the disk; None: there is no disk."""
        if self._disk is None:
            return None
        node, changed = self._node, self._reports.pool_changed
        return Tiering(node, self._disk, self._peer_loads, self.fetches, self.forms, changed)

    def _make_cold_writes(self) -> ColdWrites | None:
        """What writes last copies to the cold store; None: there is none."""
        if not self._node.options.has_cold:
            return None
        return ColdWrites(self._node, self.cold, self._peer_loads, self.fetches, self.forms)

    def _routes(self) -> Mapping[type, Callable[[Any], None]]:
        """Which part takes which event."""
        engines, fetches, membership = self.engines, self.fetches, self._membership
        return {
            events.ReserveRequested: engines.reserve,
            events.CommitRequested: engines.commit,
            events.ChunkTaken: engines.chunk_taken,
            events.AbortRequested: engines.abort,
            events.ChunksNamed: engines.chunks_named,
            events.ChunksRequested: engines.fetch,
            events.PartsRequested: engines.fetch_parts,
            events.CancelRequested: engines.cancel,
            events.LeaseReleased: engines.release,
            events.KeysRequested: engines.keys_requested,
            events.HintGiven: self._hint_given,
            events.WarmWished: self._warm_wished,
            events.ClaimMade: engines.claim,
            events.ClaimWithdrawn: lambda event: self.claims.disclaim(event.engine, event.keys),
            events.EngineConnected: engines.engine_connected,
            events.EngineDisconnected: engines.engine_disconnected,
            events.Welcomed: membership.welcomed,
            events.DirectoryChanged: self._directory_news.directory_changed,
            events.LookedUp: self._directory_news.looked_up,
            events.SwitchStateGiven: membership.switch_state_given,
            events.MemberGiven: membership.member_given,
            events.TaskGiven: lambda event: self._tasks.run(event.task),
            events.TaskCancelled: lambda event: self._tasks.cancel(event.number),
            events.ControllerLost: self._controller_lost,
            events.LoadEnded: lambda event: fetches.load_ended(event.into, event.outcome, event.hashed),
            events.SaveEnded: self._save_ended,
            events.FormMeasured: lambda event: self.forms.costs.measured(event.work),
            events.ColdStateGiven: self._cold_state_given,
            events.ColdProbed: self._cold_probed,
            events.ColdLookedUp: self.cold.lookup_ended,
            events.ColdLoadEnded: self._cold_load_ended,
            events.ColdSaveEnded: self._cold_save_ended,
            events.DigestComputed: self._digest_computed,
            events.ControlsReceived: self._controls_received,
            events.CastsPlaced: lambda event: fetches.arrivals.casts_placed(event.arrivals),
            events.CastsUnexpected: lambda event: fetches.arrivals.casts_unexpected(event.arrivals),
            protocol.SegmentsReceived: lambda event: fetches.arrivals.casts_placed((event,)),
            protocol.ReadProgress: self._read_event,
            protocol.ReadDone: self._read_event,
            protocol.ReadFailed: self._read_event,
            events.LeavesRead: self._leaves_read,
            events.ReadsProven: fetches.arrivals.reads_proven,
            protocol.SegmentsSent: lambda event: self.serving_by_rail[event.rail].segments_sent(event.key, event.count),
            protocol.SendFailed: lambda event: self.serving_by_rail[event.rail].segments_failed(event.key, event.count),
            events.FillSent: lambda event: self.serving.fill_sent(event.key, event.count),
            events.HolderTold: self._directory_news.holder_told,
            events.PathProbed: self.paths.probed,
            events.PeerLoadRequested: self._peer_load_requested,
            events.PeerReadEnded: lambda event: self.pool.unpin(event.chunk),
            events.PeersRead: self._peers_read,
            events.FiguresWanted: lambda _: self.engines.local_reads.look(),
            events.RelayHeard: self.relays.heard,
            events.RelayReadEnded: self.relays.read_ended,
            events.RelaysHappened: self.relays.happened,
            events.LoneGot: self.lone_gets.chunk_fetched,
            events.LoneTaken: lambda event: self.lone_gets.chunk_placed(event.chunk, event.hashed),
            events.Started: self._started,
            events.Moved: lambda event: self.relays.listens(event.read_endpoint),
            events.PoolFound: self.adoption.begin,
            events.FlushRequested: self._flush_requested,
            events.Stopped: self._stopped,
            events.TimerFired: self._timer_fired,
            **({} if self.twins is None else self.twins.routes()),
        }

    # ------------------------------------------------------------------ the shell's side

    def handle(self, event: events.Event, now_ns: int) -> list[effects.Effect]:
        """What follows from an event. Raises SequenceGapError for a DirectoryChanged after a lost one."""
        self._clock.now_ns = now_ns
        self._handlers[type(event)](event)
        made = self._effects[:]
        self._effects.clear()
        return made

    def next_timeout_ns(self) -> int | None:
        """When TimerFired should come; None: not before another event. May change with every event."""
        due_ns = self._node.alarms.due_ns
        return None if due_ns == NEVER else due_ns

    def wanted(self, key: ChunkKey) -> Wanted | None:
        """The chunk of this key and which of its cast segments may be placed; report all by SegmentsReceived."""
        return self.fetches.arrivals.wanted(key)

    def lend(self, key: ChunkKey, now_ns: int) -> Chunk | None:
        """A chunk for a peer's reliable read; it stays until PeerReadEnded. None: it is not in the pool. The values of
        chunks learn of it by PeersRead."""
        self._clock.now_ns = now_ns
        self._load_reports.queue_grew()
        return self.serving.lend(key)

    def lend_part(self, key: ChunkKey, offset: int, size_bytes: int, now_ns: int) -> Chunk | None:
        """As `lend`, of a range of a chunk that is still arriving, if all of it is proven."""
        self._clock.now_ns = now_ns
        return self.relays.lend(key, offset, size_bytes)

    def _peers_read(self, event: events.PeersRead) -> None:
        self._load_reports.queue_grew()
        self.pool.touch(event.keys)
        if self.twins is not None:
            for key in event.keys:
                self.twins.making.peer_asked(key)
        if self.pool.shown.lingering:
            self.engines.local_reads.chunks_lent()

    def quote(self, question: CostQuestion, now_ns: int) -> Quote:
        """What it would take this node to have the chunks of a prefix. Raises TooManyQuestionsError."""
        self._allowance.take(len(question.keys), now_ns)
        self._clock.now_ns = now_ns
        return self.fetches.planner.quote(question.keys, question.prefill(self._knowledge.node))

    def namespace_of(self, key: ChunkKey) -> str | None:
        """The namespace of a chunk in the pool or on disk; None: it is not here."""
        chunk = self.pool.find(key)
        if chunk is None and self._disk is not None:
            chunk = self._disk.find(key)
        if chunk is None and key in self.relays.coming:
            return self.fetches.arrivals.under_way[key].entry.namespace
        return chunk.namespace if chunk is not None else None

    def can_load_for_peer(self, key: ChunkKey) -> bool:
        """Whether PeerLoadRequested makes sense: the chunk is on this node's disk."""
        return self._peer_loads.can_load(key)

    # ------------------------------------------------------------------ figures

    @property
    def member(self) -> Member | None:
        """This node's index at its switch; None: it has none."""
        return self._membership.parameters.member

    @property
    def segment_bytes(self) -> int:
        """Of the fabric."""
        return self._membership.parameters.segment_bytes

    @property
    def connected(self) -> bool:
        """Whether the controller listens."""
        return self._node.fabric.connected

    @property
    def lanes(self) -> Mapping[str, Lane[Any]]:
        """Background work, by name."""
        lanes: dict[str, Lane[Any]] = {"fetch": self._tasks.background}
        if self.tiering is not None:
            lanes |= {"write": self.tiering.writes, "promote": self.tiering.promotions}
        if self.cold_writes is not None:
            lanes["cold"] = self.cold_writes.lane
        if self.twins is not None:
            lanes["twin"] = self.twins.making.lane
        return lanes

    @property
    def idle(self) -> bool:
        """Whether nothing is under way, asked for or lent: no fetch, load, task, lease or pin."""
        return not (
            self.fetches.under_way_count
            or self.windows.is_busy
            or self.waits.waiting_count
            or self.cold.waiting_count
            or bool(self.fetches.arrivals.under_way)
            or self._peer_loads.under_way_count
            or self._tasks.running_count
            or self.pool.pins_count
        )

    # ------------------------------------------------------------------ what concerns several parts

    def _costs_of_dram(self, chunks: Sequence[Touch]) -> list[float]:
        beside = list(map(self._lies_beside, chunks))
        costs_s = self._knowledge.costs.eviction_costs_s(chunks, Tier.LOCAL_DRAM, beside)
        if self.twins is not None:
            self.twins.here.make_cheap(chunks, costs_s)
        return costs_s

    def _lies_beside(self, chunk: Touch) -> list[Tier]:
        """Where this node finds a chunk that its pool does not have."""
        key = chunk.key
        tiers = self._knowledge.directory.tiers_elsewhere(key)
        if self._disk is not None and self._disk.find(key) is not None:
            tiers.append(Tier.LOCAL_DISK)
        if self.cold.has_store and self.cold.knows(key):
            tiers.append(Tier.COLD)
        return tiers

    def _peer_asked(self, key: ChunkKey) -> None:
        """Another node wants a chunk of this one."""
        if self.twins is not None:
            self.twins.making.peer_asked(key)

    def _claims_ended(self, keys: Sequence[ChunkKey], why: Freed) -> None:
        """One of those who compute these chunks does so no more."""
        self.waits.claims_ended(keys, why)

    def _controller_lost(self, _: events.ControllerLost) -> None:
        self._membership.controller_lost()
        self.claims.controller_lost()
        self._tasks.abandon()

    def drop(self, key: ChunkKey) -> DropOutcome:
        """Take a chunk out of the pool and off the disk; a pinned chunk stays."""
        outcome = self.pool.drop(key)
        stored = self._disk is not None and self._disk.find(key) is not None
        if outcome is not DropOutcome.HELD and stored:
            self._effects.append(effects.ForgetStored(key))
            outcome = DropOutcome.DROPPED if outcome is DropOutcome.ABSENT else outcome
        self._reports.pool_changed()
        return outcome

    def drop_everywhere(self, key: ChunkKey) -> DropOutcome:
        """As `drop`, and out of the cold store: an engine does not want the chunk to be anywhere."""
        outcome = self.drop(key)
        if self.cold_writes is not None and outcome is not DropOutcome.HELD:
            self.cold.chunk_lost(key)
            self._effects.append(effects.ForgetCold(key))
        return outcome

    def chunk_put(self, chunk: Chunk) -> None:
        """An engine's chunk is whole."""
        self._keep_copies(chunk)
        if self.twins is not None:
            self.twins.making.chunk_put(chunk)
        if self.claims.chunk_put(chunk.key):
            self._reports.announce_now()
        if self.waits.by_chunk:
            self.waits.chunks_available((chunk.key,))

    def _chunk_ready(self, chunk: Chunk) -> None:
        if self.twins is None or not self.twins.here.take_in(chunk):
            self._keep_copies(chunk)  # which have forms of their own

    def _keep_copies(self, chunk: Chunk) -> None:
        """A chunk is in the pool, and may go to the disk and the cold store."""
        if self.tiering is not None:
            self.tiering.chunk_ready(chunk)
        if self.cold_writes is not None:
            self.cold_writes.look_soon()

    def _chunk_adopted(self, chunk: Chunk) -> None:
        self._chunk_ready(chunk)
        self._reports.pool_changed()

    def _warm_wished(self, event: events.WarmWished) -> None:
        namespace = self.engines.namespace(event.engine, event.namespace)
        self._reports.warm_wished(effects.WarmWish(namespace, event.size_bytes, event.nodes, event.wait_ms))

    def _hint_given(self, event: events.HintGiven) -> None:
        for pool in [self.pool] if self._disk is None else [self.pool, self._disk.pool]:
            if event.hint is Hint.SESSION_ENDED:
                pool.finished(event.keys)
            else:
                pool.expect(event.keys, event.within_ms / 1000)
        self._reports.hint_given(event.keys, event.hint, event.within_ms)

    def _controls_received(self, event: events.ControlsReceived) -> None:
        """Answers go to the reader, questions to the holder."""
        for_reader = [arrival for arrival in event.arrivals if arrival.message.op in _FOR_READER]
        if for_reader:
            self.fetches.arrivals.controls_received(for_reader)
        asked = _FOR_KEEPER if self.serving.keeps_interest else _FOR_HOLDER
        for_holder = [arrival for arrival in event.arrivals if arrival.message.op in asked]
        if for_holder:
            if len(self.serving_by_rail) == 1:
                self.serving.controls_received(for_holder)
            else:
                for rail, serving in enumerate(self.serving_by_rail):
                    if there := [arrival for arrival in for_holder if arrival.rail == rail]:
                        serving.controls_received(there)
            self._load_reports.queue_grew()
        for arrival in event.arrivals:
            operation = arrival.message.op
            if operation not in _FOR_READER and operation not in asked:
                self._effects.append(effects.DatagramsDropped(f"control_{operation.name.lower()}_ignored"))

    def _digest_computed(self, event: events.DigestComputed) -> None:
        self.pool.unpin(event.chunk)
        self._digest_users[event.use](event.chunk, event.hashed)

    def _read_event(self, event: protocol.ReadProgress | protocol.ReadDone | protocol.ReadFailed) -> None:
        if event.read < 0:
            self.parts.read_event(event)
        else:
            self.fetches.arrivals.read_event(event)

    def _leaves_read(self, event: events.LeavesRead) -> None:
        if event.read < 0:
            self.parts.read_event(event)
        else:
            self.fetches.arrivals.leaves_read(event)

    def _save_ended(self, event: events.SaveEnded) -> None:
        if self.tiering is not None:
            self.tiering.save_ended(event.chunk, event.outcome)

    def _cold_state_given(self, event: events.ColdStateGiven) -> None:
        self.cold.state_given(event.state)
        if self.cold_writes is not None:
            self.cold_writes.look_soon()

    def _cold_probed(self, event: events.ColdProbed) -> None:
        self.cold.store_probed(event.lookup_s)
        self.gate.measured(Tier.COLD, event.size_bytes, event.seconds, self._clock.now_ns)

    def _cold_load_ended(self, event: events.ColdLoadEnded) -> None:
        self.cold.load_ended(event.into.key, event.outcome)
        self.fetches.load_ended(event.into, event.outcome, event.hashed)

    def _cold_save_ended(self, event: events.ColdSaveEnded) -> None:
        if self.cold_writes is not None:
            self.cold_writes.save_ended(event)

    def _peer_load_requested(self, event: events.PeerLoadRequested) -> None:
        loaded = partial(self._peer_load_ended, event.key)
        if not self._peer_loads.load(event.key, loaded):
            loaded()

    def _peer_load_ended(self, key: ChunkKey) -> None:
        self._effects.append(effects.PeerLoadEnded(key, self.serving.lend(key)))

    # ------------------------------------------------------------------ of fetches (`FetchObserver`)

    def chunks_used(self, uses: Sequence[effects.ChunkUse], over: Sequence[ChunkKey] = ()) -> None:
        """For the controller, and copies that an engine's fetch brought may be announced."""
        self._reports.chunks_used(uses, over)
        if over and self.lone_gets.offered:
            self.lone_gets.costs_changed()

    def copy_arrived(self, chunk: Chunk, *, asked_for: bool) -> None:
        """Announced at once when the controller wanted it, else when the rush is over."""
        if chunk.state is ChunkState.READY:
            self._chunk_ready(chunk)
        if asked_for:
            self._reports.pool_changed()
        else:
            self._reports.fetched_copy(chunk.key)

    def fetch_over(self, keys: Sequence[ChunkKey]) -> None:
        """Copies that an engine's fetch brought may be announced."""
        self._reports.fetch_over(keys)
        if self.lone_gets.offered:
            self.lone_gets.costs_changed()

    def engines_served(self) -> None:
        """Background work may go on."""
        if self._tasks.background.waiting:
            self._tasks.engines_served()
        if self.twins is not None:
            self.twins.making.engines_served()
        if self.tiering is not None:
            self.tiering.engines_served()
        if self.cold_writes is not None:
            self.cold_writes.look_soon()

    # ------------------------------------------------------------------ time and the process

    def _timer_fired(self, _: events.TimerFired) -> None:
        self._node.alarms.ring()

    def _started(self, event: events.Started) -> None:
        self._membership.started(event)
        self.relays.listens(event.read_endpoint)
        if self.tiering is not None:
            self.tiering.start()

    def _flush_requested(self, _: events.FlushRequested) -> None:
        if self.tiering is None:
            self._effects.append(effects.Flushed())
        else:
            self.tiering.flush()

    def _stopped(self, _: events.Stopped) -> None:
        self.parts.close()
        self.cold.close()
        self.fetches.look_ups.close()
        self.claims.close()
        self.fetches.close()
        self.relays.close()
        self.windows.finish()
        self.adoption.close()
        self._reports.close()
        self._load_reports.close()
        self._membership.controller_lost()
        self._tasks.close()
        self._peer_loads.close()
        if self.tiering is not None:
            self.tiering.close()
        if self.cold_writes is not None:
            self.cold_writes.close()
        for serving in self.serving_by_rail:
            serving.close()
        self.engines.local_reads.close()
