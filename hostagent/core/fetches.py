"""The fetching side: begins fetches, and takes what arrives into the pool.

Owns the pins of fetches. The planner decides how far a fetch goes, and from where; `Arrivals` brings the chunks;
`Deliveries` ends the fetch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from hostagent import limits
from hostagent.core import effects
from hostagent.core.arrivals import Arrivals
from hostagent.core.behind import Reviews
from hostagent.core.claims import Computed
from hostagent.core.deliveries import Deliveries
from hostagent.core.events import LoadOutcome
from hostagent.core.fetch import Fetch, FetchObserver, FetchResult, MakeReader, Progressed, Purpose
from hostagent.core.forms import Forms
from hostagent.core.inbound import InboundChunk
from hostagent.core.node import Node
from hostagent.core.plan import FetchPlan, FetchPlanner
from hostagent.core.sources import Sources
from hostagent.core.twin_fetches import TwinFetches
from hostagent.core.twins import Twins
from hostagent.pool.chunks import Chunk
from hostagent.pool.tenants import NOBODY
from hostagent.tree import Hashed
from kvchunk.ids import ChunkKey
from kvchunk.sources import ChunkSource
from kvclient.messages import Status
from kvpolicy.tiers.gate import Gate, Prefill, Probe, Ticket
from kvpolicy.tiers.holder_load import HolderLoad
from kvpolicy.tiers.quote import Quote
from kvpolicy.value import Tier
from kvproto import events
from kvproto.commands import (
    DeliverFetch,
    FetchProgress,
    Outcome,
)
from kvproto.ids import FetchId, NodeId
from kvproto.limits import FETCHES_MAX
from kvproto.session.parameters import ReaderParameters

_LOADED = frozenset({Tier.LOCAL_DISK, Tier.COLD})
"""Sources that no peer delivers: the shell loads from them. The reader tells none of them from the disk."""


_RUSH = frozenset({Purpose.ENGINE, Purpose.TWIN})
"""What these bring is announced when they are over: until then everybody asks the one holder."""


class Fetches:
    """One node's."""

    def __init__(
        self,
        node: Node,
        sources: Sources,
        gate: Gate,
        observer: FetchObserver,
        computed: Callable[[ChunkKey], Computed | None],
        forms: Forms,
        twins: Twins,
        make_reader: MakeReader,
    ) -> None:
        """`computed(key)`: whether somebody computes a chunk."""
        self._clock = node.clock
        self._emit = node.emit
        self._pool = node.pool
        self._directory = node.directory
        self._sources = sources
        self._gate = gate
        self._observer = observer
        self._fetches: dict[FetchId, Fetch] = {}
        self.arrivals = Arrivals(node, make_reader, self)
        self._under_way = self.arrivals.under_way
        self._fetch_id = 0
        self._reviews = Reviews(node, gate, self.arrivals.left_of, self._cut)
        self._planner = FetchPlanner(
            node,
            sources,
            gate,
            self._under_way,
            self.arrivals.left_bytes,
            self._kept,
            computed,
            forms,
            twins,
        )
        self.twins = TwinFetches(node, twins, forms.costs, self._bring_twins, self.cancel, self.load_ended)
        self._deliveries = Deliveries(node, gate, self._planner, observer, lambda: self.busy)

    # ------------------------------------------------------------------ figures

    @property
    def under_way_count(self) -> int:
        """Fetches, background ones included."""
        return len(self._fetches)

    @property
    def busy(self) -> bool:
        """Whether an engine waits for something."""
        return any(fetch.purpose is Purpose.ENGINE for fetch in self._fetches.values())

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
        self.arrivals.handle(events.FetchRequested(fetch.fetch, wanted, deadline_ns, any_order))
        for found, chunk, route in plan.to_come:
            inbound = self._under_way.get(found.entry.key)
            if route in _LOADED and inbound is not None and inbound.chunk is chunk:
                self._pool.pin(chunk)
                by_disk = route is Tier.LOCAL_DISK
                stored = found.stored.get(Tier.COLD)
                self._emit(effects.LoadChunk(chunk) if by_disk else effects.LoadCold(chunk, found.entry.digest, stored))
        by_twins = [self._under_way[key] for key in plan.twins if key in self._under_way]
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
        if self._pool.find(key) is not None or key in self._under_way:
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
        self.arrivals.handle(events.FetchCancelled(number))
        if fetch.purpose is not Purpose.TWIN:
            self._deliveries.count(Status.CANCELLED, (self._clock.now_ns - fetch.started_ns) / 1e9, ())

    def _want(self, fetch: Fetch, plan: FetchPlan, *, from_disk_only: bool) -> tuple[events.ChunkWanted, ...]:
        """The chunks to ask the reader for; those still to come are under way from now on."""
        holders = {}
        for found, chunk, route in plan.to_come:
            key, count = found.entry.key, self._segments_of(found.entry.size_bytes)
            self._under_way[key] = InboundChunk(
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
            inbound = self._under_way[key]
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
        return -(-size_bytes // self.arrivals.parameters.segment_bytes)

    def _kept(self, key: ChunkKey) -> Chunk | None:
        """A chunk that arrived for a fetch under way and was dropped from the pool since: its bytes stay until that
        fetch is over, and the reader counts it as here."""
        if not self._fetches or not self.arrivals.is_here(key):
            return None
        return next(fetch.pinned[key] for fetch in self._fetches.values() if key in fetch.pinned)

    # ------------------------------------------------------------------ directory and parameters

    def directory_changed(self, keys: Iterable[ChunkKey], nodes_lost: Iterable[str]) -> None:
        """The replica has news: the reader hears what concerns chunks on their way."""
        changed: dict[ChunkKey, tuple[events.HolderRef, ...]] = {}
        for key in keys:
            if key in self._under_way:
                entry = self._directory.find(key)
                changed[key] = () if entry is None else self._sources.holders(entry)
        if changed:
            self.arrivals.handle(events.HoldersChanged(changed))
        for name in nodes_lost:
            if self._fetches:
                self.arrivals.handle(events.HolderLost(NodeId(name)))

    def holder_told(self, node: str, load: HolderLoad, *, with_ours: bool = False) -> None:
        """A holder that chunks are read from has queued so much for others; `with_ours`: and for this node."""
        holder = self._directory.node_named(node)
        if holder is None or not self._under_way:
            return
        coming = [one for one in self._under_way.values() if not one.whole and self.arrivals.comes_from(one, holder)]
        if not coming:
            return
        if with_ours:
            load = load.without(sum(self.arrivals.left_bytes(inbound) for inbound in coming if inbound.twin is None))
        numbers = {number for inbound in coming for number in inbound.fetches}
        waiting = [number for number in numbers if self._fetches[number].purpose is not Purpose.TWIN]
        self._reviews.told([self._fetches[number] for number in sorted(waiting)], load)

    def _cut(self, fetch: Fetch, count: int) -> None:
        self.arrivals.handle(events.FetchCut(fetch.fetch, count))

    def switch_restarted(self) -> None:
        """Its tables are empty."""
        self.arrivals.handle(events.SwitchChanged())

    def configure(self, parameters: ReaderParameters) -> None:
        """The node's parameters changed; another segment size ends all fetches under way."""
        before = self.arrivals.parameters
        if parameters.segment_bytes != before.segment_bytes:
            self._restart(parameters)
        elif parameters != before:
            self.arrivals.configure(parameters)

    # ------------------------------------------------------------------ memory and disk

    def digest_computed(self, chunk: Chunk, hashed: Hashed) -> bool:
        """Returns whether it is the digest of a chunk on its way."""
        inbound = self._under_way.get(chunk.key)
        if inbound is None or inbound.chunk is not chunk:
            return False
        inbound.found = hashed
        self.proven([inbound])
        return True

    def proven(self, inbounds: Sequence[InboundChunk]) -> None:
        """See `FetchesOfArrivals`."""
        verified = []
        for inbound in inbounds:
            key, found = inbound.chunk.key, inbound.found
            if self._under_way.get(key) is not inbound:
                continue  # it was given up by what came with it
            inbound.whole = found.digest == inbound.entry.digest
            if inbound.whole:
                self._take_in(inbound, from_here=False)
            verified.append(events.ChunkVerified(key, inbound.whole, bool(found.leaves)))
        self.arrivals.handle_all(verified)

    def load_ended(self, into: Chunk, outcome: LoadOutcome, hashed: Hashed) -> None:
        """This node's disk, the cold store or a twin delivered, or did not. From the cold store only the bytes that
        are expected are taken."""
        self._pool.unpin(into)
        inbound = self._under_way.get(into.key)
        if inbound is None or inbound.chunk is not into:
            return
        wrong = inbound.route is Tier.COLD and hashed.digest != inbound.entry.digest
        if outcome is LoadOutcome.DONE and not wrong:
            inbound.found = hashed
            self._take_in(inbound, from_here=True)
            self.arrivals.handle(events.ChunkLoaded(into.key))
        else:
            if inbound.route in _LOADED:
                inbound.route = Tier.REMOTE_DRAM
            inbound.reckoned_bytes = inbound.twin = inbound.decoded_from = None
            for number in inbound.fetches:
                self._fetches[number].reckoned.pop(into.key, None)
            self.arrivals.handle(events.LoadFailed(into.key))

    def _take_in(self, inbound: InboundChunk, *, from_here: bool) -> None:
        """A chunk is whole and right: READY, and pinned for the fetches that want it."""
        chunk = inbound.chunk
        del self._under_way[chunk.key]
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
        return key in self._under_way

    def put_instead(self, chunk: Chunk, hashed: Hashed) -> bool:
        """An engine has written a chunk beside the one that is on its way: it is the chunk, READY, and all who wait for
        it have it. Returns whether one was on its way; else nothing was done."""
        inbound = self._under_way.pop(chunk.key, None)
        if inbound is None:
            return False
        self.arrivals.give_up(inbound)
        self._pool.commit(chunk, hashed)
        for number in inbound.fetches:
            fetch = self._fetches[number]
            self._pool.pin(chunk)
            fetch.pinned[chunk.key] = chunk
        self.arrivals.handle(events.ChunkPut(chunk.key))
        return True

    # ------------------------------------------------------------------ the machine

    def close(self) -> None:
        """End all fetches without a word and give everything back."""
        self.arrivals.abort_reads()
        for fetch in self._fetches.values():
            self._reviews.ended(fetch)
            self._forget(fetch)
        self._fetches.clear()
        self.arrivals.abort_chunks()
        self.twins.close()

    def _restart(self, parameters: ReaderParameters) -> None:
        """Deliver the chunks of every fetch that are here, and begin with a fresh reader."""
        self.arrivals.abort_reads()
        for fetch in list(self._fetches.values()):
            places = [place for place, key in enumerate(fetch.keys) if key in fetch.pinned]
            if not fetch.any_order:
                places = [place for count, place in enumerate(places) if place == count]
            sources = (ChunkSource.LOCAL,) * len(places)
            self.deliver(DeliverFetch(fetch.fetch, Outcome.GONE, len(places), sources, tuple(places)))
        self.arrivals.restart(parameters)

    def given_up(self, inbound: InboundChunk) -> None:
        """See `FetchesOfArrivals`."""
        self.twins.given_up(inbound)

    def progressed(self, command: FetchProgress) -> None:
        """See `FetchesOfArrivals`."""
        fetch = self._fetches.get(command.fetch)
        if fetch is not None and fetch.progressed is not None:
            first = command.leading - len(command.sources)
            came = zip(fetch.keys[first : command.leading], command.sources, strict=True)
            fetch.progressed(first, [(fetch.pinned[key], fetch.source_of(key, source)) for key, source in came])

    def deliver(self, command: DeliverFetch) -> None:
        """See `FetchesOfArrivals`."""
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
            inbound = self._under_way.get(key)
            if inbound is not None:
                inbound.fetches.discard(fetch.fetch)
        if fetch.purpose in _RUSH:
            self._observer.fetch_over(fetch.keys)
