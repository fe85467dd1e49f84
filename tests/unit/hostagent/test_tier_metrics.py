"""What operators see of the gate: every decision, and what it cost beyond the other choice."""

from __future__ import annotations

import pytest
from prometheus_client import CollectorRegistry

from hostagent.tier_metrics import Watched, gate_figures
from kvpolicy.tiers.gate import Gate, Offer, Prefill
from kvpolicy.value.costs import PRIORS, SourceCost, SourceCosts, Tier

SECOND = 1_000_000_000
SIZE = 100 * 10**6


def test_decisions_and_regrets_are_metrics() -> None:
    costs = SourceCosts({**PRIORS, Tier.REMOTE_DRAM: SourceCost(0.0, 1e9)})
    gate = Gate(costs)
    registry = CollectorRegistry()
    registry.register(Watched(lambda: gate_figures(gate)))

    def figure(name: str, **labels: str) -> float | None:
        return registry.get_sample_value(f"kvcast_agent_gate_{name}", labels)

    wanted = [Offer(SIZE, (Tier.REMOTE_DRAM,))]
    for took_s in (0.1, 0.4):
        ticket = gate.started(gate.decide(wanted, Prefill(0.25), 0))
        assert figure("probes_total") == 0
        gate.ended(ticket, {Tier.REMOTE_DRAM: SIZE}, took_s, SECOND, brought=1)
    assert figure("decisions_total", choice="fetch") == 2
    assert figure("saved_seconds_total") == pytest.approx(0.25 - 0.1)
    assert figure("regret_seconds_total", choice="fetch") == pytest.approx(0.4 - 0.25)
    gate.decide(wanted, Prefill(0.2), 2 * SECOND)
    assert figure("decisions_total", choice="recompute") == 1
    gate.measured(Tier.REMOTE_DRAM, SIZE, 0.001, 3 * SECOND)
    would_s = costs.cost_s(Tier.REMOTE_DRAM, SIZE)
    assert would_s < 0.2
    assert figure("regret_seconds_total", choice="recompute") == pytest.approx(0.2 - would_s)
    assert figure("rate_bytes_per_second", source="remote") == costs.cost(Tier.REMOTE_DRAM).rate_bytes_per_s
