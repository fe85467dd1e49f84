"""The fetching side: runs the protocol's reader, and takes what arrives into the pool.

Owns chunks on their way and the pins of fetches. The reader decides whom to ask for what, and when; the planner decides
how far a fetch goes, and from where; `Deliveries` ends it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import assert_never

import numpy as np

from hostagent import limits
from hostagent.core import effects
from hostagent.core.behind import Reviews
from hostagent.core.claims import Computed
from hostagent.core.clock import Alarm, Alarms
from hostagent.core.deliveries import Deliveries
from hostagent.core.directory import DirectoryReplica, NodeEntry
from hostagent.core.early_pieces import PIECES_MIN, EarlyPieces
from hostagent.core.events import LeavesRead, LoadOutcome
from hostagent.core.fetch import Fetch, FetchObserver, FetchResult, MakeReader, Progressed, Purpose, Wanted
from hostagent.core.forms import Forms
from hostagent.core.inbound import InboundChunk
from hostagent.core.outgoing_reads import OutgoingReads
from hostagent.core.plan import FetchPlan, FetchPlanner
from hostagent.core.sources import DiskIndex, Sources
from hostagent.core.twin_fetches import TwinFetches
from hostagent.core.twins import Twins
from hostagent.core.wrong_bytes import WrongBytes
from hostagent.pool.chunks import Chunk, ChunkPool
from hostagent.pool.tenants import NOBODY
from hostagent.tree import PIECE_BYTES, Hashed
from kvclient.messages import Status
from kvpolicy.tiers.gate import Gate, Prefill, Probe, Ticket
from kvpolicy.tiers.holder_load import HolderLoad
from kvpolicy.tiers.quote import Quote
from kvpolicy.value import Tier
from kvproto import events
from kvproto.commands import (
    AbortRead,
    DeliverFetch,
    DropChunk,
    FetchProgress,
    Outcome,
    ReaderCommand,
    ReadLeaves,
    ReportBadCopy,
    SegmentsDropped,
    SendControl,
    StartRead,
    VerifyChunk,
)
from kvproto.ids import ChunkKey, FetchId, NodeId
from kvproto.integrity import algorithm_of
from kvproto.limits import FETCHES_MAX
from kvproto.session.parameters import ReaderParameters
from kvproto.sources import ChunkSource
from kvproto.wire.control import Op

_LOADED = frozenset({Tier.LOCAL_DISK, Tier.COLD})
"""Sources that no peer delivers: the shell loads from them. The reader tells none of them from the disk."""


_RUSH = frozenset({Purpose.ENGINE, Purpose.TWIN})
"""What these bring is announced when they are over: until then everybody asks the one holder."""


class Fetches:
    """One node's."""

    def __init__(
        self,
        alarms: Alarms,
        emit: Callable[[effects.Effect], None],
        pool: ChunkPool,
        directory: DirectoryReplica,
        disk: DiskIndex | None,
        sources: Sources,
        gate: Gate,
        observer: FetchObserver,
        computed: Callable[[ChunkKey], Computed | None],
        forms: Forms,
        twins: Twins,
        parameters: ReaderParameters,
        make_reader: MakeReader,
    ) -> None:
        """`computed(key)`: whether somebody computes a chunk."""
        self._clock = alarms.clock
        self._emit = emit
        self._pool = pool
        self._directory = directory
        self._sources = sources
        self._gate = gate
        self._observer = observer
        self._parameters = parameters
        self._make_reader = make_reader
        self._reader = make_reader(parameters)
        self._fetches: dict[FetchId, Fetch] = {}
        self._inbound: dict[ChunkKey, InboundChunk] = {}
        self._reader_alarm: Alarm = alarms.add(self._reader_due)
        self._reads = OutgoingReads(alarms, emit, directory, self.read_event)
        self._wrong_bytes = WrongBytes(emit, directory)
        self._early = EarlyPieces(emit)
        self._fetch_id = 0
        self._reviews = Reviews(alarms, gate, self._left_of, self._cut)
        self._planner = FetchPlanner(
            alarms.clock, pool, disk, sources, gate, self._inbound, self.left_bytes, self._kept, computed, forms, twins
        )
        self.twins = TwinFetches(
            alarms, emit, pool, twins, forms.costs, self._bring_twins, self.cancel, self.load_ended
        )
        self._deliveries = Deliveries(alarms, emit, pool, directory, gate, self._planner, observer, lambda: self.busy)

    # ------------------------------------------------------------------ figures

    @property
    def under_way_count(self) -> int:
        """Fetches, background ones included."""
        return len(self._fetches)

    @property
    def busy(self) -> bool:
        """Whether an engine waits for something."""
        return any(fetch.purpose is Purpose.ENGINE for fetch in self._fetches.values())

    @property
    def led_count(self) -> int:
        """Chunks that this node pulls for everybody at the moment."""
        return self._reader.led_count

    @property
    def patient(self) -> bool:
        """Whether cast segments may be reported some milliseconds late."""
        return self._reader.patient

    @property
    def inbound(self) -> Iterable[InboundChunk]:
        """Chunks on their way into the pool."""
        return self._inbound.values()

    def left_bytes(self, inbound: InboundChunk) -> int:
        """Bytes of a chunk still to come; all of them while it is loaded from disk."""
        if inbound.whole:
            return 0
        if inbound.twin is not None:
            twin = self._inbound.get(inbound.twin.key)
            return 0 if twin is None else self.left_bytes(twin)
        missing = self._reader.missing(inbound.chunk.key)
        size_bytes = inbound.entry.size_bytes
        if missing is None:
            return size_bytes if inbound.reckoned_bytes is None else inbound.reckoned_bytes
        return min(size_bytes, int(np.count_nonzero(missing)) * self._parameters.segment_bytes)

    def _left_of(self, key: ChunkKey) -> int:
        inbound = self._inbound.get(key)
        return 0 if inbound is None else self.left_bytes(inbound)

    # ------------------------------------------------------------------ fetches

    def begin(
        self,
        keys: Sequence[ChunkKey],
        purpose: Purpose,
        deadline_ns: int,
        ended: Callable[[FetchResult], None],
        *,
        prefill: Prefill | None = None,
        progressed: Progressed | None = None,
        waits: Callable[[FetchPlan], None] | None = None,
        expected_s: float = 0.0,
        traced: bool = False,
        any_order: bool = False,
        tenant: str = NOBODY,
    ) -> FetchId | None:
        """Bring chunks (distinct, in prefix order; or `any_order`, without a prefill: each is of use by itself).

        `ended` comes once, unless it is cancelled; `progressed` hears of leading chunks that came. `prefill`: the
        engine's own way to them; a fetch that falls behind it is given up. `waits`: hears the plan before anything
        else, and takes care of the chunks in it that are being computed; `expected_s`: others will be computed or put
        within this time. `traced`: the plan is told, too. `tenant`: whom the chunks count for. None: it has ended
        already.
        """
        if len(self._fetches) >= FETCHES_MAX:
            ended(FetchResult(Status.BUSY, ()))
            return None
        self._deliveries.teach()
        from_disk_only = purpose is Purpose.DISK
        plan = self._planner.plan(
            keys,
            prefill,
            from_disk_only=from_disk_only,
            is_engines=purpose is Purpose.ENGINE,
            may_wait=waits is not None,
            expected_s=expected_s,
            any_order=any_order,
            tenant=tenant,
        )
        if traced:
            self._emit(self._planner.told(plan))
        if waits is not None:
            waits(plan)
        if plan.awaited and not plan.keys:
            started = None  # there is nothing to bring yet
        elif len(plan.pinned) == len(plan.keys):
            self._deliveries.local(plan, ended)
            started = None
        else:
            started = self._begin_planned(plan, purpose, deadline_ns, ended, progressed, any_order=any_order)
        if plan.verdict.probe is not None:
            self._begin_probe(keys[plan.verdict.probe.place], plan.verdict.probe)
        self._deliveries.learn_soon(plan)
        return started

    def quote(self, keys: Sequence[ChunkKey], prefill: Prefill | None) -> Quote:
        """What it would take this node to have these chunks."""
        return self._planner.quote(keys, prefill)

    def _begin_planned(
        self,
        plan: FetchPlan,
        purpose: Purpose,
        deadline_ns: int,
        ended: Callable[[FetchResult], None],
        progressed: Progressed | None,
        probe: Probe | None = None,
        *,
        any_order: bool = False,
        ticket: Ticket | None = None,
    ) -> FetchId | None:
        """`ticket`: of another fetch that this one works for; it has none of its own then."""
        self._fetch_id += 1
        now_ns = self._clock.now_ns
        if plan.verdict.give_up_s is not None:
            deadline_ns = min(deadline_ns, now_ns + int(max(limits.GIVE_UP_S_MIN, plan.verdict.give_up_s) * 1e9))
        fetch = Fetch(
            FetchId(self._fetch_id),
            plan.keys,
            purpose,
            plan.stopped,
            ended,
            progressed,
            now_ns,
            # One who waits judges the whole when it is over; the parts teach what sources cost.
            ticket or self._gate.started(replace(plan.verdict, recompute_s=None) if plan.awaited else plan.verdict),
            plan.pinned,
            probe,
            any_order,
        )
        self._fetches[fetch.fetch] = fetch
        wanted = self._want(fetch, plan, from_disk_only=purpose is Purpose.DISK)
        self._handle(events.FetchRequested(fetch.fetch, wanted, deadline_ns, any_order))
        for found, chunk, route in plan.to_come:
            inbound = self._inbound.get(found.entry.key)
            if route in _LOADED and inbound is not None and inbound.chunk is chunk:
                self._pool.pin(chunk)
                by_disk = route is Tier.LOCAL_DISK
                stored = found.stored.get(Tier.COLD)
                self._emit(effects.LoadChunk(chunk) if by_disk else effects.LoadCold(chunk, found.entry.digest, stored))
        by_twins = [self._inbound[key] for key in plan.twins if key in self._inbound]
        if by_twins:
            self.twins.begin(by_twins, deadline_ns, fetch.ticket)
        if fetch.fetch not in self._fetches:
            return None
        self._reviews.began(fetch)
        return fetch.fetch

    def _bring_twins(
        self,
        wanted: Sequence[InboundChunk],
        deadline_ns: int,
        ticket: Ticket,
        ended: Callable[[FetchResult], None],
    ) -> FetchId | None:
        """See `twin_fetches.Bring`."""
        if len(self._fetches) >= FETCHES_MAX:
            ended(FetchResult(Status.BUSY, ()))
            return None
        plan = self._planner.plan_twins(wanted)
        if len(plan.pinned) == len(plan.keys):
            ended(FetchResult(plan.stopped, tuple((chunk, ChunkSource.LOCAL) for chunk in plan.pinned.values())))
            return None
        return self._begin_planned(plan, Purpose.TWIN, deadline_ns, ended, None, any_order=True, ticket=ticket)

    def _begin_probe(self, key: ChunkKey, probe: Probe) -> None:
        """Fetch one chunk from a refused source, in parallel with the request that was refused."""
        now_ns = self._clock.now_ns
        plan = self._planner.plan([key], None, from_disk_only=False, is_engines=False, by_twins=False)
        if not plan.keys or len(plan.pinned) == len(plan.keys) or len(self._fetches) >= FETCHES_MAX:
            for chunk in plan.pinned.values():
                self._pool.unpin(chunk)
            for _, chunk, _ in plan.to_come:
                self._pool.abort(chunk)
            self._gate.probed(probe, None, now_ns)
            return
        deadline_ns = now_ns + int(limits.PROBE_DEADLINE_S * 1e9)
        self._begin_planned(plan, Purpose.PROBE, deadline_ns, self._probe_ended, None, probe)

    def _probe_ended(self, result: FetchResult) -> None:
        for chunk, _ in result.chunks:
            self._pool.unpin(chunk)

    def can_bring(self, key: ChunkKey) -> bool:
        """Whether a chunk is here, on its way, or known to be somewhere and not being written by an engine here."""
        if self._pool.find(key) is not None or key in self._inbound:
            return True
        return not self._pool.is_filling(key) and self._sources.find(key) is not None

    def cancel(self, number: FetchId) -> None:
        """Nobody wants it any more: `ended` is not called. Idempotent."""
        fetch = self._fetches.pop(number, None)
        if fetch is None:
            return
        self._reviews.ended(fetch)
        if fetch.purpose is not Purpose.TWIN:
            self._gate.cancelled(fetch.ticket)
        if fetch.probe is not None:
            self._gate.probed(fetch.probe, None, self._clock.now_ns)
        self._forget(fetch)
        self._handle(events.FetchCancelled(number))
        if fetch.purpose is not Purpose.TWIN:
            self._deliveries.count(Status.CANCELLED, (self._clock.now_ns - fetch.started_ns) / 1e9, ())

    def _want(self, fetch: Fetch, plan: FetchPlan, *, from_disk_only: bool) -> tuple[events.ChunkWanted, ...]:
        """The chunks to ask the reader for; those still to come are under way from now on."""
        holders = {}
        for found, chunk, route in plan.to_come:
            key, count = found.entry.key, self._segments_of(found.entry.size_bytes)
            self._inbound[key] = InboundChunk(
                chunk, found.entry, count, route, reckoned_bytes=plan.reckoned.get(key), twin=plan.twins.get(key)
            )
            holders[key] = found.holders
        wanted = []
        for key in fetch.keys:
            chunk_here = fetch.pinned.get(key)
            if chunk_here is not None:
                size_bytes = chunk_here.size_bytes
                wanted.append(events.ChunkWanted(key, self._segments_of(size_bytes), size_bytes, (), present=True))
                continue
            inbound = self._inbound[key]
            inbound.fetches.add(fetch.fetch)
            fetch.routes[key] = inbound.route
            if inbound.reckoned_bytes is not None:
                fetch.reckoned[key] = inbound.reckoned_bytes
            if from_disk_only:
                refs: tuple[events.HolderRef, ...] = ()
            elif key in holders:
                refs = holders[key]
            else:
                refs = self._sources.holders(inbound.entry)
            wanted.append(
                events.ChunkWanted(
                    key,
                    inbound.segments_count,
                    inbound.entry.size_bytes,
                    refs,
                    loading=inbound.route in _LOADED or inbound.twin is not None,
                    read_alone=inbound.route is Tier.REMOTE_DRAM and inbound.entry.served,
                )
            )
        return tuple(wanted)

    def _segments_of(self, size_bytes: int) -> int:
        return -(-size_bytes // self._parameters.segment_bytes)

    def _kept(self, key: ChunkKey) -> Chunk | None:
        """A chunk that arrived for a fetch under way and was dropped from the pool since: its bytes stay until that
        fetch is over, and the reader counts it as here."""
        if not self._fetches or not self._reader.is_here(key):
            return None
        return next(fetch.pinned[key] for fetch in self._fetches.values() if key in fetch.pinned)

    # ------------------------------------------------------------------ directory and parameters

    def directory_changed(self, keys: Iterable[ChunkKey], nodes_lost: Iterable[str]) -> None:
        """The replica has news: the reader hears what concerns chunks on their way."""
        changed: dict[ChunkKey, tuple[events.HolderRef, ...]] = {}
        for key in keys:
            if key in self._inbound:
                entry = self._directory.find(key)
                changed[key] = () if entry is None else self._sources.holders(entry)
        if changed:
            self._handle(events.HoldersChanged(changed))
        for name in nodes_lost:
            if self._fetches:
                self._handle(events.HolderLost(NodeId(name)))

    def holder_told(self, node: str, load: HolderLoad, *, with_ours: bool = False) -> None:
        """A holder that chunks are read from has queued so much for others; `with_ours`: and for this node."""
        holder = self._directory.node_named(node)
        if holder is None or not self._inbound:
            return
        coming = [one for one in self._inbound.values() if not one.whole and self._comes_from(one, holder)]
        if not coming:
            return
        if with_ours:
            load = load.without(sum(self.left_bytes(inbound) for inbound in coming if inbound.twin is None))
        numbers = {number for inbound in coming for number in inbound.fetches}
        waiting = [number for number in numbers if self._fetches[number].purpose is not Purpose.TWIN]
        self._reviews.told([self._fetches[number] for number in sorted(waiting)], load)

    @staticmethod
    def _comes_from(inbound: InboundChunk, holder: NodeEntry) -> bool:
        if inbound.last_source is None:
            return holder.node in inbound.entry.holders
        return inbound.last_source == holder.address

    def _cut(self, fetch: Fetch, count: int) -> None:
        self._handle(events.FetchCut(fetch.fetch, count))

    def switch_restarted(self) -> None:
        """Its tables are empty."""
        self._handle(events.SwitchChanged())

    def configure(self, parameters: ReaderParameters) -> None:
        """The node's parameters changed; another segment size ends all fetches under way."""
        if parameters == self._parameters:
            return
        before, self._parameters = self._parameters, parameters
        if parameters.segment_bytes != before.segment_bytes:
            self._restart()
        else:
            self._carry_out(self._reader.configure(parameters, self._clock.now_ns))

    # ------------------------------------------------------------------ the network

    def wanted(self, key: ChunkKey) -> Wanted | None:
        """The chunk of this key and which of its cast segments may be placed; None: they are not wanted."""
        inbound = self._inbound.get(key)
        missing = self._reader.missing(key) if inbound is not None else None
        return None if inbound is None or missing is None else Wanted(inbound.chunk, inbound.segments_count, missing)

    def controls_received(self, arrivals: Sequence[events.ControlReceived]) -> None:
        """NOTICEs and NAKs."""
        self._carry_out(self._reader.handle_all(arrivals, self._clock.now_ns))

    def casts_placed(self, arrivals: Sequence[events.SegmentsReceived]) -> None:
        """Casts came; those that were wanted lie in the pool. For an unwanted chunk a LEAVE may have been lost: the
        reader sends another while the switch still counts us as a reader."""
        for arrived in arrivals:
            inbound = self._inbound.get(arrived.key)
            if inbound is not None and self._reader.missing(arrived.key) is not None:
                inbound.last_source = arrived.source
                inbound.from_switch += arrived.from_switch
                inbound.from_casts += len(arrived.segments)
                inbound.unlooked += len(arrived.segments)
        self._carry_out(self._reader.handle_all(arrivals, self._clock.now_ns))
        enough = PIECES_MIN * PIECE_BYTES // self._parameters.segment_bytes
        for key in {arrived.key for arrived in arrivals}:
            inbound = self._inbound.get(key)
            if inbound is not None and inbound.unlooked >= enough:
                self._hash_early(key)

    def casts_unexpected(self, arrivals: Sequence[events.SegmentsReceived]) -> None:
        """Casts of chunks that the transport did not expect came, and are lost."""
        unwanted = []
        for arrived in arrivals:
            if self._reader.missing(arrived.key) is None:
                unwanted.append(arrived)
            else:
                # It is read by other means; casts that follow are welcome.
                self._expect_casts(arrived.key)
        if unwanted:
            self._emit(effects.DatagramsDropped("cast_unwanted", sum(len(one.segments) for one in unwanted)))
            self._carry_out(self._reader.handle_all(unwanted, self._clock.now_ns))

    def _expect_casts(self, key: ChunkKey) -> None:
        inbound, missing = self._inbound.get(key), self._reader.missing(key)
        if inbound is not None and missing is not None:
            self._emit(effects.ExpectCasts(inbound.chunk, missing))

    def _give_up(self, inbound: InboundChunk) -> None:
        """A chunk that did not become whole: nothing writes to it any more, and its memory goes back to the pool."""
        self.twins.given_up(inbound)
        self._emit(effects.ForgetCasts(inbound.chunk.key))
        self._early.forget(inbound)
        self._pool.abort(inbound.chunk)

    def read_event(self, event: events.ReadProgress | events.ReadDone | events.ReadFailed) -> None:
        """A reliable read progressed or ended; events of an aborted read come too late."""
        key = self._reads.key_of(event.read)
        if self._reads.heard(event):
            self._handle(event)
            if key is not None and isinstance(event, events.ReadDone):
                self._hash_early(key)

    def _hash_early(self, key: ChunkKey) -> None:
        """Some of a chunk came: what nobody writes any more is hashed while the rest comes."""
        inbound, unsettled = self._inbound.get(key), self._reader.unsettled(key)
        if inbound is not None and unsettled is not None:
            inbound.unlooked = 0
            self._early.look(inbound, unsettled, self._parameters.segment_bytes)

    def leaves_read(self, event: LeavesRead) -> None:
        """A holder's leaves: those that belong to the chunk's digest tell which segments are wrong."""
        key = self._wrong_bytes.unasked(event.read)
        inbound = self._inbound.get(key) if key is not None else None
        if self._reads.heard(event) and inbound is not None:
            wrong = self._wrong_bytes.judged(inbound, event, self._parameters.segment_bytes)
            self._handle(events.ChunkJudged(event.read, wrong))

    def judges_silence(self, now_ns: int) -> bool:
        """Whether the reader is about to draw conclusions from silence: first report everything that has come."""
        due_ns = self._reader_alarm.due_ns
        return due_ns is not None and due_ns <= now_ns

    def _reader_due(self) -> None:
        self._carry_out(self._reader.handle_timer(self._clock.now_ns))

    # ------------------------------------------------------------------ memory and disk

    def digest_computed(self, chunk: Chunk, hashed: Hashed) -> bool:
        """Returns whether it is the digest of a chunk on its way."""
        inbound = self._inbound.get(chunk.key)
        if inbound is None or inbound.chunk is not chunk:
            return False
        inbound.found = hashed
        good = hashed.digest == inbound.entry.digest
        if good:
            self._take_in(inbound, from_here=False)
        inbound.whole = good
        self._handle(events.ChunkVerified(chunk.key, good, bool(hashed.leaves)))
        return True

    def load_ended(self, into: Chunk, outcome: LoadOutcome, hashed: Hashed) -> None:
        """This node's disk, the cold store or a twin delivered, or did not. From the cold store only the bytes that
        are expected are taken."""
        self._pool.unpin(into)
        inbound = self._inbound.get(into.key)
        if inbound is None or inbound.chunk is not into:
            return
        wrong = inbound.route is Tier.COLD and hashed.digest != inbound.entry.digest
        if outcome is LoadOutcome.DONE and not wrong:
            inbound.found = hashed
            self._take_in(inbound, from_here=True)
            self._handle(events.ChunkLoaded(into.key))
        else:
            if inbound.route in _LOADED:
                inbound.route = Tier.REMOTE_DRAM
            inbound.reckoned_bytes = inbound.twin = inbound.decoded_from = None
            for number in inbound.fetches:
                self._fetches[number].reckoned.pop(into.key, None)
            self._handle(events.LoadFailed(into.key))

    def _take_in(self, inbound: InboundChunk, *, from_here: bool) -> None:
        """A chunk is whole and right: READY, and pinned for the fetches that want it."""
        chunk = inbound.chunk
        del self._inbound[chunk.key]
        self._pool.commit(chunk, inbound.found)
        asked_for = from_here
        for number in inbound.fetches:
            fetch = self._fetches[number]
            self._pool.pin(chunk)
            fetch.pinned[chunk.key] = chunk
            fetch.came_from[chunk.key] = inbound.last_source
            if inbound.decoded_from is not None:
                fetch.decoded[chunk.key] = inbound.decoded_from
            asked_for |= fetch.purpose not in _RUSH
        self._observer.copy_arrived(chunk, asked_for=asked_for)
        self.twins.came(chunk, inbound.last_source, inbound.came_as)

    def is_arriving(self, key: ChunkKey) -> bool:
        """Whether a chunk is on its way into the pool."""
        return key in self._inbound

    def put_instead(self, chunk: Chunk, hashed: Hashed) -> bool:
        """An engine has written a chunk beside the one that is on its way: it is the chunk, READY, and all who wait for
        it have it. Returns whether one was on its way; else nothing was done."""
        inbound = self._inbound.pop(chunk.key, None)
        if inbound is None:
            return False
        self._give_up(inbound)
        self._pool.commit(chunk, hashed)
        for number in inbound.fetches:
            fetch = self._fetches[number]
            self._pool.pin(chunk)
            fetch.pinned[chunk.key] = chunk
        self._handle(events.ChunkPut(chunk.key))
        return True

    # ------------------------------------------------------------------ the machine

    def close(self) -> None:
        """End all fetches without a word and give everything back."""
        self._reads.abort_all()
        for fetch in self._fetches.values():
            self._reviews.ended(fetch)
            self._forget(fetch)
        self._fetches.clear()
        self._abort_inbound()
        self.twins.close()

    def _abort_inbound(self) -> None:
        for inbound in self._inbound.values():
            self._give_up(inbound)
        self._inbound.clear()

    def _restart(self) -> None:
        """Deliver the chunks of every fetch that are here, and begin with a fresh reader."""
        self._reads.abort_all()
        for fetch in list(self._fetches.values()):
            places = [place for place, key in enumerate(fetch.keys) if key in fetch.pinned]
            if not fetch.any_order:
                places = [place for count, place in enumerate(places) if place == count]
            sources = (ChunkSource.LOCAL,) * len(places)
            self._deliver(DeliverFetch(fetch.fetch, Outcome.GONE, len(places), sources, tuple(places)))
        self._abort_inbound()
        self._reader = self._make_reader(self._parameters)

    def _handle(self, event: events.ReaderEvent) -> None:
        self._carry_out(self._reader.handle(event, self._clock.now_ns))

    def _carry_out(self, commands: list[ReaderCommand]) -> None:
        for command in commands:
            match command:
                case SendControl(message):
                    if message.op is Op.JOIN:
                        self._expect_casts(message.key)
                    self._emit(command)
                case StartRead():
                    self._start_read(command)
                case ReadLeaves():
                    self._wrong_bytes.asked(command)
                    self._reads.start_leaves(command, self._inbound[command.key])
                case SegmentsDropped():
                    self._wrong_bytes.dropped(command, self._inbound[command.key])
                case AbortRead(read):
                    self._wrong_bytes.unasked(read)
                    self._reads.abort(command)
                case VerifyChunk(key):
                    chunk = self._inbound[key].chunk
                    self._inbound[key].whole = True
                    self._pool.pin(chunk)
                    self._early.used(self._inbound[key])
                    self._emit(effects.ForgetCasts(key))
                    self._emit(effects.ComputeDigest(chunk, algorithm_of(self._inbound[key].entry.digest)))
                case DropChunk(key):
                    dropped = self._inbound.pop(key, None)
                    if dropped is not None:
                        self._give_up(dropped)
                case FetchProgress():
                    self._progressed(command)
                case DeliverFetch():
                    self._deliver(command)
                case ReportBadCopy():
                    self._wrong_bytes.report(command, self._inbound.get(command.key))
                case _:
                    assert_never(command)
        due_ns = self._reader.next_timeout_ns()
        if due_ns != self._reader_alarm.due_ns:
            self._reader_alarm.set(due_ns)

    def _start_read(self, command: StartRead) -> None:
        inbound, segment_bytes = self._inbound[command.key], self._parameters.segment_bytes
        self._reads.start(command, inbound, segment_bytes, self._wanted_of)

    def _wanted_of(self, holder: NodeEntry) -> int:
        """About what is still to come from a holder: chunks that have begun count whole."""
        return sum(
            inbound.entry.size_bytes
            for inbound in self._inbound.values()
            if not inbound.whole and inbound.twin is None and self._comes_from(inbound, holder)
        )

    def _progressed(self, command: FetchProgress) -> None:
        fetch = self._fetches.get(command.fetch)
        if fetch is not None and fetch.progressed is not None:
            first = command.leading - len(command.sources)
            came = zip(fetch.keys[first : command.leading], command.sources, strict=True)
            fetch.progressed(first, [(fetch.pinned[key], fetch.source_of(key, source)) for key, source in came])

    def _deliver(self, command: DeliverFetch) -> None:
        fetch = self._fetches.pop(command.fetch, None)
        if fetch is None:
            return
        self._reviews.ended(fetch)
        self._deliveries.over(fetch, command, self._forget)

    def _forget(self, fetch: Fetch) -> None:
        """Give back the fetch's own pins and its interest in chunks on their way."""
        for chunk in fetch.pinned.values():
            self._pool.unpin(chunk)
        fetch.pinned.clear()
        for key in fetch.keys:
            inbound = self._inbound.get(key)
            if inbound is not None:
                inbound.fetches.discard(fetch.fetch)
        if fetch.purpose in _RUSH:
            self._observer.fetch_over(fetch.keys)
