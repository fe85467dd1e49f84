"""Which node gets a request. Pure but for its own counters."""

from __future__ import annotations

from collections.abc import Sequence

from planner.cluster.agent import Agent
from planner.cluster.options import Routing
from planner.cluster.requests import Request

_BUSIER_BY = 4
"""Requests more than the idlest node has, beyond which a cached prefix is not worth the wait."""


class Router:
    """The load balancer in front of the engines."""

    def __init__(self, routing: Routing, agents: Sequence[Agent]) -> None:
        self._routing = routing
        self._agents = agents
        self._turn = 0
        self.in_flight = [0] * len(agents)
        """Requests at each node that have no first token yet."""

    def choose(self, request: Request) -> int:
        """The node for this request."""
        if self._routing is Routing.ROUND_ROBIN:
            node = self._turn % len(self._agents)
            self._turn += 1
            return node
        idlest = min(self.in_flight)
        cached = [
            (-agent.leading(request.keys), self.in_flight[agent.node], (agent.node - self._turn) % len(self._agents))
            for agent in self._agents
            if self.in_flight[agent.node] <= idlest + _BUSIER_BY
        ]
        self._turn += 1
        return (min(cached)[2] + self._turn - 1) % len(self._agents)
