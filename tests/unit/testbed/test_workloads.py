"""Replay plans."""

from __future__ import annotations

import pytest

from bmv2_testbed.workloads.plan import (
    RECOMPUTE_S_PER_BLOCK,
    ReplayPlan,
    densest_start_s,
    leading_hits,
    plan_replay,
    recompute_times_s,
)
from planner.traces import TraceRequest


def _request(arrival_s: float, *blocks: int) -> TraceRequest:
    return TraceRequest(arrival_s * 1000, len(blocks) * 512, 1, blocks)


def test_plan_takes_the_stretch_and_warms_what_it_needs() -> None:
    trace = [_request(0, 1, 2), _request(1, 1, 3), _request(10, 1, 2, 4), _request(12, 9), _request(20, 1)]
    plan = plan_replay("t", trace, nodes=2, start_s=5, length_s=10, compression=2, block_bytes=64)
    assert [(r.start_s, r.node, r.blocks) for r in plan.requests] == [(2.5, 0, (1, 2, 4)), (3.5, 1, (9,))]
    # Blocks 1 and 2 were first asked of node 0; block 3 is not asked for again.
    assert plan.warm == {0: [(1, None), (2, 1)]}
    assert ReplayPlan.from_json(plan.to_json()) == plan


def test_recompute_counts_what_the_own_node_lacks() -> None:
    trace = [_request(0, 1, 2), _request(1, 1, 2), _request(2, 1, 2, 3)]
    plan = plan_replay("t", trace, nodes=2, start_s=0, length_s=10, compression=1, block_bytes=64)
    assert recompute_times_s(plan) == pytest.approx(
        [2 * RECOMPUTE_S_PER_BLOCK, 2 * RECOMPUTE_S_PER_BLOCK, RECOMPUTE_S_PER_BLOCK]
    )


def test_hits_stop_at_the_first_gap() -> None:
    assert leading_hits([1, 2, 3], {1, 3}) == 1
    assert leading_hits([1, 2], {1, 2}) == 2


def test_densest_stretch() -> None:
    trace = [_request(t, t) for t in (0, 100, 200, 201, 202, 203, 300)]
    assert densest_start_s(trace, 10, 50) == 200
