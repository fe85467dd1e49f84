"""What operators see of the gate: every decision, and what it cost beyond the other choice."""

from __future__ import annotations

import pytest
from prometheus_client import CollectorRegistry

from hostagent.tier_metrics import WatchedGate
from kvproto.tiers.gate import Gate, Offer
from kvproto.value.costs import PRIORS, Source, SourceCost, SourceCosts

SECOND = 1_000_000_000
SIZE = 100 * 10**6


def test_decisions_and_regrets_are_metrics() -> None:
    costs = SourceCosts({**PRIORS, Source.REMOTE_DRAM: SourceCost(0.0, 1e9)})
    gate = Gate(costs)
    registry = CollectorRegistry()
    registry.register(WatchedGate(gate))

    def figure(name: str, **labels: str) -> float | None:
        return registry.get_sample_value(f"kvcast_agent_gate_{name}", labels)

    wanted = [Offer(SIZE, (Source.REMOTE_DRAM,))]
    for took_s in (0.1, 0.4):
        ticket = gate.started(gate.decide(wanted, 0.25, 0))
        assert figure("under_way_bytes") == SIZE
        gate.ended(ticket, {Source.REMOTE_DRAM: SIZE}, took_s, SECOND)
    assert figure("decisions_total", choice="fetch") == 2
    assert figure("saved_seconds_total") == pytest.approx(0.25 - 0.1)
    assert figure("regret_seconds_total", choice="fetch") == pytest.approx(0.4 - 0.25)
    gate.decide(wanted, 0.2, 2 * SECOND)
    assert figure("decisions_total", choice="recompute") == 1
    gate.measured(Source.REMOTE_DRAM, SIZE, 0.001, 3 * SECOND)
    would_s = costs.cost_s(Source.REMOTE_DRAM, SIZE)
    assert would_s < 0.2
    assert figure("regret_seconds_total", choice="recompute") == pytest.approx(0.2 - would_s)
    assert figure("rate_bytes_per_s", source="remote") == costs.cost(Source.REMOTE_DRAM).rate_bytes_per_s
