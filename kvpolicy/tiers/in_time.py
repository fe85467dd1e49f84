"""Whether nodes would have a prompt's KV in time, and which of them should be asked, if any. Pure.

For routers that refuse early rather than late, as Mooncake's Conductor does (arXiv 2407.00079, section 7). A request
that would miss its bound everywhere costs those behind it the time for which they then miss theirs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass

from kvpolicy.tiers.cost_question import CostQuestion, Quote


@dataclass(frozen=True, slots=True)
class InTime:
    """Of one node."""

    meets: bool | None
    """None: nobody said how long computing takes."""
    late_s: float | None
    """Beyond the bound; 0: it is met."""


@dataclass(frozen=True, slots=True)
class Verdicts:
    """Of all nodes that were asked about."""

    nodes: Mapping[str, InTime]
    send_to: str | None
    """The node that has it soonest, if that is in time."""
    refuse: str
    """Why nobody should be asked; empty: somebody should."""

    def to_json(self) -> dict[str, object]:
        """As it goes over the wire."""
        return asdict(self)


def verdicts(quotes: Mapping[str, Quote], within_s: float) -> Verdicts:
    """`within_s`: from now on until the engine has everything, its queue and what it computes included."""
    late: dict[str, float] = {}
    nodes: dict[str, InTime] = {}
    for node, quote in quotes.items():
        if quote.seconds is None:
            nodes[node] = InTime(None, None)
        else:
            late[node] = quote.seconds - within_s
            nodes[node] = InTime(late[node] <= 0, max(0.0, late[node]))
    if not late:
        return Verdicts(nodes, None, "say recompute_s: nobody knows how long computing takes" if nodes else "no node")
    soonest = min(late, key=lambda node: (late[node], node))
    if late[soonest] <= 0:
        return Verdicts(nodes, soonest, "")
    return Verdicts(nodes, None, f"no node in time: {soonest} would be {late[soonest]:.3f} s late")


def answer_to(question: CostQuestion, quotes: Mapping[str, Quote]) -> dict[str, object]:
    """What `/v1/cost` says."""
    answer: dict[str, object] = {
        "chunks": len(question.keys),
        "nodes": {node: quote.to_json() for node, quote in quotes.items()},
    }
    if question.within_s is not None:
        answer["within"] = verdicts(quotes, question.within_s).to_json()
    return answer
