"""The fetching side: begins fetches, takes what arrives into the pool, ends fetches and learns from how they went.

One record a fetch (`Fetch`): the planner decides how far it goes and from where, `Arrivals` brings the chunks, and here
it is decided which are worth waiting for, who is answered, and who hears of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Final

from hostagent import limits
from hostagent.core import effects
from hostagent.core.arrivals import Arrivals, InboundChunk
from hostagent.core.behind import Reviews
from hostagent.core.clock import WINDOW, Work
from hostagent.core.events import LoadOutcome
from hostagent.core.fetch import Fetch, FetchObserver, FetchRequest, FetchResult, MakeReader, Progressed, Purpose, Stage
from hostagent.core.long_fetches import LongFetches
from hostagent.core.look_ups import LookUps
from hostagent.core.plan import FetchPlan, FetchPlanner, Ways
from hostagent.core.twins import Twins
from hostagent.core.waits import Waits
from hostagent.pool.chunks import Chunk
from hostagent.tree import Hashed
from kvchunk.ids import ChunkKey
from kvchunk.sources import NETWORK, ChunkSource
from kvclient.messages import Status
from kvpolicy.tiers.gate import Probe, Ticket
from kvpolicy.tiers.holder_load import HolderLoad
from kvpolicy.value import Tier, Touch
from kvproto import events
from kvproto.ids import FetchId, NodeId
from kvproto.session.parameters import ReaderParameters

_LOADED = frozenset({Tier.LOCAL_DISK, Tier.COLD})
"""Sources that no peer delivers: the shell loads from them."""
_RUSH = frozenset({Purpose.ENGINE, Purpose.STAND_IN})
"""What these bring is announced when they are over: until then everybody asks the one holder."""
_NOTHING: Final = (0, 0)
"""Chunks, and bytes."""
_TIERS = {
    ChunkSource.HOLDER: Tier.REMOTE_DRAM,
    ChunkSource.CAST: Tier.REMOTE_DRAM,
    ChunkSource.SWITCH: Tier.SWITCH,
    ChunkSource.DISK: Tier.LOCAL_DISK,
    ChunkSource.COLD: Tier.COLD,
}
"""The tier whose costs a chunk teaches, by how it came; REMOTE_DRAM also stands for a node that had it on disk."""


class Fetches:
    """All fetches of one node."""

    def __init__(self, ways: Ways, observer: FetchObserver, make_reader: MakeReader) -> None:
        node = ways.node
        self._directory = node.directory
        self._emit = node.emit
        self._clock = node.clock
        self._pool = node.pool
        self._sources = ways.sources
        self._gate = ways.gate
        self._claims = ways.claims
        self._observer = observer
        self._fetches: dict[FetchId, Fetch] = {}
        self._number = 0
        self._deadline_alarm = node.alarms.add(self._deadlines_passed)
        self.arrivals = Arrivals(node, make_reader, self._chunks_ended, ways.paths.doubted)
        self._under_way = self.arrivals.under_way
        self.look_ups = LookUps(node, self._under_way.__contains__)
        self.twins = Twins(ways, self, observer) if ways.forms.has_wire else None
        """None: every chunk crosses the network as it is."""
        self.planner = FetchPlanner(ways, self.arrivals, self.twins)
        self._windows = node.windows
        self._long = LongFetches(node, self.planner, self)
        self._reviews = Reviews(node, self.arrivals.left_of, self._fell_behind)
        self._untaught: list[Sequence[Touch]] = []
        self._teach_alarm = node.alarms.add(self.teach)
        self.waits = Waits(ways, self)

    # ------------------------------------------------------------------ figures

    @property
    def under_way_count(self) -> int:
        """Fetches, background ones included; not those that wait for something to be computed, and for nothing else."""
        return sum(bool(fetch.stages or fetch.unasked) for fetch in self._fetches.values())

    @property
    def busy(self) -> bool:
        """Whether an engine waits for something that is on its way."""
        return any(
            fetch.request.purpose is Purpose.ENGINE and (fetch.stages or fetch.unasked)
            for fetch in self._fetches.values()
        )

    @property
    def is_full(self) -> bool:
        """Whether no further fetch may begin."""
        return len(self._fetches) >= limits.FETCHES_MAX

    def is_arriving(self, key: ChunkKey) -> bool:
        """Whether a chunk is on its way into the pool."""
        return key in self._under_way

    def can_bring(self, key: ChunkKey) -> bool:
        """Whether a chunk is here, on its way, or known to be somewhere and not being written by an engine here."""
        if self._pool.find(key) is not None or key in self._under_way:
            return True
        return not self._pool.is_filling(key) and self._sources.find(key) is not None

    # ------------------------------------------------------------------ beginning

    def begin(
        self, request: FetchRequest, ended: Callable[[FetchResult], None], progressed: Progressed | None = None
    ) -> FetchId | None:
        """Bring chunks. `ended` comes once, unless it is cancelled; `progressed` is told of leading chunks that came.
        None: it has ended already."""
        if len(self._fetches) >= limits.FETCHES_MAX:
            ended(FetchResult(Status.BUSY, ()))
            return None
        fetch = self._record(request, ended, progressed)
        if not (request.may_wait and self.look_ups.is_partial):
            self._begin(fetch)
        elif len(request.keys) > WINDOW:
            self._long.find_nowhere(fetch, partial(self._look_up, fetch))
        else:
            self._look_up(fetch, filter(self.is_nowhere, request.keys))
        return fetch.number if fetch.number in self._fetches else None

    def _record(
        self, request: FetchRequest, ended: Callable[[FetchResult], None], progressed: Progressed | None
    ) -> Fetch:
        self._number += 1
        now_ns = self._clock.now_ns
        expected_ns = now_ns + int(request.expected_s * 1e9)
        fetch = Fetch(FetchId(self._number), request, ended, progressed, now_ns, request.deadline_ns)
        fetch.expected_ns = expected_ns
        if request.kept is not None:
            fetch.stopped = request.kept.status
        self._fetches[fetch.number] = fetch
        return fetch

    def _may_look_into_cold(self, request: FetchRequest) -> bool:
        return request.deadline_ns - self._clock.now_ns >= 4e9 * self._sources.cold.wait_max_s

    def _look_up(self, fetch: Fetch, nowhere: Iterable[ChunkKey]) -> None:
        """Go on when the controller has said who has what nothing is known of."""

        def go_on() -> None:
            if fetch.number in self._fetches:
                self._begin(fetch)

        if not self.look_ups.look(nowhere, go_on):
            self._begin(fetch)

    def _begin(self, fetch: Fetch) -> None:
        """All is known that others can say of who has its chunks, but the cold store."""
        request = fetch.request
        looks = request.may_wait and self._sources.cold.has_store and self._may_look_into_cold(request)
        if len(request.keys) > WINDOW:
            self._long.begin(fetch, self._look_into_cold if looks else None)
        elif not looks or not self._looks_into_cold(fetch):
            self._plan(fetch)

    def _looks_into_cold(self, fetch: Fetch) -> bool:
        nowhere = list(filter(self.is_nowhere, fetch.request.keys))
        return bool(nowhere) and self._look_into_cold(fetch, nowhere)

    def _look_into_cold(self, fetch: Fetch, nowhere: Sequence[ChunkKey]) -> bool:
        """Whether it goes on when the cold store has been asked for what nothing else has."""
        request = fetch.request
        prefill = request.prefill
        all_count = len(request.keys) + (0 if request.kept is None else len(request.kept.chunks))
        compute_s = None if prefill is None else prefill.compute_s * len(nowhere) / all_count

        def go_on() -> None:
            if fetch.number in self._fetches:
                if len(request.keys) > WINDOW:
                    self._long.begin(fetch, None)
                else:
                    self._plan(fetch)

        return self._sources.cold.look(nowhere, compute_s, go_on, any_order=request.any_order)

    def is_nowhere(self, key: ChunkKey) -> bool:
        """Whether nobody is known to have a chunk, or to be writing or computing it."""
        here = self.can_bring(key) or self._pool.is_filling(key)
        return not here and self._claims.find(key) is None

    def _plan(self, fetch: Fetch) -> None:
        """Bring what can be brought, and wait for what is being computed if the gate says so."""
        request = fetch.request
        if self._untaught:
            self.teach()
        plan = self.planner.plan(request)
        if request.traced:
            self._emit(self.planner.trace_of(plan, request.kept))
        if plan.awaited:
            self.waits.begin(fetch, plan)
        self._carry_out(fetch, plan)
        if plan.verdict.probe is not None:
            self._begin_probe(request.keys[plan.verdict.probe.place], plan.verdict.probe)
        self.learn_soon(plan.untaught)

    def bring_more(self, fetch: Fetch, count: int) -> None:
        """The first `count` chunks that it awaited can be brought."""
        keys = tuple(fetch.awaited[:count])
        del fetch.awaited[:count]
        if count > WINDOW or fetch.unasked:
            self._long.bring_more(fetch, keys)
            return
        self.teach()
        plan = self.planner.plan(fetch.request._replace(keys=keys, prefill=None, may_wait=False))
        if len(plan.keys) < count:
            self.waits.forget(fetch)
        self._carry_out(fetch, plan)
        self.learn_soon(plan.untaught)

    def is_under_way(self, fetch: Fetch) -> bool:
        """Whether it has not ended."""
        return fetch.number in self._fetches

    def decided(self, fetch: Fetch, plan: FetchPlan) -> Stage:
        """It is known how far a long fetch goes. What is here of it is pinned; nothing was asked for."""
        stage = Stage(self._clock.now_ns, 0, len(plan.keys), None)
        if plan.awaited:
            self.waits.begin(fetch, plan)
        if plan.stopped is not Status.OK:
            fetch.stopped = plan.stopped
        if plan.keys:
            fetch.stages.append(stage)
        if len(fetch.pinned) < len(plan.keys):
            self._start(fetch, stage, plan)
        if plan.verdict.probe is not None:
            self._begin_probe(plan.asked[plan.verdict.probe.place], plan.verdict.probe)
        if not fetch.unasked:
            self._advance(fetch)
        return stage

    def carry_on(self, fetch: Fetch, stage: Stage | None, plan: FetchPlan, keys: tuple[ChunkKey, ...]) -> None:
        """Ask for some more of a long fetch. `keys` follow on those before: the plan's, and those that were here.
        Without `stage` they are one by themselves."""
        if stage is None:
            stage = Stage(self._clock.now_ns, len(fetch.keys), len(fetch.keys) + len(keys), None)
            fetch.stages.append(stage)
            if len(plan.pinned) < len(plan.keys):
                self._start(fetch, stage, plan)
        fetch.keys += keys
        fetch.wanted_count = len(fetch.keys)
        fetch.pinned |= plan.pinned
        if plan.stopped is not Status.OK:
            fetch.stopped = plan.stopped
            if not fetch.request.any_order:
                self.waits.forget(fetch)
        if not fetch.unasked:
            stage.end = len(fetch.keys)
        if len(plan.pinned) < len(plan.keys):
            self._ask(fetch, stage, plan)
        if fetch.number in self._fetches:
            self._advance(fetch)

    def _carry_out(
        self, fetch: Fetch, plan: FetchPlan, ticket: Ticket | None = None, probe: Probe | None = None
    ) -> None:
        """The chunks of a plan join those of the fetch. `ticket`: of another fetch that this one works for."""
        now_ns, first = self._clock.now_ns, len(fetch.keys)
        fetch.keys += plan.keys
        fetch.wanted_count = len(fetch.keys)
        if plan.stopped is not Status.OK:
            fetch.stopped = plan.stopped
        fetch.pinned |= plan.pinned
        stage = Stage(now_ns, first, len(fetch.keys), ticket, probe)
        if plan.keys:
            fetch.stages.append(stage)
        if len(plan.pinned) < len(plan.keys):
            self._start(fetch, stage, plan)
            self._ask(fetch, stage, plan)
        if fetch.number in self._fetches and (plan.pinned or not fetch.stages):
            self._advance(fetch)

    def _start(self, fetch: Fetch, stage: Stage, plan: FetchPlan) -> None:
        """Something of a stage is to come: it is known when to give it up, and the gate knows of it."""
        now_ns, alarm = self._clock.now_ns, self._deadline_alarm
        if plan.verdict.give_up_s is not None:
            bound_ns = int(max(limits.GIVE_UP_S_MIN, plan.verdict.give_up_s) * 1e9)
            fetch.deadline_ns = min(fetch.deadline_ns, now_ns + bound_ns)
        if stage.ticket is None:
            # One who waits is judged as a whole when it is over; its stages teach what sources cost.
            verdict = plan.verdict._replace(recompute_s=None) if plan.awaited else plan.verdict
            stage.ticket = self._gate.started(verdict)
        if alarm.due_ns is None or fetch.deadline_ns < alarm.due_ns:
            alarm.set(fetch.deadline_ns)  # which may ring too early, for one that has ended

    def _ask(self, fetch: Fetch, stage: Stage, plan: FetchPlan) -> None:
        """Have what is still to come of a stage brought: by the reader, a load, or stand-ins."""
        from_disk_only = fetch.request.purpose is Purpose.DISK
        wanted: list[tuple[InboundChunk, tuple[events.HolderRef, ...]]] = []
        loads: list[effects.Effect] = []
        by_stand_in: list[InboundChunk] = []
        for found, chunk, route in plan.to_come:
            key = chunk.key
            inbound = self.arrivals.begin(chunk, found.entry, route)
            inbound.reckoned_bytes, inbound.stand_in = plan.reckoned.get(key), found.stand_in
            if found.stand_in is not None:
                by_stand_in.append(inbound)
            elif route in _LOADED:
                self._pool.pin(chunk)
                stored = found.stored.get(Tier.COLD)
                by_disk = route is Tier.LOCAL_DISK
                loads.append(
                    effects.LoadChunk(chunk) if by_disk else effects.LoadCold(chunk, found.entry.digest, stored)
                )
            else:
                wanted.append((inbound, () if from_disk_only else found.holders))
        for key in plan.keys:
            coming = self._under_way.get(key)
            if coming is None:
                continue  # it is here
            if coming.fetches and coming.is_asked and not from_disk_only:
                wanted.append((coming, self._sources.holders(coming.entry)))
            coming.fetches.add(fetch.number)
            fetch.routes[key] = coming.route
            if coming.reckoned_bytes is not None:
                fetch.reckoned[key] = coming.reckoned_bytes
        if stage.ticket is not None and stage.ticket.verdict.compute_left_s and not fetch.unasked:
            self._reviews.fetch_began(fetch, stage.ticket.verdict)
        if wanted:
            self.arrivals.want(wanted)
        for load in loads:
            self._emit(load)
        if by_stand_in and self.twins is not None and stage.ticket is not None:
            self.twins.bring([one for one in by_stand_in if one.fetches], fetch.deadline_ns, stage.ticket)

    def begin_planned(
        self, request: FetchRequest, plan: FetchPlan, ticket: Ticket, ended: Callable[[FetchResult], None]
    ) -> FetchId | None:
        """Bring what a plan says; `ticket` is of another fetch that this one works for. None: it has ended already."""
        fetch = self._record(request, ended, None)
        self._carry_out(fetch, plan, ticket)
        return fetch.number if fetch.number in self._fetches else None

    def _begin_probe(self, key: ChunkKey, probe: Probe) -> None:
        """Fetch one chunk from a refused source, in parallel with the request that was refused."""
        deadline_ns = self._clock.now_ns + int(limits.PROBE_DEADLINE_S * 1e9)
        request = FetchRequest((key,), Purpose.PROBE, deadline_ns)
        plan = self.planner.plan(request)
        if not plan.keys or len(plan.pinned) == len(plan.keys) or self.is_full:
            for chunk in plan.pinned.values():
                self._pool.unpin(chunk)
            for _, chunk, _ in plan.to_come:
                self._pool.abort(chunk)
            self._gate.probed(probe, None, self._clock.now_ns)
            return
        self._carry_out(self._record(request, self._probe_ended, None), plan, probe=probe)

    def _probe_ended(self, result: FetchResult) -> None:
        for chunk, _ in result.chunks:
            self._pool.unpin(chunk)

    # ------------------------------------------------------------------ what came

    def _chunks_ended(self, came: Sequence[tuple[InboundChunk, ChunkSource | None]]) -> None:
        """The reader has brought chunks, or says that nobody has them any more."""
        numbers: set[FetchId] = set()
        for inbound, source in came:
            numbers |= inbound.fetches
            if source is None:
                self._chunk_gone(inbound)
            else:
                self._take_in(inbound, source)
        self._advance_all(numbers)

    def _advance_all(self, numbers: Iterable[FetchId]) -> None:
        for number in sorted(numbers):
            fetch = self._fetches.get(number)
            if fetch is not None:
                self._advance(fetch)

    def _take_in(self, inbound: InboundChunk, source: ChunkSource, *, from_here: bool = False) -> None:
        """A chunk is whole and right, and no longer on its way: READY, and pinned for the fetches that want it."""
        chunk = inbound.chunk
        key, number_of_holder = chunk.key, 0
        if inbound.last_source is not None:
            holder = self._directory.node_at(inbound.last_source)
            number_of_holder = holder.node if holder is not None else 0
        asked_for = from_here
        for number in inbound.fetches:
            fetch = self._fetches.get(number)
            if fetch is None:
                continue  # it ended with what came at the same time
            self._pool.pin(chunk)
            fetch.pinned[key] = chunk
            fetch.sources[key] = source
            fetch.holders[key] = number_of_holder
            # The directory may have named new holders for a chunk that had none left.
            fetch.gone.discard(key)
            if inbound.decoded_from is not None:
                fetch.decoded.add(key)
            asked_for |= fetch.request.purpose not in _RUSH
        self._pool.commit(chunk, inbound.found)
        self._observer.copy_arrived(chunk, asked_for=asked_for)
        if self.twins is not None:
            self.twins.chunk_arrived(inbound)

    def _chunk_gone(self, inbound: InboundChunk) -> None:
        """No holder of a chunk is left: its fetches make do with what comes before it, or with all the others."""
        key = inbound.chunk.key
        for number in sorted(inbound.fetches):
            fetch = self._fetches.get(number)
            if fetch is None:
                continue
            fetch.missed = Status.UNAVAILABLE
            if fetch.request.any_order:
                fetch.gone.add(key)
            else:
                self._want_only(fetch, fetch.keys.index(key))

    def _want_only(self, fetch: Fetch, count: int) -> None:
        """Only its first `count` chunks are worth waiting for, and those that are here."""
        count = max(count, fetch.leading_count)
        if count >= fetch.wanted_count:
            return
        behind = fetch.keys[count : fetch.wanted_count]
        fetch.wanted_count = count
        fetch.unasked.clear()
        if fetch.awaited:
            self.waits.forget(fetch)
        self._give_up(self._release(fetch, behind))

    def _fell_behind(self, fetch: Fetch, count: int) -> None:
        """Waiting for more than its first `count` chunks is not worth it."""
        if count < fetch.wanted_count and not fetch.request.any_order:
            fetch.missed = Status.GATE
            self._want_only(fetch, count)
            self._advance(fetch)

    def wait_ended(self, fetch: Fetch, why: Status) -> None:
        """It waits for no more chunks to be computed; what is on its way still comes."""
        fetch.stopped = why
        self._advance(fetch)

    def _advance(self, fetch: Fetch) -> None:
        """Count the leading chunks that are here; end it when nothing more is worth waiting for."""
        keys, pinned = fetch.keys, fetch.pinned
        if fetch.request.any_order:
            is_over = len(pinned) + len(fetch.gone) >= len(keys) and not fetch.unasked
        else:
            leading = fetch.leading_count
            while leading < len(keys) and keys[leading] in pinned:
                leading += 1
            fetch.leading_count = leading
            is_over = leading >= fetch.wanted_count and not fetch.awaited and not fetch.unasked
        if is_over:
            self._end(fetch)
            return
        if fetch.progressed is not None and fetch.leading_count > fetch.told_count:
            first, fetch.told_count = fetch.told_count, fetch.leading_count
            keys = fetch.keys[first : fetch.told_count]
            fetch.progressed(first, [(fetch.pinned[key], fetch.sources.get(key, ChunkSource.LOCAL)) for key in keys])
        while fetch.stages and fetch.leading_count >= fetch.stages[0].end:
            self._stage_ended(fetch, fetch.stages.pop(0))

    # ------------------------------------------------------------------ the end

    def _end(self, fetch: Fetch) -> None:
        """Whoever asked gets what is here; the gate, the pools and the metrics learn from how it went."""
        del self._fetches[fetch.number]
        if fetch.review_ns is not None:
            self._reviews.fetch_ended(fetch)
        came = self._chunks_here(fetch)
        status = fetch.stopped if len(came) == len(fetch.keys) and not fetch.unasked else fetch.missed
        if fetch.verdict is not None:
            self.waits.fetch_ended(fetch, len(came))
        is_long, now_ns = len(fetch.keys) > WINDOW, self._clock.now_ns
        if not is_long:
            for stage in fetch.stages:
                if stage.ticket is not None:
                    self._teach_gate(fetch, stage, came, now_ns)
        delivered: list[tuple[Chunk, ChunkSource]] = []
        for key, chunk in came.items():
            delivered.append((chunk, fetch.sources.get(key, ChunkSource.LOCAL)))
            del fetch.pinned[key]  # it goes to whoever asked, with its pin
        unwanted = self._forget(fetch)
        fetch.ended(FetchResult(status, tuple(delivered), fetch.told_count))
        if is_long:
            self._windows.begin(self._learned(fetch, fetch.stages, came, now_ns))
        else:
            for stage in fetch.stages:
                self._tell_observer(fetch, stage, came, now_ns, fetch.keys[stage.first : stage.end])
        if unwanted:
            self._give_up(unwanted)
        if fetch.request.purpose is not Purpose.STAND_IN:
            self._count(fetch, status, delivered)

    def _stage_ended(self, fetch: Fetch, stage: Stage) -> None:
        """Chunks that were asked for together are here, and others are waited for."""
        came, now_ns = self._chunks_here(fetch), self._clock.now_ns
        if stage.end - stage.first > WINDOW:
            self._windows.begin(self._learned(fetch, [stage], came, now_ns))
            return
        self._teach_gate(fetch, stage, came, now_ns)
        self._tell_observer(fetch, stage, came, now_ns, fetch.keys[stage.first : stage.end])

    def _learned(self, fetch: Fetch, stages: Sequence[Stage], came: Mapping[ChunkKey, Chunk], now_ns: int) -> Work:
        """The gate learns from stages that ended at `now_ns`, and then everybody else."""
        for stage in stages:
            if stage.ticket is not None:
                self._teach_gate(fetch, stage, came, now_ns)
                yield
            for first in range(stage.first, stage.end, WINDOW):
                keys = fetch.keys[first : min(first + WINDOW, stage.end)]
                self._tell_observer(fetch, stage, came, now_ns, keys)
                yield

    @staticmethod
    def _chunks_here(fetch: Fetch) -> dict[ChunkKey, Chunk]:
        """The chunks that count, in the order of the keys: they are here, and so are all before them."""
        pinned = fetch.pinned
        if fetch.request.any_order:
            return {key: pinned[key] for key in fetch.keys if key in pinned}
        return {key: pinned[key] for key in fetch.keys[: fetch.leading_count]}

    def _teach_gate(self, fetch: Fetch, stage: Stage, came: Mapping[ChunkKey, Chunk], now_ns: int) -> None:
        """What the sources of a stage took that ended at `now_ns`."""
        ticket = stage.ticket
        if ticket is None:
            return
        arrived: dict[Tier, int] = {}
        brought = 0
        for key in fetch.keys[stage.first : stage.end]:
            chunk, source = came.get(key), fetch.sources.get(key)
            brought += chunk is not None
            if chunk is not None and source in _TIERS and key not in fetch.decoded:
                route = fetch.routes.get(key)
                tier = route if route is Tier.REMOTE_DISK else _TIERS[source]
                reckoned = fetch.reckoned.get(key) if route is tier else None
                arrived[tier] = arrived.get(tier, 0) + (chunk.size_bytes if reckoned is None else reckoned)
        seconds = (now_ns - stage.started_ns) / 1e9
        if fetch.request.purpose is Purpose.STAND_IN:
            self._gate.heard(ticket, arrived, seconds, now_ns)
        elif stage.probe is None:
            self._gate.ended(ticket, arrived, seconds, now_ns, brought=brought)
        else:
            self._gate.cancelled(ticket)
            alone = ticket.alone and not ticket.contended
            self._gate.probed(stage.probe, seconds if arrived else None, now_ns, alone=alone)

    def _tell_observer(
        self,
        fetch: Fetch,
        stage: Stage,
        came: Mapping[ChunkKey, Chunk],
        now_ns: int,
        keys: Sequence[ChunkKey],
    ) -> None:
        """What came of some keys of a stage that ended at `now_ns`, and what did not."""
        seconds = 0.0
        over: Sequence[ChunkKey] = ()
        if stage.ticket is not None:
            seconds = (now_ns - stage.started_ns) / 1e9
            if fetch.request.purpose in _RUSH:
                over = keys
        missed: ChunkKey | None = None
        uses: list[effects.ChunkUse] = []
        for key in keys:
            chunk = came.get(key)
            if chunk is None:
                missed = key if missed is None else missed
                uses.append(effects.ChunkUse(key, None, 0, seconds, 0, now_ns))
                continue
            # Of what was decoded, the stand-in crossed the network: that is told of it.
            source = ChunkSource.LOCAL if key in fetch.decoded else fetch.sources.get(key, ChunkSource.LOCAL)
            network_bytes = chunk.size_bytes if source in NETWORK else 0
            uses.append(effects.ChunkUse(key, source, network_bytes, seconds, fetch.holders.get(key, 0), now_ns))
        self._observer.chunks_used(uses, over)
        if missed is not None:
            self._directory.failed(missed)

    def _count(self, fetch: Fetch, status: Status, delivered: Sequence[tuple[Chunk, ChunkSource]]) -> None:
        """For the metrics; background work goes on if no engine waits any more."""
        began_ns, brought = fetch.started_ns, dict[ChunkSource, tuple[int, int]]()
        kept = fetch.request.kept
        if kept is not None and kept.chunks and status is not Status.CANCELLED:
            began_ns = kept.asked_ns
            brought[ChunkSource.LOCAL] = len(kept.chunks), kept.size_bytes
        for chunk, source in delivered:
            count, size_bytes = brought.get(source, _NOTHING)
            brought[source] = count + 1, size_bytes + chunk.size_bytes
        if status is fetch.missed is Status.GATE:
            status = Status.DEADLINE  # an engine waited in vain: operators look for that, whoever ended it
        told = tuple((source, *figures) for source, figures in brought.items())
        self._emit(effects.FetchEnded(status, (self._clock.now_ns - began_ns) / 1e9, told))
        if not self._fetches or not self.busy:
            self._observer.engines_served()

    def cancel(self, number: FetchId) -> None:
        """Nobody wants it any more: `ended` is not called. Idempotent."""
        fetch = self._fetches.pop(number, None)
        if fetch is None:
            return
        self.waits.forget(fetch)
        if fetch.review_ns is not None:
            self._reviews.fetch_ended(fetch)
        for stage in fetch.stages:
            if stage.ticket is not None and fetch.request.purpose is not Purpose.STAND_IN:
                self._gate.cancelled(stage.ticket)
            if stage.probe is not None:
                self._gate.probed(stage.probe, None, self._clock.now_ns)
        if fetch.stages and fetch.request.purpose in _RUSH:
            self._observer.fetch_over(fetch.keys)
        self._give_up(self._forget(fetch))
        if fetch.request.purpose is not Purpose.STAND_IN:
            self._count(fetch, Status.CANCELLED, ())

    def _forget(self, fetch: Fetch) -> list[InboundChunk]:
        """Give back the fetch's own pins and its interest in chunks on their way. Returns those that nobody wants."""
        for chunk in fetch.pinned.values():
            self._pool.unpin(chunk)
        fetch.pinned.clear()
        if not self._fetches:
            self._deadline_alarm.due_ns = None
        return self._release(fetch, fetch.keys) if self._under_way else []

    def _release(self, fetch: Fetch, keys: Iterable[ChunkKey]) -> list[InboundChunk]:
        """It wants these no more. Returns those that nobody wants."""
        unwanted = []
        for key in keys:
            inbound = self._under_way.get(key)
            if inbound is not None and fetch.number in inbound.fetches:
                inbound.fetches.discard(fetch.number)
                if not inbound.fetches:
                    unwanted.append(inbound)
        return unwanted

    def _give_up(self, unwanted: Sequence[InboundChunk]) -> None:
        """Nobody wanted these, and nobody has asked for them since."""
        if len(unwanted) > WINDOW:
            self._windows.begin(self._given_up(unwanted))
            return
        unwanted = [one for one in unwanted if not one.fetches and self._under_way.get(one.chunk.key) is one]
        self._abandon(unwanted)

    def _given_up(self, unwanted: Sequence[InboundChunk]) -> Work:
        """From the end: what comes first may come after all."""
        for end in range(len(unwanted), 0, -WINDOW):
            self._give_up(unwanted[max(0, end - WINDOW) : end])
            yield

    def _abandon(self, inbounds: Sequence[InboundChunk]) -> None:
        """These do not come any more."""
        if self.twins is not None:
            for inbound in inbounds:
                self.twins.given_up(inbound)
        self.arrivals.give_up(inbounds)

    # ------------------------------------------------------------------ time

    def _deadlines_passed(self) -> None:
        """Every fetch whose deadline has passed ends with what is here."""
        now_ns = self._clock.now_ns
        for fetch in [fetch for fetch in self._fetches.values() if fetch.stages and fetch.deadline_ns <= now_ns]:
            if fetch.number in self._fetches:
                fetch.missed = fetch.overdue(now_ns)
                if fetch.awaited:
                    self.waits.deadline_passed(fetch)
                self._end(fetch)
        self._deadline_alarm.set(
            min((fetch.deadline_ns for fetch in self._fetches.values() if fetch.stages), default=None)
        )

    def judges_silence(self, now_ns: int) -> bool:
        """Whether conclusions from silence are about to be drawn: first report everything that has come."""
        for due_ns in (self._deadline_alarm.due_ns, self.arrivals.reader_alarm.due_ns):
            if due_ns is not None and due_ns <= now_ns:
                return True
        return False

    # ------------------------------------------------------------------ what the pools learn

    def learn_soon(self, touches: Sequence[Touch]) -> None:
        """The pools learn from a fetch once its engine has been answered, or a holder asked: others go on meanwhile."""
        if touches:
            self._untaught.append(touches)
            self._teach_alarm.set(self._clock.now_ns)

    def teach(self) -> None:
        """Have the pools learn from the fetches before, if they have not."""
        self._teach_alarm.due_ns = None
        untaught, self._untaught = self._untaught, []
        for touches in untaught:
            self.planner.teach(touches)

    # ------------------------------------------------------------------ directory and parameters

    def directory_changed(self, keys: Iterable[ChunkKey], nodes_lost: Iterable[str]) -> None:
        """The replica has news: the reader is told what concerns chunks on their way."""
        if not self._under_way:
            return
        changed: dict[ChunkKey, tuple[events.HolderRef, ...]] = {}
        for key in keys:
            if key in self._under_way:
                entry = self._directory.find(key)
                changed[key] = () if entry is None else self._sources.holders(entry)
        self.arrivals.directory_changed(changed, [events.HolderLost(NodeId(name)) for name in nodes_lost])

    def holder_told(self, node: str, load: HolderLoad, *, with_ours: bool = False) -> None:
        """A holder that chunks are read from has queued so much for others; `with_ours`: and for this node."""
        holder = self._directory.node_named(node) if self._under_way else None
        if holder is None:
            return
        coming = self.arrivals.coming_from(holder)
        if not coming:
            return
        if with_ours:
            load = load.without(
                sum(self.arrivals.left_bytes(inbound) for inbound in coming if inbound.stand_in is None)
            )
        numbers = {number for inbound in coming for number in inbound.fetches}
        waiting = [self._fetches[number] for number in sorted(numbers)]
        self._reviews.load_changed([fetch for fetch in waiting if fetch.request.purpose is not Purpose.STAND_IN], load)

    def configure(self, parameters: ReaderParameters) -> None:
        """The node's parameters changed; another segment size ends all fetches under way."""
        before = self.arrivals.parameters
        if parameters.segment_bytes != before.segment_bytes:
            self.arrivals.abort_reads()
            for fetch in [fetch for fetch in self._fetches.values() if fetch.stages]:
                fetch.missed = Status.UNAVAILABLE
                self.waits.forget(fetch)
                self._end(fetch)
            self.arrivals.restart(parameters)
        elif parameters != before:
            self.arrivals.configure(parameters)

    # ------------------------------------------------------------------ memory and disk

    def load_ended(self, into: Chunk, outcome: LoadOutcome, hashed: Hashed) -> None:
        """This node's disk, the cold store or a stand-in delivered, or did not. From the cold store only the bytes that
        are expected are taken."""
        self._pool.unpin(into)
        inbound = self._under_way.get(into.key)
        if inbound is None or inbound.chunk is not into:
            return
        numbers = frozenset(inbound.fetches)
        if outcome is LoadOutcome.DONE and (inbound.route is not Tier.COLD or hashed.digest == inbound.entry.digest):
            del self._under_way[into.key]
            inbound.found = hashed
            by_disk = ChunkSource.COLD if inbound.route is Tier.COLD else ChunkSource.DISK
            self._take_in(inbound, inbound.decoded_from or by_disk, from_here=True)
        else:
            if inbound.route in _LOADED:
                inbound.route = Tier.REMOTE_DRAM
            inbound.reckoned_bytes = inbound.stand_in = inbound.decoded_from = None
            for number in numbers:
                self._fetches[number].reckoned.pop(into.key, None)
            if all(self._fetches[number].request.purpose is Purpose.DISK for number in numbers):
                self._chunk_gone(inbound)
            else:
                self.arrivals.want([(inbound, self._sources.holders(inbound.entry))])
        self._advance_all(numbers)

    def put_instead(self, chunk: Chunk, hashed: Hashed) -> None:
        """An engine has written a chunk beside the one that is on its way: it is the chunk, READY, and all who wait for
        it have it."""
        inbound = self._under_way[chunk.key]
        self._abandon([inbound])
        self._pool.commit(chunk, hashed)
        for number in inbound.fetches:
            fetch = self._fetches[number]
            self._pool.pin(chunk)
            fetch.pinned[chunk.key] = chunk
        self._advance_all(inbound.fetches)

    def close(self) -> None:
        """End all fetches without a word and give everything back."""
        self.waits.close()
        self.arrivals.abort_reads()
        for fetch in self._fetches.values():
            if fetch.review_ns is not None:
                self._reviews.fetch_ended(fetch)
            for chunk in fetch.pinned.values():
                self._pool.unpin(chunk)
        self._fetches.clear()
        self._deadline_alarm.due_ns = None
        self._abandon(list(self._under_way.values()))
        if self.twins is not None:
            self.twins.close()
