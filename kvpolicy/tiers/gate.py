"""Bring a prefix or recompute it, and from where: decided for each request from measured costs. Pure.

A request is a row of offers in prefix order: each chunk with the sources that have it. Bringing the first k chunks and
computing the others takes

    t(k) = max(finish_s(k), queue_s) + compute_left_s(k)

* `finish_s(k)`: when the last of them is here, behind the rest of other transfers on the same disk or link, and
  behind what the holder has queued for others (`gate_plan`);
* `queue_s`: until the engine begins with this request in any case;
* `compute_left_s(k)`: seconds to compute what lies behind the first k; late chunks cost more (`prefill`).

The gate takes the k with the least t; k = 0 recomputes everything. A chunk that somebody computes at this moment is
offered from the time on for which it is promised; to wait for it, t may be a little longer where that spares others
(`merging`).

The engine waits for a fetch no longer than `Verdict.give_up_s`, after which computing the same chunks would have been
quicker: chunks that are here by then are used, the rest is computed.

Rates that nobody measures go stale, and a gate that refuses measures nothing. So the gate names, with a refusal, one
chunk to *probe*: it is fetched in the background, and the request does not wait for it (to probe by whole requests cost
10 % of the mean where fetching is far from paying, one chunk 0.6 %). Probes of a source take at most
`probe_share` of what it could bring. As long as they only find that refusing was right, they come half as often each
time, down to one per `probe_after_max_ns`.

*Regret* is what a decision cost beyond the other choice. Of what was brought: the time it took against recomputing
and against the best other source, at the costs known by then. Of what was refused: the plan that was taken against
bringing everything, at the first measurement of the source within `regret_ns` after the refusal. What bringing had to
wait for is as it was known then: other transfers, holders' queues, and chunks that were still being computed.
"""

from __future__ import annotations

import enum
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from types import MappingProxyType
from typing import Final, NamedTuple

from kvpolicy.tiers.gate_plan import LOCAL, ON_DISK, Offer, Plan, side_by_side_s
from kvpolicy.tiers.merging import WAIT_MAX_S
from kvpolicy.tiers.prefill import Prefill
from kvpolicy.value import Measurement, SourceCosts, Tier
from kvpolicy.value.costs import MEASUREMENTS_MAX, PRIORS, SourceCost

__all__ = ["Choice", "Gate", "GateCounts", "GateParameters", "Offer", "Prefill", "Probe", "Ticket", "Verdict", "priors"]

_PURE_SHARE: Final = 0.9
"""A fetch of which at least this share came from one source says something about that source's costs."""
_REFUSALS_MAX: Final = 64
LINK_OVERHEAD_S: Final = 0.001
"""Of a fetch over a link that nobody has measured: a round trip and two processes that run late."""
_NOTHING: Final[Mapping[Tier, int]] = MappingProxyType({})


class Choice(enum.Enum):
    """What the gate decided, as metrics name it."""

    LOCAL = "local"
    """Everything is in this node's DRAM."""
    DISK = "disk"
    COLD = "cold"
    """From the cold store."""
    FETCH = "fetch"
    """From another node, alone or as part of a cast."""
    SWITCH = "switch"
    MIXED = "mixed"
    PART = "part"
    """A leading part is brought, the rest recomputed."""
    WAIT = "wait"
    """For chunks that somebody computes at this moment, whatever else is brought."""
    RECOMPUTE = "recompute"


@dataclass(frozen=True, slots=True)
class GateParameters:
    """What an operator may tune."""

    probe_after_ns: int = 10_000_000_000
    probe_after_max_ns: int = 80_000_000_000
    probe_share: float = 0.01
    """Of a source's rate, at most, for probing it."""
    regret_ns: int = 10_000_000_000
    wait_max_s: float = WAIT_MAX_S
    """How much later a request may get its chunks than by computing, to spare those that wait behind it."""


@dataclass(frozen=True, slots=True)
class Probe:
    """A chunk to fetch in the background, so that a refused source is measured again."""

    place: int
    """Index among the request's offers."""
    source: Tier
    size_bytes: int
    worth_s: float
    """Seconds to compute it: had it come quicker, refusing it was wrong."""


class Verdict(NamedTuple):
    """What to do with a request."""

    choice: Choice
    routes: tuple[Tier, ...]
    """One for each leading chunk that is brought; the others are recomputed."""
    expected_s: float
    """Until the engine has everything, what it recomputes and its queue included."""
    give_up_s: float | None = None
    """After this long the engine uses what is here and computes the rest. None: it gave no cost of computing."""
    recompute_s: float | None = None
    """Until the engine would have computed all that is offered, from the first chunk on that is not in local DRAM."""
    queue_s: float = 0.0
    compute_left_s: tuple[float, ...] = ()
    """By number of chunks brought, from the first on that is not in local DRAM: seconds to compute the others."""
    first: int = 0
    """How many leading chunks are in local DRAM."""
    brought: tuple[tuple[Tier, int], ...] = ()
    """Bytes asked of each source."""
    others: tuple[tuple[Tier, int], ...] = ()
    """Bytes by the best source that was not chosen, of the brought chunks that had another one."""
    waits_s: float = 0.0
    """Of `fetch_s`, what the fetch waits for other transfers and for its holders' queues."""
    fetch_s: float = 0.0
    """Until all that is brought is here."""
    probe: Probe | None = None
    """Of a refused source, one chunk to measure it with."""


@dataclass(slots=True, eq=False)
class Ticket:
    """A request that is being brought. Give it back with `Gate.ended`, once."""

    verdict: Verdict
    alone: bool
    contended: bool = False
    """Its holder had others to serve."""


@dataclass(slots=True)
class GateCounts:
    """Running totals, for metrics."""

    decisions: Counter[Choice] = field(default_factory=Counter)
    saved_s: float = 0.0
    """What engines would have waited longer, recomputing."""
    regret_s: dict[Choice, float] = field(default_factory=dict)
    probes: int = 0
    given_up: int = 0
    """Fetches that fell behind: the engine used what was here and computed the rest."""
    last: Verdict | None = None
    """The last one on more than this node's DRAM."""


@dataclass(slots=True)
class _Refusal:
    """Something of a request was left to the engine. Times from the decision on."""

    at_ns: int
    takes_s: float
    """The plan that was taken, to its end."""
    sources: frozenset[Tier]
    """Of what was refused."""
    loads: Mapping[Tier, int]
    """Bytes by source, had everything been brought."""
    waits_s: float
    """What that would have waited for other transfers, holders' queues and computations."""
    not_before_s: float
    """The engine does not begin, or somebody has not computed the last chunk."""

    def would_s(self, costs: SourceCosts) -> float:
        """Until everything would have been here, at these costs."""
        return max(self.not_before_s, self.waits_s + side_by_side_s(costs, self.loads))


def priors(link_rate_bit_s: float) -> Mapping[Tier, SourceCost]:
    """What a node believes of sources before it has measured them: the network gives what its link carries."""
    link = SourceCost(LINK_OVERHEAD_S, link_rate_bit_s / 8)
    disk = PRIORS[Tier.REMOTE_DISK]
    remote_disk = SourceCost(disk.overhead_s, min(disk.rate_bytes_per_s, link.rate_bytes_per_s))
    return {**PRIORS, Tier.REMOTE_DRAM: link, Tier.SWITCH: link, Tier.REMOTE_DISK: remote_disk}


class Gate:
    """One node's gate. Owns what it learned; `costs` may be fed by others too (background fetches, loads)."""

    def __init__(self, costs: SourceCosts, parameters: GateParameters | None = None) -> None:
        self.costs = costs
        self.counts = GateCounts()
        self._parameters = parameters or GateParameters()
        self._under_way: set[Ticket] = set()
        self._measured_ns: dict[Tier, int] = {}
        """When a source was last measured, or was to be by a probe."""
        self._probe_after_ns: dict[Tier, int] = {}
        """Of sources whose last probes found nothing new."""
        self._refusals: deque[_Refusal] = deque(maxlen=_REFUSALS_MAX)
        self._measurements: deque[Measurement] = deque(maxlen=MEASUREMENTS_MAX)

    # ------------------------------------------------------------------ deciding

    def decide(
        self,
        offers: Sequence[Offer],
        prefill: Prefill | None,
        now_ns: int,
        absent: int = 0,
        under_way: Mapping[Tier, int] = _NOTHING,
        before: int = 0,
    ) -> Verdict:
        """What to bring of a request; nothing is under way until `started`.

        `prefill`: of everything from the first chunk that is not in local DRAM to the end; None: fetch whatever it
        takes. `absent`: chunks at the end that nobody offers; they are computed whatever is brought, so their share of
        the time decides nothing. `under_way`: bytes left to come for other requests, by source. `before`: chunks of the
        same prefix that come before these and are here.
        """
        first = 0
        while first < len(offers) and LOCAL in offers[first].sources:
            first += 1
        local = (LOCAL,) * first
        if first == len(offers):
            self.counts.decisions[Choice.LOCAL] += 1
            return Verdict(Choice.LOCAL, local, 0.0, first=first)
        behind = offers[first:]
        if prefill is not None:
            prefill = prefill.of_leading(len(behind), len(behind) + absent, before + first)
            self._learn(Tier.RECOMPUTE, sum(offer.size_bytes for offer in behind), prefill.compute_s)
        plan = Plan(self.costs, behind, under_way, prefill, before + first, self._parameters.wait_max_s)
        count = plan.best()
        probe = self._probe(plan, count, first, now_ns) if count < len(behind) else None
        verdict = _verdict(plan, local, count, probe)
        self.counts.decisions[verdict.choice] += 1
        self.counts.last = verdict
        if count < len(behind) and prefill is not None:
            self._refusals.append(_refusal(plan, count, now_ns))
        return verdict

    def _probe(self, plan: Plan, count: int, first: int, now_ns: int) -> Probe | None:
        """The first refused chunk whose source should be measured again; None: not now, or it would cost too much."""
        for place in range(count, len(plan.routes)):
            route = plan.routes[place]
            if plan.asks_nothing(place):
                continue
            size_bytes = plan.asked_bytes(place)
            if self._is_due(route, size_bytes, now_ns):
                self._measured_ns[route] = now_ns
                self.counts.probes += 1
                worth_s = plan.compute_left_s[place] - plan.compute_left_s[place + 1]
                return Probe(first + place, route, size_bytes, worth_s)
        return None

    def _is_due(self, source: Tier, size_bytes: int, now_ns: int) -> bool:
        measured_ns = self._measured_ns.get(source)
        if measured_ns is None:
            return True
        parameters = self._parameters
        after_ns = self._probe_after_ns.get(source, parameters.probe_after_ns)
        affordable_ns = int(self.costs.cost_s(source, size_bytes) / parameters.probe_share * 1e9)
        return now_ns - measured_ns >= max(after_ns, affordable_ns)

    # ------------------------------------------------------------------ learning

    def started(self, verdict: Verdict) -> Ticket:
        """The verdict is being carried out."""
        for other in self._under_way:
            other.alone = False
        ticket = Ticket(verdict, alone=not self._under_way)
        self._under_way.add(ticket)
        return ticket

    def cancelled(self, ticket: Ticket) -> None:
        """Nobody wants it any more: it teaches nothing."""
        self._under_way.remove(ticket)

    def ended(self, ticket: Ticket, arrived: Mapping[Tier, int], seconds: float, now_ns: int, *, brought: int) -> None:
        """It ended after `seconds`: `arrived` bytes by the source that they came from in the end; the first `brought`
        chunks of the request, local ones included, are here."""
        self.cancelled(ticket)
        self.heard(ticket, arrived, seconds, now_ns)
        behind = len(ticket.verdict.routes) > brought and ticket.verdict.give_up_s is not None
        self.counts.given_up += behind
        self._judge(ticket.verdict, brought, seconds)

    def heard(self, ticket: Ticket, arrived: Mapping[Tier, int], seconds: float, now_ns: int) -> None:
        """So many bytes arrived in so many seconds for a request, by the source that they came from in the end."""
        total_bytes = sum(arrived.values())
        if total_bytes > 0 and seconds > 0:
            source, most_bytes = max(arrived.items(), key=itemgetter(1))
            if most_bytes >= _PURE_SHARE * total_bytes and self._teaches(ticket, source, total_bytes, seconds):
                self.measured(source, total_bytes, seconds, now_ns)

    def _teaches(self, ticket: Ticket, source: Tier, size_bytes: int, seconds: float) -> bool:
        """A fetch that shared its link or its holder measures less than they give, unless it beat what is believed."""
        undisturbed = ticket.alone and not ticket.contended and not ticket.verdict.waits_s
        return undisturbed or seconds < self.costs.cost_s(source, size_bytes)

    def waited(self, verdict: Verdict, brought: int, seconds: float) -> float:
        """A request that waited for what others computed has got its first `brought` chunks after `seconds`.

        Returns the seconds that it saved. Teaches nothing of sources: the fetches that it was made of do."""
        before_s = self.counts.saved_s
        self._judge(verdict, brought, seconds)
        return self.counts.saved_s - before_s

    def probed(self, probe: Probe, seconds: float | None, now_ns: int, *, alone: bool = True) -> None:
        """A probe ended: its bytes took `seconds`; None: they did not come. `alone`: nothing else was under way."""
        source = probe.source
        if seconds is not None and (alone or seconds < self.costs.cost_s(source, probe.size_bytes)):
            self.measured(source, probe.size_bytes, seconds, now_ns)
        if seconds is None or seconds >= probe.worth_s:
            after_ns = self._probe_after_ns.get(source, 0) or self._parameters.probe_after_ns
            self._probe_after_ns[source] = min(2 * after_ns, self._parameters.probe_after_max_ns)
        else:
            # One good probe moves the learned costs a little: more follow as soon as they are affordable.
            self._probe_after_ns[source] = 0

    def measured(self, source: Tier, size_bytes: int, seconds: float, now_ns: int) -> None:
        """Something came from a source, undisturbed."""
        self._learn(source, size_bytes, seconds)
        self._measured_ns[source] = now_ns
        still: list[_Refusal] = []
        for refusal in self._refusals:
            if now_ns - refusal.at_ns > self._parameters.regret_ns:
                continue
            if source not in refusal.sources:
                still.append(refusal)
                continue
            would_s = refusal.would_s(self.costs)
            self._regret(Choice.RECOMPUTE, refusal.takes_s - would_s)
            if would_s < refusal.takes_s:
                self._probe_after_ns.pop(source, None)
        self._refusals = deque(still, maxlen=_REFUSALS_MAX)

    def take_measurements(self) -> list[Measurement]:
        """What was learned since the last call, the last MEASUREMENTS_MAX of it: for the controller's own costs."""
        taken = list(self._measurements)
        self._measurements.clear()
        return taken

    def _learn(self, source: Tier, size_bytes: int, seconds: float) -> None:
        if size_bytes > 0 and seconds > 0:
            self.costs.measured(source, size_bytes, seconds)
            self._measurements.append(Measurement(source, size_bytes, seconds))

    def _judge(self, verdict: Verdict, brought: int, seconds: float) -> None:
        """What was brought against the other choices."""
        alternatives: list[float] = []
        took_s = seconds
        if verdict.recompute_s is not None:
            behind = min(max(0, brought - verdict.first), len(verdict.compute_left_s) - 1)
            took_s = max(seconds, verdict.queue_s) + verdict.compute_left_s[behind]
            alternatives.append(verdict.recompute_s)
            self.counts.saved_s += max(0.0, verdict.recompute_s - took_s)
        if verdict.others and sum(size for _, size in verdict.others) == sum(size for _, size in verdict.brought):
            other_s = side_by_side_s(self.costs, dict(verdict.others)) + verdict.waits_s
            rest_s = took_s - max(seconds, verdict.queue_s) if verdict.recompute_s is not None else 0.0
            alternatives.append(max(other_s, verdict.queue_s) + rest_s)
        if alternatives:
            self._regret(verdict.choice, took_s - min(alternatives))

    def _regret(self, choice: Choice, seconds: float) -> None:
        if seconds > 0:
            self.counts.regret_s[choice] = self.counts.regret_s.get(choice, 0.0) + seconds


def _refusal(plan: Plan, count: int, now_ns: int) -> _Refusal:
    """Of what lies behind the first `count` chunks."""
    everything = len(plan.routes)
    loads = plan.loads(everything)
    return _Refusal(
        now_ns,
        plan.total_s(count),
        frozenset(plan.loads_behind(count)),
        loads,
        plan.waits_s(everything, loads),
        max(plan.queue_s, plan.ready_s),
    )


def _verdict(plan: Plan, local: tuple[Tier, ...], count: int, probe: Probe | None) -> Verdict:
    """The plan cut after `count` chunks."""
    routes = tuple(plan.routes[:count])
    choice = _name(routes, whole=count == len(plan.routes))
    loads = plan.loads(count)
    without_prefill = plan.prefill is None
    return Verdict(
        Choice.WAIT if plan.waits(count) else choice,
        local + routes,
        plan.total_s(count),
        # Later than this, computing the same chunks would have been quicker.
        give_up_s=(
            None
            if without_prefill
            else plan.queue_s + plan.compute_left_s[0] - plan.compute_left_s[count] + plan.spared_s(count)
        ),
        recompute_s=None if without_prefill else plan.queue_s + plan.compute_left_s[0],
        queue_s=plan.queue_s,
        compute_left_s=() if without_prefill else plan.compute_left_s,
        first=len(local),
        brought=tuple(loads.items()),
        others=tuple(plan.other_loads(count).items()),
        waits_s=plan.waits_s(count, loads),
        fetch_s=plan.finish_s[count],
        probe=probe,
    )


def _name(routes: Sequence[Tier], *, whole: bool) -> Choice:
    brought = set(routes) - {LOCAL}
    if Tier.REMOTE_DISK in brought:
        brought = brought - {Tier.REMOTE_DISK} | {Tier.REMOTE_DRAM}
    if not brought:
        return Choice.RECOMPUTE
    if not whole:
        return Choice.PART
    if len(brought) > 1:
        return Choice.MIXED
    return {ON_DISK: Choice.DISK, Tier.COLD: Choice.COLD, Tier.SWITCH: Choice.SWITCH}.get(brought.pop(), Choice.FETCH)
