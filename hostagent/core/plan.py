"""How far the keys of a fetch are brought, and from where: the gate's verdict carried into the pool.

Pins chunks that are here and reserves room for those still to come. What is being computed has no room yet: `Waits`
has it fetched when it is there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Final, Protocol

from hostagent.core.arrivals import Arrivals
from hostagent.core.chunk_entry import ChunkEntry
from hostagent.core.claims import Claims
from hostagent.core.effects import FetchPlanned
from hostagent.core.fetch import Fetch, FetchRequest, Kept, Purpose
from hostagent.core.forms import Forms
from hostagent.core.node import Node
from hostagent.core.paths import Paths
from hostagent.core.sources import Found, Known, Sources
from hostagent.pool.chunks import Chunk, Refusal, touch_of
from kvchunk.ids import ChunkKey
from kvclient.messages import Status
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
    asked: Sequence[ChunkKey] = ()
    """All that was offered, of a long fetch."""
    untaught: Sequence[Touch] = ()
    """What the pools are to learn when the engine has its chunks, or others have been asked for them: that comes
    first."""


class StandIns(Protocol):
    """Says which chunks come by others of fewer bytes."""

    def best_way(self, found: Found, /) -> Found:
        """The same chunk, with the stand-in by which it should come, if by any."""
        ...

    def settled(self, coming: Sequence[Found], routes: Mapping[ChunkKey, Tier], /) -> list[Found]:
        """These chunks come, by their routes: by their stand-ins as far as there is room for those."""
        ...


@dataclass(slots=True)
class Look:
    """What is found of a long fetch before it is decided how far it goes, a window of its keys at a time."""

    offers: list[Offer] = field(default_factory=list)
    offered: list[ChunkKey] = field(default_factory=list)
    unready: int | None = None
    """Place of the first that is being computed."""
    refused: Status = Status.NOT_FOUND
    """Why something is not offered, if something is not."""
    is_over: bool = False
    """Nothing behind what was looked for is of use."""


@dataclass(frozen=True, slots=True)
class Ways:
    """By what a node brings chunks, and what it weighs those ways with."""

    node: Node
    sources: Sources
    gate: Gate
    claims: Claims
    forms: Forms
    paths: Paths


class FetchPlanner:
    """Of one node. What is being written here by an engine, it leaves out."""

    def __init__(self, ways: Ways, arrivals: Arrivals, stand_ins: StandIns | None) -> None:
        """`stand_ins`: None: every chunk crosses the network as it is."""
        node = ways.node
        self._forms = ways.forms
        self._stand_ins = stand_ins
        self._clock = node.clock
        self._pool = node.pool
        self._disk = node.disk
        self._directory = node.directory
        self._sources = ways.sources
        self._gate = ways.gate
        self._inbound = arrivals.under_way
        self._left_bytes = arrivals.left_bytes
        self._paths = ways.paths
        self._claims = ways.claims
        self._computed = ways.claims.find

    def look(self, look: Look, fetch: Fetch, keys: Sequence[ChunkKey]) -> None:
        """Look for further keys of a fetch. Those that are here are pinned for it; nothing else is asked for."""
        request, pinned, pool = fetch.request, fetch.pinned, self._pool
        here: dict[ChunkKey, Chunk] = {}
        found: dict[ChunkKey, Found] = {}
        known: Known = {}
        from_disk_only, offers = request.purpose is Purpose.DISK, look.offers
        first = len(look.offered)
        for key in keys:
            offer = self._offer(key, here, found, self._stand_ins, known, from_disk_only=from_disk_only)
            if offer is not None and key in here:
                if pool.lend(here[key], request.tenant):
                    pool.pin(here[key])
                    pinned[key] = here[key]
                else:
                    offer, look.refused, look.is_over = None, Status.POOL_FULL, not request.any_order
            elif offer is None and request.may_wait and not request.any_order:
                offer = self._offer_computed(key, request.expected_s, offers[-1].size_bytes if offers else 0)
                look.unready = len(offers) if offer is not None and look.unready is None else look.unready
            if offer is not None:
                offers.append(offer)
                look.offered.append(key)
            elif not request.any_order:
                look.is_over = True
                break
        if request.purpose is Purpose.ENGINE:
            wanted = {key: room_wanted(one.entry) for key, one in found.items()}
            self.teach(self._touches(look.offered[first:], here, wanted))

    def decide(self, look: Look, request: FetchRequest) -> FetchPlan:
        """How far a fetch goes that was looked for whole. Nothing is pinned or reserved by it."""
        absent = len(request.keys) - len(look.offers)
        before = 0 if request.kept is None else len(request.kept.chunks)
        verdict = self._gate.decide(
            look.offers,
            request.prefill and self._prefill_of(request.prefill),
            self._clock.now_ns,
            absent,
            self._under_way(),
            before,
        )
        count = len(verdict.routes)
        stopped = Status.GATE if count < len(look.offers) else look.refused if absent else Status.OK
        ready = count if look.unready is None else min(count, look.unready)
        return FetchPlan(
            verdict, stopped, tuple(look.offered[:ready]), tuple(look.offered[ready:count]), asked=look.offered
        )

    def plan(self, request: FetchRequest, decided: Mapping[ChunkKey, Tier] | None = None) -> FetchPlan:
        """Local chunks are pinned and room is reserved for the others when it returns. `decided`: by which way chunks
        come of which it was decided before that they do."""
        keys, any_order, tenant = request.keys, request.any_order, request.tenant
        from_disk_only = request.purpose is Purpose.DISK
        stand_ins = None if request.purpose is Purpose.PROBE else self._stand_ins
        offers: list[Offer] = []
        offered: list[ChunkKey] = []
        here: dict[ChunkKey, Chunk] = {}
        found: dict[ChunkKey, Found] = {}
        known: Known = {}
        unready: int | None = None
        for key in keys:
            offer = self._offer(key, here, found, stand_ins, known, from_disk_only=from_disk_only)
            if offer is None and any_order:
                continue
            if offer is None and request.may_wait:
                offer = self._offer_computed(key, request.expected_s, offers[-1].size_bytes if offers else 0)
                unready = len(offers) if offer is not None and unready is None else unready
            if offer is None:
                break
            offers.append(offer)
            offered.append(key)
        wanted = {key: room_wanted(one.entry) for key, one in found.items()}
        is_engines = request.purpose is Purpose.ENGINE
        touches = self._touches(offered, here, wanted) if is_engines and decided is None else []
        if found and touches and not self._pool.has_room([one.entry.size_bytes for one in found.values()]):
            # Others may have to go: what this request says of all of them counts.
            self.teach(touches)
            touches = []
        absent = len(keys) - len(offers)
        before = 0 if request.kept is None else len(request.kept.chunks)
        if decided is None:
            prefill = request.prefill and self._prefill_of(request.prefill)
            verdict = self._gate.decide(offers, prefill, self._clock.now_ns, absent, self._under_way(), before)
        else:
            ways = zip(offered, [offer.sources for offer in offers], strict=True)
            sources = [decided[key] if decided.get(key) in some else some[0] for key, some in ways]
            verdict = Verdict(Choice.FETCH, tuple(sources), 0.0)
        count = len(verdict.routes)
        stopped = Status.GATE if count < len(offers) else self._why_absent(keys[len(offers)]) if absent else Status.OK
        ready = count if unready is None else min(count, unready)
        plan = FetchPlan(verdict, stopped, tuple(offered[:ready]), tuple(offered[ready:count]), untaught=touches)
        routes = dict(zip(plan.keys, verdict.routes, strict=False))
        # Pin all of them first: making room for one chunk must not evict another of the same fetch.
        refused: dict[ChunkKey, Status] = {}
        for key in plan.keys:
            if key in here and not self._pin(plan, here[key], tenant):
                refused[key] = Status.POOL_FULL
                if not any_order:
                    break
        if refused:
            self._leave_out(plan, refused, any_order=any_order)
        coming = [found[key] for key in plan.keys if key in found]
        if not coming:
            return plan
        if stand_ins is not None:
            coming = stand_ins.settled(coming, routes)
        made = self._pool.reserve_all([wanted[one.entry.key] for one in coming], tenant, any_order=any_order)
        refused = {}
        for one, room in zip(coming, made, strict=False):
            key = one.entry.key
            if isinstance(room, Refusal):
                # FILLING: an engine here is putting this very chunk; it will be there by itself in a moment.
                refused[key] = Status.FILLING if room is Refusal.FILLING else Status.POOL_FULL
            else:
                plan.to_come.append((one, room, routes[key]))
                reckoned = self._forms.reckoned(one.entry.size_bytes, one.stored) if one.stored else NOTHING_RECKONED
                if routes[key] in reckoned:
                    plan.reckoned[key] = reckoned[routes[key]]
        if refused:
            self._leave_out(plan, refused, any_order=any_order)
        return plan

    def _prefill_of(self, prefill: Prefill) -> Prefill:
        """Those count that wait behind others of this node."""
        return replace(prefill, behind=max(prefill.behind, self._claims.behind)) if self._claims else prefill

    def _pin(self, plan: FetchPlan, chunk: Chunk, tenant: str) -> bool:
        """Keep a chunk that is here; False: its tenant holds too much already."""
        if not self._pool.lend(chunk, tenant):
            return False
        self._pool.pin(chunk)
        plan.pinned[chunk.key] = chunk
        return True

    def _leave_out(self, plan: FetchPlan, refused: dict[ChunkKey, Status], *, any_order: bool) -> None:
        """Do without these chunks, and unless chunks may come in any order without those behind the first of them."""
        if any_order:
            plan.keys = tuple(key for key in plan.keys if key not in refused)
            plan.stopped = next(reversed(refused.values()))
        else:
            self._cut(plan, *next(iter(refused.items())))

    def trace_of(self, plan: FetchPlan, kept: Kept | None) -> FetchPlanned:
        """A plan just made, for who traces the fetch; `kept`: see FetchRequest."""
        asked = {chunk.key: (chunk.size_bytes, route) for _, chunk, route in plan.to_come}
        for key in plan.keys:
            if key not in plan.pinned and key not in asked:
                inbound = self._inbound[key]
                asked[key] = inbound.entry.size_bytes, inbound.route
        to_come = tuple((key, *asked[key]) for key in plan.keys if key in asked)
        verdict = plan.verdict
        return FetchPlanned(
            (*(chunk.key for chunk in (kept.chunks if kept is not None else ())), *plan.pinned),
            to_come,
            plan.awaited,
            verdict.choice,
            plan.stopped,
            verdict.expected_s,
            verdict.recompute_s,
        )

    def trace_of_long(self, fetch: Fetch, plan: FetchPlan) -> FetchPlanned:
        """The same of a long fetch that was asked for."""
        kept, verdict, to_come = fetch.request.kept, plan.verdict, list[tuple[ChunkKey, int, Tier]]()
        for key in fetch.keys:
            one = fetch.pinned.get(key) or self._inbound.get(key)
            if key in fetch.routes and one is not None:
                to_come.append(
                    (key, one.size_bytes if isinstance(one, Chunk) else one.entry.size_bytes, fetch.routes[key])
                )
        here = [chunk.key for chunk in (kept.chunks if kept is not None else ())]
        here += [key for key in fetch.keys if key not in fetch.routes]
        return FetchPlanned(
            tuple(here),
            tuple(to_come),
            plan.awaited,
            verdict.choice,
            fetch.stopped,
            verdict.expected_s,
            verdict.recompute_s,
        )

    def quote(self, keys: Sequence[ChunkKey], prefill: Prefill | None) -> Quote:
        """What it would take this node to have these chunks; nothing is learned, pinned or asked for."""
        offers: list[Offer] = []
        known: Known = {}
        for key in keys:
            offer = self._offer(key, {}, {}, self._stand_ins, known, from_disk_only=False)
            offer = offer or self._offer_computed(key, 0.0, 0)
            if offer is None:
                break
            offers.append(offer)
        return quote(self._gate.costs, offers, len(keys) - len(offers), prefill, self._under_way())

    def _why_absent(self, key: ChunkKey) -> Status:
        """Nobody has it, or nobody who can be reached."""
        directory = self._directory
        entry = directory.find(key) if directory.unreached else None
        if entry is None:
            return Status.NOT_FOUND
        self._paths.wanted((*entry.holders, *entry.disk_holders))
        return Status.UNAVAILABLE

    def _under_way(self) -> Mapping[Tier, int]:
        """Bytes left to come for other fetches, by where they were asked of."""
        if not self._inbound:
            return _NOTHING
        left: Counter[Tier] = Counter()
        for inbound in self._inbound.values():
            if inbound.stand_in is None:  # else that is on its way, too
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
        stand_ins: StandIns | None,
        known: Known,
        *,
        from_disk_only: bool,
    ) -> Offer | None:
        """Where a chunk can be had; None: nowhere. It goes into `here` or `found`, unless it is under way."""
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
        if stand_ins is not None:
            one = stand_ins.best_way(one)
        found[key] = one
        size_bytes = one.entry.size_bytes
        reckoned = self._forms.reckoned(size_bytes, one.stored) if one.stored else NOTHING_RECKONED
        return Offer(size_bytes, one.tiers, holder_load=one.load, reckoned=reckoned)

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
                touches.append(room_wanted(self._inbound[key].entry)[0])
        return touches

    def _cut(self, plan: FetchPlan, key: ChunkKey, why: Status) -> None:
        """End a plan before `key`, giving back pins behind it."""
        place = plan.keys.index(key)
        for behind in plan.keys[place:]:
            chunk = plan.pinned.pop(behind, None)
            if chunk is not None:
                self._pool.unpin(chunk)
        plan.keys, plan.awaited, plan.stopped = plan.keys[:place], (), why


def room_wanted(entry: ChunkEntry) -> tuple[Touch, str]:
    """What a pool must know of a chunk that is to have room in it: the chunk, and its namespace."""
    return Touch(entry.key, entry.parent, entry.position, entry.size_bytes), entry.namespace
