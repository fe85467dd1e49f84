"""Traces and replay plans."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from bmv2_testbed.errors import TestbedError
from bmv2_testbed.workloads import catalog, synthesise
from bmv2_testbed.workloads.plan import (
    RECOMPUTE_S_PER_BLOCK,
    ReplayPlan,
    densest_start_s,
    leading_hits,
    plan_replay,
    recompute_times_s,
)
from bmv2_testbed.workloads.trace import TICK_MS, TraceError, TraceRequest, dequantise, is_quantised, parse_trace


def _request(arrival_s: float, *blocks: int) -> TraceRequest:
    return TraceRequest(arrival_s * 1000, len(blocks) * 512, 1, blocks)


def test_parse_sorts_by_arrival() -> None:
    lines = [json.dumps({"timestamp": t, "input_length": 5, "output_length": 1, "hash_ids": [t]}) for t in (3000, 0)]
    assert [request.arrival_ms for request in parse_trace([*lines, "\n"])] == [0, 3000]


@pytest.mark.parametrize(
    "line", ["{", "[]", '{"timestamp": 1}', '{"timestamp":1,"input_length":1,"output_length":1,"hash_ids":3}']
)
def test_a_bad_line_is_named(line: str) -> None:
    with pytest.raises(TraceError, match="line 1"):
        parse_trace([line])


def test_dequantising_keeps_order_and_tick() -> None:
    requests = [_request(tick * 3, tick * 10 + i) for tick in range(4) for i in range(6)]
    assert is_quantised(requests)
    spread = dequantise(requests, seed=5)
    assert spread == dequantise(requests, seed=5)
    assert not is_quantised(spread)
    assert [request.blocks for request in spread] == [request.blocks for request in requests]
    assert [request.arrival_ms for request in spread] == sorted(request.arrival_ms for request in spread)
    for before, after in zip(requests, spread, strict=True):
        assert before.arrival_ms <= after.arrival_ms < before.arrival_ms + TICK_MS


def test_rounding_of_ticks_is_seen_through() -> None:
    assert is_quantised([_request(0, 1), _request(2.999, 2), _request(6.003, 3)])
    assert not is_quantised([_request(0, 1), _request(1.2, 2)])


def test_plan_takes_the_stretch_and_warms_what_it_needs() -> None:
    trace = [_request(0, 1, 2), _request(1, 1, 3), _request(10, 1, 2, 4), _request(12, 9), _request(20, 1)]
    plan = plan_replay("t", trace, nodes=2, start_s=5, length_s=10, compression=2)
    assert [(r.start_s, r.node, r.blocks) for r in plan.requests] == [(2.5, 0, (1, 2, 4)), (3.5, 1, (9,))]
    # Blocks 1 and 2 were first asked of node 0; block 3 is not asked for again.
    assert plan.warm == {0: [(1, None), (2, 1)]}
    assert ReplayPlan.from_json(plan.to_json()) == plan


def test_recompute_counts_what_the_own_node_lacks() -> None:
    trace = [_request(0, 1, 2), _request(1, 1, 2), _request(2, 1, 2, 3)]
    plan = plan_replay("t", trace, nodes=2, start_s=0, length_s=10, compression=1)
    assert recompute_times_s(plan) == pytest.approx(
        [2 * RECOMPUTE_S_PER_BLOCK, 2 * RECOMPUTE_S_PER_BLOCK, RECOMPUTE_S_PER_BLOCK]
    )


def test_hits_stop_at_the_first_gap() -> None:
    assert leading_hits([1, 2, 3], {1, 3}) == 1
    assert leading_hits([1, 2], {1, 2}) == 2


def test_densest_stretch() -> None:
    trace = [_request(t, t) for t in (0, 100, 200, 201, 202, 203, 300)]
    assert densest_start_s(trace, 10, 50) == 200


def test_carried_traces_are_what_the_generator_makes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["synthesise", str(tmp_path)])
    assert synthesise.main() == 0
    for file in tmp_path.iterdir():
        assert file.read_text() == (catalog.CARRIED / file.name).read_text()


def test_catalog_falls_back_to_the_carried_trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVCAST_TRACES", str(tmp_path))
    monkeypatch.setattr(catalog, "REPOSITORY_ROOT", tmp_path / "nowhere" / "repository")
    found = catalog.find_trace("conversation")
    assert found.synthetic
    assert found.path.parent == catalog.CARRIED
    assert len(found.requests()) > 100


def test_catalog_names_what_is_wrong(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(TestbedError, match="no trace weather"):
        catalog.find_trace("weather")
    monkeypatch.setenv("KVCAST_TRACES", str(tmp_path / "gone"))
    with pytest.raises(TestbedError, match="gone is not a directory"):
        catalog.find_trace("rollout8")
    monkeypatch.setenv("KVCAST_TRACES", str(tmp_path))
    (tmp_path / "synthetic_rollout8.jsonl.zst").write_bytes(random.Random(1).randbytes(100))
    with pytest.raises(TestbedError, match="synthetic_rollout8"):
        catalog.find_trace("rollout8").requests()
