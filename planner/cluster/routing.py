"""Which node gets a request."""

from __future__ import annotations

from collections.abc import Sequence

from planner.cluster.agent import Agent
from planner.cluster.options import Routing
from planner.cluster.requests import Request

_BUSIER_BY = 4
"""Requests more than the idlest node has, beyond which a cached prefix is not worth the wait."""

_SHARE_MIN = 0.5
_BLOCKS_MIN = 4
"""A prefix is followed from this share of the prompt, or this many blocks, on. A shorter one is what all prompts begin
with: following it would send them all to the few nodes that have it."""


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
        self._turn += 1
        held = [agent.leading(request.keys) for agent in self._agents]
        worth = min(_BLOCKS_MIN, max(1, len(request.keys) * _SHARE_MIN))
        turn = self._turn - 1
        return min(
            range(len(self._agents)),
            key=lambda node: (
                -held[node] if held[node] >= worth and self._is_free(node) else 0,
                self.in_flight[node],
                (node - turn) % len(self._agents),
            ),
        )

    def _is_free(self, node: int) -> bool:
        """Not so busy that a cached prefix is not worth the wait."""
        return self.in_flight[node] <= min(self.in_flight) + _BUSIER_BY
