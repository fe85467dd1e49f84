"""Bring a prefix or recompute it, and from where: decided for each request from measured costs. Pure.

A request is a row of offers in prefix order: each chunk with the sources that have it. Chunks queue behind what is
already under way on the disk and on the link, which work side by side, so bringing the first k takes

    t(k) = max over {disk, link} of the cost_s of all that is asked of it
           + recompute_s * (1 - bytes brought / bytes wanted)

with each chunk routed to the source that would be done first. The gate takes the k with the least t; k = 0 recomputes
everything. Recomputing is taken as linear in bytes: attention's quadratic part makes late chunks dearer, so the gate
errs towards recomputing less than it should at the end of very long prompts.

Rates that nobody measures go stale, and a gate that refuses measures nothing. So of a refused request the leading
chunks up to the first from a source that was not measured for `probe_after_ns` are let through as a *probe*, unless
that would take `probe_cost_max` times as long as recomputing them. While probes only find that refusing was right they
come half as often each time, down to one each `probe_after_max_ns`: near break-even they would cost more than they
tell.

*Regret* is what a decision cost beyond the other choice. Of what was brought: the time it took against recomputing
and against the best other source, at the costs known by then. Of what was refused: recomputing against bringing, at
the first measurement of the source within `regret_ns` after the refusal.
"""

from __future__ import annotations

import enum
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from kvproto.value import Measurement, Source, SourceCosts
from kvproto.value.costs import MEASUREMENTS_MAX

_LOCAL: Final = Source.LOCAL_DRAM
_ON_DISK: Final = Source.LOCAL_DISK
_PURE_SHARE: Final = 0.9
"""A fetch of which so much came from one source says something of that source's costs."""
_REFUSALS_MAX: Final = 64


class Choice(enum.Enum):
    """What the gate decided, as metrics name it."""

    LOCAL = "local"
    """Everything is in this node's DRAM."""
    DISK = "disk"
    FETCH = "fetch"
    """From another node, alone or as part of a cast."""
    SWITCH = "switch"
    MIXED = "mixed"
    PART = "part"
    """A leading part is brought, the rest recomputed."""
    RECOMPUTE = "recompute"
    PROBE = "probe"
    """Recomputing seems faster, but it is time to measure again."""


@dataclass(frozen=True, slots=True)
class GateParameters:
    """What an operator may tune."""

    probe_after_ns: int = 10_000_000_000
    probe_after_max_ns: int = 80_000_000_000
    probe_cost_max: float = 4.0
    regret_ns: int = 10_000_000_000


@dataclass(frozen=True, slots=True)
class Offer:
    """One chunk of a request."""

    size_bytes: int
    sources: tuple[Source, ...]
    """Where it can be had, at least one; LOCAL_DRAM costs nothing."""
    coming: bool = False
    """It is on its way already, for another request, from the only source given: nothing more is asked for it."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What to do with a request."""

    choice: Choice
    routes: tuple[Source, ...]
    """One for each leading chunk that is brought; the others are recomputed."""
    expected_s: float
    """Until the engine has everything, what it recomputes included."""
    recompute_s: float | None
    """Of all that is offered, from the first chunk on that is not in local DRAM; None: the engine did not say."""
    wanted_bytes: int = 0
    """Of those chunks."""
    brought: tuple[tuple[Source, int], ...] = ()
    """Bytes asked of each source."""
    others: tuple[tuple[Source, int], ...] = ()
    """Bytes by the best source that was not chosen, of the brought chunks that had another one."""


@dataclass(slots=True, eq=False)
class Ticket:
    """A request that is being brought. Give it back with `Gate.ended`, once."""

    verdict: Verdict
    alone: bool


@dataclass(slots=True)
class GateCounts:
    """Running totals, for metrics."""

    decisions: Counter[Choice] = field(default_factory=Counter)
    saved_s: float = 0.0
    """What engines would have waited longer, recomputing."""
    regret_s: dict[Choice, float] = field(default_factory=dict)


@dataclass(slots=True)
class _Refusal:
    at_ns: int
    recompute_s: float
    loads: Mapping[Source, int]


class Gate:
    """One node's gate. Owns what is under way; `costs` may be fed by others too (background fetches, loads)."""

    def __init__(self, costs: SourceCosts, parameters: GateParameters | None = None) -> None:
        self.costs = costs
        self.counts = GateCounts()
        self._parameters = parameters or GateParameters()
        self._queued: Counter[Source] = Counter()
        self._under_way: set[Ticket] = set()
        self._measured_ns: dict[Source, int] = {}
        """When a source was last measured, or was to be by a probe."""
        self._probe_after_ns: dict[Source, int] = {}
        """Of sources whose last probes found nothing new."""
        self._refusals: deque[_Refusal] = deque(maxlen=_REFUSALS_MAX)
        self._measurements: deque[Measurement] = deque(maxlen=MEASUREMENTS_MAX)

    @property
    def under_way_bytes(self) -> int:
        """Asked of disk and link, not ended."""
        return sum(self._queued.values())

    # ------------------------------------------------------------------ deciding

    def decide(self, offers: Sequence[Offer], recompute_s: float | None, now_ns: int, absent: int = 0) -> Verdict:
        """What to bring of a request; nothing is under way until `started`.

        `recompute_s`: of everything from the first chunk that is not in local DRAM to the end; `absent`: chunks at the
        end that nobody offers. They are computed whatever is brought, so their share of the time decides nothing.
        """
        first = next((place for place, offer in enumerate(offers) if _LOCAL not in offer.sources), len(offers))
        local = (_LOCAL,) * first
        if first == len(offers):
            self.counts.decisions[Choice.LOCAL] += 1
            return Verdict(Choice.LOCAL, local, 0.0, recompute_s)
        plan = _Plan(self, offers[first:])
        if recompute_s is not None:
            recompute_s *= (len(offers) - first) / (len(offers) - first + absent)
            self._learn(Source.RECOMPUTE, plan.wanted_bytes, recompute_s)
        best = plan.best(recompute_s)
        probed = None if recompute_s is None else self._to_probe(plan, best, recompute_s, now_ns)
        probing = probed is not None
        if probed is not None:
            best = probed + 1
            self._measured_ns[plan.routes[probed]] = now_ns
        verdict = plan.verdict(local, best, recompute_s, probing=probing)
        self.counts.decisions[verdict.choice] += 1
        if best < len(plan.routes) and recompute_s is not None:
            share = 1 - plan.brought_bytes[best] / plan.wanted_bytes
            self._refusals.append(_Refusal(now_ns, recompute_s * share, plan.loads_behind(best)))
        return verdict

    def queue_s(self, source: Source) -> float:
        """Until what is already asked of a source's disk or link has come."""
        shared = (_ON_DISK,) if source is _ON_DISK else tuple(one for one in self._queued if one is not _ON_DISK)
        return sum(self.costs.cost_s(one, self._queued[one]) for one in shared if self._queued[one])

    def _to_probe(self, plan: _Plan, best: int, recompute_s: float, now_ns: int) -> int | None:
        """Place of the first refused chunk whose source should be measured again; None: not now, or at that price."""
        if self._under_way:
            return None
        for place in range(best, len(plan.routes)):
            route = plan.routes[place]
            if plan.asks_nothing(place) or not self._is_stale(route, now_ns):
                continue
            share = plan.brought_bytes[place + 1] / plan.wanted_bytes
            affordable = plan.finish_s[place + 1] <= self._parameters.probe_cost_max * recompute_s * share
            return place if affordable else None
        return None

    def _is_stale(self, source: Source, now_ns: int) -> bool:
        after_ns = self._probe_after_ns.get(source, self._parameters.probe_after_ns)
        measured_ns = self._measured_ns.get(source)
        return measured_ns is None or now_ns - measured_ns >= after_ns

    # ------------------------------------------------------------------ learning

    def started(self, verdict: Verdict) -> Ticket:
        """The verdict is being carried out."""
        for other in self._under_way:
            other.alone = False
        ticket = Ticket(verdict, alone=not self._under_way)
        self._under_way.add(ticket)
        self._queued.update(dict(verdict.brought))
        return ticket

    def cancelled(self, ticket: Ticket) -> None:
        """Nobody wants it any more: it teaches nothing."""
        self._under_way.remove(ticket)
        self._queued.subtract(dict(ticket.verdict.brought))

    def ended(self, ticket: Ticket, arrived: Mapping[Source, int], seconds: float, now_ns: int) -> None:
        """It ended: `arrived` bytes by the source that they came from in the end, within `seconds`."""
        self.cancelled(ticket)
        total_bytes = sum(arrived.values())
        if total_bytes > 0 and seconds > 0:
            source, most_bytes = max(arrived.items(), key=lambda one: one[1])
            if most_bytes >= _PURE_SHARE * total_bytes and (
                # Who shared the link measures less than it gives, unless it was faster than anybody believed.
                ticket.alone or seconds < self.costs.cost_s(source, total_bytes)
            ):
                self.measured(source, total_bytes, seconds, now_ns)
        self._judge(ticket.verdict, total_bytes, seconds)
        if ticket.verdict.choice is Choice.PROBE:
            self._space_probes(ticket.verdict, total_bytes, seconds)

    def measured(self, source: Source, size_bytes: int, seconds: float, now_ns: int) -> None:
        """Something came from a source, undisturbed."""
        self._learn(source, size_bytes, seconds)
        self._measured_ns[source] = now_ns
        still: list[_Refusal] = []
        for refusal in self._refusals:
            if now_ns - refusal.at_ns > self._parameters.regret_ns:
                continue
            if source not in refusal.loads:
                still.append(refusal)
                continue
            would_s = _side_by_side_s(self.costs, refusal.loads)
            self._regret(Choice.RECOMPUTE, refusal.recompute_s - would_s)
            if would_s < refusal.recompute_s:
                self._probe_after_ns.pop(source, None)
        self._refusals = deque(still, maxlen=_REFUSALS_MAX)

    def take_measurements(self) -> list[Measurement]:
        """What was learned since the last call, the last MEASUREMENTS_MAX of it: for the controller's own costs."""
        taken = list(self._measurements)
        self._measurements.clear()
        return taken

    def _learn(self, source: Source, size_bytes: int, seconds: float) -> None:
        if size_bytes > 0 and seconds > 0:
            self.costs.measured(source, size_bytes, seconds)
            self._measurements.append(Measurement(source, size_bytes, seconds))

    def _space_probes(self, verdict: Verdict, arrived_bytes: int, seconds: float) -> None:
        """After a probe: the next one later, if it only said that refusing is right; else as usual."""
        if verdict.recompute_s is None or not verdict.wanted_bytes:
            return
        was_slower = seconds > verdict.recompute_s * arrived_bytes / verdict.wanted_bytes
        for source, _ in verdict.brought:
            if was_slower:
                after_ns = self._probe_after_ns.get(source, self._parameters.probe_after_ns)
                self._probe_after_ns[source] = min(2 * after_ns, self._parameters.probe_after_max_ns)
            else:
                self._probe_after_ns.pop(source, None)

    def _judge(self, verdict: Verdict, arrived_bytes: int, seconds: float) -> None:
        """What was brought against the other choices."""
        alternatives: list[float] = []
        took_s = seconds
        if verdict.recompute_s is not None and verdict.wanted_bytes:
            took_s += verdict.recompute_s * (1 - min(1.0, arrived_bytes / verdict.wanted_bytes))
            alternatives.append(verdict.recompute_s)
            self.counts.saved_s += max(0.0, verdict.recompute_s - took_s)
        if verdict.others:
            rest = dict(verdict.brought)
            other_bytes = sum(size for _, size in verdict.others)
            if other_bytes == sum(rest.values()):
                alternatives.append(_side_by_side_s(self.costs, dict(verdict.others)))
        if alternatives:
            self._regret(verdict.choice, took_s - min(alternatives))

    def _regret(self, choice: Choice, seconds: float) -> None:
        if seconds > 0:
            self.counts.regret_s[choice] = self.counts.regret_s.get(choice, 0.0) + seconds


class _Plan:
    """A route for each chunk, and how long the first k of them take."""

    def __init__(self, gate: Gate, offers: Sequence[Offer]) -> None:
        self._costs = gate.costs
        self._offers = offers
        self.routes: list[Source] = []
        self.finish_s: list[float] = [0.0]
        """By number of leading chunks brought: when the last of them is here."""
        self.brought_bytes: list[int] = [0]
        self._others: list[Source | None] = []
        waits_s = {source: gate.queue_s(source) for source in Source}
        asked: Counter[Source] = Counter()
        for offer in offers:
            size_bytes = 0 if offer.coming else offer.size_bytes
            ends_s = {source: self._end_s(source, size_bytes, asked, waits_s) for source in offer.sources}
            ranked = sorted(ends_s, key=lambda source: ends_s[source])
            route = ranked[0]
            if route is not _LOCAL:
                asked[route] += size_bytes
            self.routes.append(route)
            self._others.append(ranked[1] if len(ranked) > 1 and route is not _LOCAL else None)
            self.finish_s.append(max(self.finish_s[-1], ends_s[route]))
            self.brought_bytes.append(self.brought_bytes[-1] + offer.size_bytes)

    @property
    def wanted_bytes(self) -> int:
        return self.brought_bytes[-1]

    def best(self, recompute_s: float | None) -> int:
        """How many leading chunks to bring."""
        if recompute_s is None:
            return len(self.routes)
        totals = [
            finish_s + recompute_s * (1 - size / self.wanted_bytes)
            for finish_s, size in zip(self.finish_s, self.brought_bytes, strict=True)
        ]
        best_s = min(totals)
        return max(count for count, total_s in enumerate(totals) if total_s == best_s)

    def verdict(self, local: tuple[Source, ...], count: int, recompute_s: float | None, *, probing: bool) -> Verdict:
        """The plan cut after `count` chunks."""
        routes = tuple(self.routes[:count])
        rest_s = 0.0 if recompute_s is None else recompute_s * (1 - self.brought_bytes[count] / self.wanted_bytes)
        choice = Choice.PROBE if probing else _name(routes, whole=count == len(self.routes))
        return Verdict(
            choice,
            local + routes,
            self.finish_s[count] + rest_s,
            recompute_s,
            self.wanted_bytes,
            self._bytes_by(routes),
            self._bytes_by(self._others[:count]),
        )

    def asks_nothing(self, place: int) -> bool:
        """Whether bringing this chunk would measure nothing: it is here, or on its way."""
        return self.routes[place] is _LOCAL or self._offers[place].coming

    def loads_behind(self, count: int) -> Mapping[Source, int]:
        """Bytes by source of the chunks that are not brought."""
        loads: Counter[Source] = Counter()
        for route, offer in list(zip(self.routes, self._offers, strict=True))[count:]:
            if route is not _LOCAL and not offer.coming:
                loads[route] += offer.size_bytes
        return loads

    def _bytes_by(self, sources: Sequence[Source | None]) -> tuple[tuple[Source, int], ...]:
        found: Counter[Source] = Counter()
        for source, offer in zip(sources, self._offers, strict=False):
            if source is not None and source is not _LOCAL and not offer.coming:
                found[source] += offer.size_bytes
        return tuple(found.items())

    def _end_s(
        self, source: Source, size_bytes: int, asked: Mapping[Source, int], waits_s: Mapping[Source, float]
    ) -> float:
        if source is _LOCAL:
            return 0.0
        if not size_bytes:
            return waits_s[source]
        own = {one: size for one, size in asked.items() if (one is _ON_DISK) == (source is _ON_DISK)}
        own[source] = own.get(source, 0) + size_bytes
        return waits_s[source] + sum(self._costs.cost_s(one, size) for one, size in own.items())


def _side_by_side_s(costs: SourceCosts, loads: Mapping[Source, int]) -> float:
    """Disk and link at the same time."""
    disk_s = sum(costs.cost_s(source, size) for source, size in loads.items() if source is _ON_DISK)
    link_s = sum(costs.cost_s(source, size) for source, size in loads.items() if source is not _ON_DISK)
    return max(disk_s, link_s)


def _name(routes: Sequence[Source], *, whole: bool) -> Choice:
    brought = {Source.REMOTE_DRAM if route is Source.REMOTE_DISK else route for route in routes} - {_LOCAL}
    if not brought:
        return Choice.RECOMPUTE
    if not whole:
        return Choice.PART
    if len(brought) > 1:
        return Choice.MIXED
    return {_ON_DISK: Choice.DISK, Source.SWITCH: Choice.SWITCH}.get(brought.pop(), Choice.FETCH)
