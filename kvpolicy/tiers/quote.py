"""What it would take a node to have the chunks of a prefix: the gate's reckoning, without a decision. Pure.

For routers that weigh nodes by it, as NetKV does (arXiv 2606.03910).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Final

from kvpolicy.tiers.gate_plan import Offer, Plan
from kvpolicy.tiers.prefill import Prefill
from kvpolicy.value import SourceCosts, Tier

_PARTS: Final = {
    Tier.LOCAL_DRAM: "local",
    Tier.LOCAL_DISK: "disk",
    Tier.SWITCH: "switch",
    Tier.REMOTE_DRAM: "remote",
    Tier.REMOTE_DISK: "remote",
    Tier.COLD: "cold",
}


@dataclass(frozen=True, slots=True)
class Part:
    """Some of the chunks."""

    chunks: int = 0
    bytes: int = 0
    """Still to come or to be read; 0 where nobody knows a chunk's size."""


@dataclass(frozen=True, slots=True)
class Quote:
    """Of one node and one prefix."""

    seconds: float | None
    """Until the engine has everything, its queue and what it computes included; None: chunks are to be computed, and
    nobody said how long that takes."""
    fetch_s: float
    """Until all that would be brought is here."""
    wait_s: float
    """Of `fetch_s`, what other transfers and the holders' queues take."""
    compute_s: float | None
    """Computing what would not be brought."""
    parts: Mapping[str, Part]
    """local (DRAM), disk, cold, coming (a cast or read under way), switch, remote, computing (somebody does, and it is
    waited for), compute."""

    def to_json(self) -> dict[str, object]:
        """As it goes over the wire."""
        return asdict(self)


def quote(
    costs: SourceCosts, offers: Sequence[Offer], absent: int, prefill: Prefill | None, under_way: Mapping[Tier, int]
) -> Quote:
    """`offers`: in prefix order, as `Gate.decide` takes them; `absent`: chunks behind them that nobody has; `prefill`:
    of all of them together; None: nobody says what computing takes, and all that can be had is brought."""
    first = next((place for place, offer in enumerate(offers) if Tier.LOCAL_DRAM not in offer.sources), len(offers))
    behind, chunks = offers[first:], len(offers) + absent
    after_local = None if prefill is None else prefill.without_leading(first, chunks)
    leading = None if after_local is None else after_local.of_leading(len(behind), len(behind) + absent, first)
    plan = Plan(costs, behind, under_way, leading, first)
    count = plan.best()
    computed = len(behind) - count + absent
    compute_s: float | None = None
    if after_local is not None and leading is not None:
        compute_s = after_local.compute_s - leading.compute_s + plan.compute_left_s[count]
    elif not computed:
        compute_s = 0.0
    queue_s = 0.0 if prefill is None else prefill.queue_s
    fetch_s = plan.finish_s[count]
    return Quote(
        seconds=None if compute_s is None else max(fetch_s, queue_s) + compute_s,
        fetch_s=fetch_s,
        wait_s=plan.waits_s(count, plan.loads(count)),
        compute_s=compute_s,
        parts=_parts(offers, first, plan, count, computed),
    )


def _parts(offers: Sequence[Offer], first: int, plan: Plan, count: int, computed: int) -> Mapping[str, Part]:
    names = ("local", "disk", "cold", "coming", "switch", "remote", "computing", "compute")
    found = {name: [0, 0] for name in names}
    routes = [Tier.LOCAL_DRAM] * first + plan.routes[:count]
    for offer, route in zip(offers, routes, strict=False):
        name = "computing" if offer.ready_s else "coming" if offer.coming_bytes is not None else _PARTS[route]
        found[name][0] += 1
        if route is not Tier.LOCAL_DRAM:
            found[name][1] += offer.size_bytes if offer.coming_bytes is None else offer.coming_bytes
    found["compute"] = [computed, sum(offer.size_bytes for offer in offers[first + count :])]
    return {name: Part(*counts) for name, counts in found.items()}
