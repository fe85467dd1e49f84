"""Goodput with and without early refusal: the daemons' own cores on simulated links and engines (`Replay`).

Requests are placed as `examples/route_in_time.py` does: the controller's core says what each node would need behind
what it was sent before, and the node that is soonest gets the request. Where requests are refused, one that no node
has in time is answered so at its arrival, and costs nobody anything.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from kvpolicy.tiers.cost_question import CostQuestion, verdicts
from planner.cluster.fetch_simulation import node_name
from planner.cluster.options import Scenario
from planner.cluster.replay import Replay
from planner.cluster.requests import Request


@dataclass(frozen=True, slots=True)
class Goodput:
    """Of one replay."""

    requests: int
    refused: int
    in_time: int
    """That had their first token within the bound."""
    late: int


class JudgedReplay(Replay):
    """A replay whose requests go where the controller's verdict sends them."""

    def __init__(self, scenario: Scenario, within_s: float, *, refuses: bool) -> None:
        super().__init__(scenario)
        self._within_s = within_s
        self._refuses = refuses
        self._busy_until_s: dict[str, float] = {}
        """By node: when it will have what it was sent, as it was expected when that was sent."""
        self.refused = 0

    def goodput(self, requests: Sequence[Request]) -> Goodput:
        """Replay the requests (in order of arrival)."""
        if self.controller is None:
            raise ValueError("a verdict needs a controller: share chunks")
        self.controller.attach(self.agents)
        self._arrive_next(iter(requests))
        while len(self.outcomes) + self.refused < len(requests):
            self.step()
        in_time = sum(outcome.ttft_s <= self._within_s for outcome in self.outcomes)
        return Goodput(len(requests), self.refused, in_time, len(self.outcomes) - in_time)

    def _arrive(self, request: Request, arrivals: Iterator[Request]) -> None:
        node = self._judge(request)
        if node is not None:
            super()._arrive(replace(request, node=node), arrivals)
            return
        self.refused += 1
        self._arrive_next(arrivals)

    def _judge(self, request: Request) -> int | None:
        """The node for a request; None: refused."""
        assert self.controller is not None
        names = {str(node_name(agent.node)): agent.node for agent in self.agents}
        now_s, until_s = self.clock.now_s, self._busy_until_s
        queues_s = {
            name: max(until_s.get(name, 0.0) - now_s, self.agents[node].engine.backlog_s)
            for name, node in names.items()
        }
        recompute_s = self._engine.prefill_s(0, request.tokens)
        question = CostQuestion(request.keys, recompute_s, queues_s=queues_s)
        quotes = self.controller.core.quotes.of(question, round(now_s * 1e9))
        found = verdicts(quotes, self._within_s)
        late = {name: one.late_s for name, one in found.nodes.items() if one.late_s is not None}
        chosen = found.send_to
        if chosen is None and not self._refuses and late:
            chosen = min(late, key=lambda name: late[name])
        if chosen is None:
            return None
        seconds = quotes[chosen].seconds
        until_s[chosen] = now_s + (seconds if seconds is not None else 0.0)
        return names[chosen]
