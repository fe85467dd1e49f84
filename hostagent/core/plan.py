"""How far the keys of a fetch are brought, and from where: the gate's verdict carried into the pool.

Pins chunks that are here and reserves room for those still to come. What is being computed has no room yet: `Waits`
has it fetched when it is there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

from hostagent.core.arrivals import Arrivals, InboundChunk
from hostagent.core.claims import Claims
from hostagent.core.directory import ChunkEntry
from hostagent.core.effects import FetchPlanned
from hostagent.core.fetch import FetchRequest, Purpose
from hostagent.core.node import Node
from hostagent.core.sources import Found, Known, Sources
from hostagent.core.twins import CROSSING, Twin, Twins
from hostagent.pool.chunks import Chunk, Refusal, touch_of
from kvchunk.ids import ChunkKey
from kvclient.messages import Status
from kvcodec.forms import StoredForm
from kvpolicy.tiers.gate import Choice, Gate, Offer, Prefill, Verdict
from kvpolicy.tiers.gate_plan import NOTHING_RECKONED
from kvpolicy.tiers.quote import Quote, quote
from kvpolicy.value import Tier, Touch

_NOTHING: Final[Mapping[Tier, int]] = MappingProxyType({})


@dataclass(slots=True)
class FetchPlan:
    """The plan of one fetch."""

    verdict: Verdict
    stopped: Status
    """Why the keys asked for go no further than `keys`; OK when they do."""
    keys: tuple[ChunkKey, ...] = ()
    awaited: tuple[ChunkKey, ...] = ()
    """What follows on `keys`: chunks that are being computed, and those behind them."""
    pinned: dict[ChunkKey, Chunk] = field(default_factory=dict)
    to_come: list[tuple[Found, Chunk, Tier]] = field(default_factory=list)
    """Chunks with room in the pool, FILLING, and where each is asked of."""
    reckoned: dict[ChunkKey, int] = field(default_factory=dict)
    """Of these, bytes that the gate reckoned with, where not the chunk's own."""
    twins: dict[ChunkKey, Twin] = field(default_factory=dict)
    """Of these, those that come by their twins."""
    untaught: Sequence[Touch] = ()
    """What the pools are to learn when the engine has its chunks, or others have been asked for them: that comes
    first."""


class FetchPlanner:
    """Of one node. What is being written here by an engine, it leaves out."""

    def __init__(
        self, node: Node, sources: Sources, gate: Gate, claims: Claims, twins: Twins, arrivals: Arrivals
    ) -> None:
        self._forms = twins.forms
        self._twins = twins
        self._clock = node.clock
        self._pool = node.pool
        self._disk = node.disk
        self._sources = sources
        self._gate = gate
        self._inbound = arrivals.under_way
        self._left_bytes = arrivals.left_bytes
        self._computed = claims.find

    def plan(self, request: FetchRequest) -> FetchPlan:
        """Local chunks are pinned and room is reserved for the others when it returns."""
        keys, any_order, tenant = request.keys, request.any_order, request.tenant
        from_disk_only = request.purpose is Purpose.DISK
        by_twins = request.purpose is not Purpose.PROBE
        offers: list[Offer] = []
        offered: list[ChunkKey] = []
        here: dict[ChunkKey, Chunk] = {}
        found: dict[ChunkKey, Found] = {}
        twins: dict[ChunkKey, Twin] = {}
        known: Known = {}
        unready: int | None = None
        for key in keys:
            offer = self._offer(key, here, found, twins if by_twins else None, known, from_disk_only=from_disk_only)
            if offer is None and any_order:
                continue
            if offer is None and request.may_wait:
                offer = self._offer_computed(key, request.expected_s, offers[-1].size_bytes if offers else 0)
                unready = len(offers) if offer is not None and unready is None else unready
            if offer is None:
                break
            offers.append(offer)
            offered.append(key)
        wanted = {key: _wanted(one.entry) for key, one in found.items()}
        is_engines = request.purpose is Purpose.ENGINE
        touches = self._touches(offered, here, wanted) if is_engines else []
        if found and touches and not self._pool.has_room([one.entry.size_bytes for one in found.values()]):
            # Others may have to go: what this request says of all of them counts.
            self.teach(touches)
            touches = []
        absent = len(keys) - len(offers)
        verdict = self._gate.decide(offers, request.prefill, self._clock.now_ns, absent, self._under_way())
        count = len(verdict.routes)
        stopped = Status.GATE if count < len(offers) else Status.NOT_FOUND if absent else Status.OK
        ready = count if unready is None else min(count, unready)
        plan = FetchPlan(verdict, stopped, tuple(offered[:ready]), tuple(offered[ready:count]), untaught=touches)
        routes = dict(zip(plan.keys, verdict.routes, strict=False))
        # Pin all of them first: making room for one chunk must not evict another of the same fetch.
        for key in plan.keys:
            if key in here and not self._pin(plan, here[key], tenant):
                self._leave_out(plan, key, Status.POOL_FULL, any_order=any_order)
                if not any_order:
                    break
        coming = [key for key in plan.keys if key in found]
        if not coming:
            return plan
        made = self._pool.reserve_all([wanted[key] for key in coming], tenant, any_order=any_order)
        for key, room in zip(coming, made, strict=False):
            one = found[key]
            if isinstance(room, Refusal):
                # FILLING: an engine here is putting this very chunk; it will be there by itself in a moment.
                why = Status.FILLING if room is Refusal.FILLING else Status.POOL_FULL
                self._leave_out(plan, key, why, any_order=any_order)
            else:
                self._take_in(plan, one, room, routes[key], twins)
        return plan

    def _pin(self, plan: FetchPlan, chunk: Chunk, tenant: str) -> bool:
        """Keep a chunk that is here; False: its tenant holds too much already."""
        if not self._pool.lend(chunk, tenant):
            return False
        self._pool.pin(chunk)
        plan.pinned[chunk.key] = chunk
        return True

    def _leave_out(self, plan: FetchPlan, key: ChunkKey, why: Status, *, any_order: bool) -> None:
        """Do without a chunk, and unless chunks may come in any order without those behind it."""
        if any_order:
            plan.keys, plan.stopped = tuple(one for one in plan.keys if one != key), why
        else:
            self._cut(plan, key, why)

    def told(self, plan: FetchPlan) -> FetchPlanned:
        """A plan just made, for who traces the fetch."""
        asked = {chunk.key: (chunk.size_bytes, route) for _, chunk, route in plan.to_come}
        for key in plan.keys:
            if key not in plan.pinned and key not in asked:
                inbound = self._inbound[key]
                asked[key] = inbound.entry.size_bytes, inbound.route
        to_come = tuple((key, *asked[key]) for key in plan.keys if key in asked)
        verdict = plan.verdict
        return FetchPlanned(
            tuple(plan.pinned),
            to_come,
            plan.awaited,
            verdict.choice,
            plan.stopped,
            verdict.expected_s,
            verdict.recompute_s,
        )

    def quote(self, keys: Sequence[ChunkKey], prefill: Prefill | None) -> Quote:
        """What it would take this node to have these chunks; nothing is learned, pinned or asked for."""
        offers: list[Offer] = []
        known: Known = {}
        for key in keys:
            offer = self._offer(key, {}, {}, {}, known, from_disk_only=False)
            if offer is None:
                break
            offers.append(offer)
        return quote(self._gate.costs, offers, len(keys) - len(offers), prefill, self._under_way())

    def _under_way(self) -> Mapping[Tier, int]:
        """Bytes left to come for other fetches, by where they were asked of."""
        if not self._inbound:
            return _NOTHING
        left: Counter[Tier] = Counter()
        for inbound in self._inbound.values():
            if inbound.twin is None:  # else what is on its way is the twin
                left[inbound.route] += self._left_bytes(inbound)
        return left

    def teach(self, touches: Sequence[Touch]) -> None:
        """An engine asks for these: the pools learn what they are worth, wherever they are."""
        if touches:
            self._pool.fetched(touches)
            if self._disk is not None:
                self._disk.pool.fetched(touches)

    def _offer(
        self,
        key: ChunkKey,
        here: dict[ChunkKey, Chunk],
        found: dict[ChunkKey, Found],
        twins: dict[ChunkKey, Twin] | None,
        known: Known,
        *,
        from_disk_only: bool,
    ) -> Offer | None:
        """Where a chunk can be had; None: nowhere. It goes into `here` or `found`, unless it is under way, and the twin
        by which it should come into `twins`; None: by none."""
        chunk = self._pool.find(key)
        if chunk is not None:
            here[key] = chunk
            return Offer(chunk.size_bytes, (Tier.LOCAL_DRAM,))
        inbound = self._inbound.get(key)
        if inbound is not None:
            return Offer(inbound.entry.size_bytes, (inbound.route,), coming_bytes=self._left_bytes(inbound))
        one = self._sources.find(key, from_disk_only=from_disk_only, known=known)
        if one is None:
            return None
        found[key] = one
        size_bytes = one.entry.size_bytes
        reckoned = self._forms.reckoned(size_bytes, one.stored) if one.stored else NOTHING_RECKONED
        twin = self._twins.best_for(one) if twins is not None and self._forms.has_wire else None
        if twins is not None and twin is not None:
            twins[key] = twin
            reckoned = {**reckoned, **self._reckoned_twin(one, twin)}
        return Offer(size_bytes, one.tiers, holder_load=one.load, reckoned=reckoned)

    def _reckoned_twin(self, found: Found, twin: Twin) -> Mapping[Tier, int]:
        """Bytes by source that the gate reckons with for a chunk that comes by its twin."""
        stored = StoredForm(twin.stored.form, 1) if twin.here else twin.stored
        crossed: dict[Tier, StoredForm] = {tier: stored for tier in found.tiers if tier in CROSSING}
        return self._forms.reckoned(found.entry.size_bytes, crossed)

    def _offer_computed(self, key: ChunkKey, expected_s: float, size_bytes: int) -> Offer | None:
        """A chunk that somebody computes, or will before long (it has `size_bytes`, by guess); None: nobody does."""
        computed = self._computed(key)
        if computed is not None:
            coming_bytes = 0 if computed.here else None
            return Offer(computed.size_bytes, (Tier.REMOTE_DRAM,), coming_bytes, ready_s=computed.ready_s)
        return Offer(size_bytes, (Tier.REMOTE_DRAM,), ready_s=expected_s) if expected_s > 0 else None

    def _touches(
        self, keys: Sequence[ChunkKey], here: Mapping[ChunkKey, Chunk], wanted: Mapping[ChunkKey, tuple[Touch, str]]
    ) -> list[Touch]:
        """What the pools learn from an engine's fetch. Chunks that nobody has count later, when they are put here."""
        touches = []
        for key in keys:
            if key in wanted:
                touches.append(wanted[key][0])
            elif key in here:
                touches.append(touch_of(here[key]))
            elif key in self._inbound:
                touches.append(_wanted(self._inbound[key].entry)[0])
        return touches

    def _cut(self, plan: FetchPlan, key: ChunkKey, why: Status) -> None:
        """End a plan before `key`, giving back pins behind it."""
        place = plan.keys.index(key)
        for behind in plan.keys[place:]:
            chunk = plan.pinned.pop(behind, None)
            if chunk is not None:
                self._pool.unpin(chunk)
        plan.keys, plan.awaited, plan.stopped = plan.keys[:place], (), why

    def _take_in(self, plan: FetchPlan, found: Found, room: Chunk, route: Tier, twins: Mapping[ChunkKey, Twin]) -> None:
        """A chunk that there is room for comes, from `route`, by its twin if there is room for that, too."""
        entry = found.entry
        plan.to_come.append((found, room, route))
        reckoned = self._forms.reckoned(entry.size_bytes, found.stored) if found.stored else NOTHING_RECKONED
        twin = twins.get(entry.key)
        if twin is not None and route in CROSSING and self._has_room(plan, twin, twins):
            plan.twins[entry.key] = twin
            reckoned = self._reckoned_twin(found, twin)
        if route in reckoned:
            plan.reckoned[entry.key] = reckoned[route]

    def _has_room(self, plan: FetchPlan, twin: Twin, twins: Mapping[ChunkKey, Twin]) -> bool:
        """Whether the pool takes one twin more than those of the plan."""
        if twin.here:
            return True
        planned_bytes = sum(one.stored.size_bytes for one in plan.twins.values() if not one.here)
        kept = frozenset(one.key for one in twins.values())
        return self._twins.make_room(planned_bytes + twin.stored.size_bytes, kept)

    def plan_twins(self, wanted: Sequence[InboundChunk]) -> FetchPlan:
        """Of the twins of these chunks, those that can be brought; the gate has decided, and asks nothing more."""
        plan = FetchPlan(Verdict(Choice.FETCH, (), 0.0), Status.OK)
        keys = [inbound.twin.key for inbound in wanted if inbound.twin is not None]
        plan.keys = tuple(key for key in keys if self._plan_twin(plan, key))
        return plan

    def _plan_twin(self, plan: FetchPlan, key: ChunkKey) -> bool:
        chunk = self._pool.find(key)
        if chunk is not None:
            self._pool.pin(chunk)
            plan.pinned[key] = chunk
            return True
        if key in self._inbound:
            return True
        found = self._sources.find(key)
        route = None if found is None else next((tier for tier in CROSSING if tier in found.tiers), None)
        if found is None or route is None:
            return False
        (room,) = self._pool.reserve_all([_wanted(found.entry)])
        if isinstance(room, Refusal):
            return False
        self._take_in(plan, found, room, route, {})
        came = plan.to_come[-1][1]
        self._twins.here[came.key] = came
        return True


def _wanted(entry: ChunkEntry) -> tuple[Touch, str]:
    return Touch(entry.key, entry.parent, entry.position, entry.size_bytes), entry.namespace
