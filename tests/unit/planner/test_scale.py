"""Growth: counting against brute force, arithmetic against hand, unit costs on the real classes, the command."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from kvcast import cli
from planner.errors import PlanError
from planner.scale.growth import carried_nodes, grow, in_cells
from planner.scale.load import load_of
from planner.scale.reuse import Uses, reuse_in_cells
from planner.scale.unit_costs import UnitCosts, measure, with_bench
from planner.traces import TraceRequest
from planner.traces.catalog import CARRIED


def trace(requests: int, seed: int) -> list[TraceRequest]:
    rng = random.Random(seed)
    found = []
    for index in range(requests):
        session = rng.randrange(6)
        length = rng.randint(1, 5)
        blocks = tuple(session * 100 + place for place in range(length))
        found.append(TraceRequest(index * 700.0, 512 * length, 1, blocks))
    return found


def test_load_is_counted() -> None:
    load = load_of(trace(11, 1), nodes=2)
    uses = sum(len(one.blocks) for one in trace(11, 1))
    assert load.requests_per_s == pytest.approx(11 / 7 / 2)
    assert load.uses_per_s == pytest.approx(uses / 7 / 2)
    with pytest.raises(PlanError, match="no duration"):
        load_of(trace(1, 1), nodes=2)


@pytest.mark.parametrize(("nodes", "cell"), [(8, 2), (8, 8), (100, 10), (1, 1)])
def test_reuse_in_cells_as_counted_one_by_one(nodes: int, cell: int) -> None:
    requests = trace(200, 3)
    stays_s, fetch_s = 20.0, 2.0
    found = reuse_in_cells(Uses.of(requests), nodes, cell, stays_s, fetch_s, seed=7)
    placed = np.random.default_rng(7).integers(0, nodes, len(requests))
    in_cell: dict[tuple[int, int], float] = {}
    at_node: dict[tuple[int, int], float] = {}
    hits = local = uses = 0
    for request, node in zip(requests, placed, strict=True):
        now_s = request.arrival_ms / 1000
        for seen, where, is_hit in ((in_cell, node // cell, True), (at_node, node, False)):
            leading = 0
            for block in request.blocks:
                if now_s - seen.get((int(where), block), -1e9) > stays_s:
                    break
                leading += 1
            hits += leading if is_hit else 0
            local += 0 if is_hit else leading
            seen.update({(int(where), block): now_s for block in request.blocks})
        uses += len(request.blocks)
    assert found.hit == pytest.approx(hits / uses)
    assert found.local == pytest.approx(local / uses)
    assert 0 <= found.together <= found.hit - found.local + 1e-12


@pytest.fixture(scope="module")
def costs() -> UnitCosts:
    return measure(6000)  # more than the controller tells in one message


def test_unit_costs_are_those_of_the_classes(costs: UnitCosts) -> None:
    # 16 bytes of key and of parent, 33 of digest, at least.
    assert 40 < costs.record_bytes < 100
    assert 40 < costs.entry_bytes < 150
    # Columns grow by doubling and begin with some room: a chunk never costs more because there are more of them.
    assert 0.5 < costs.linearity < 1.35
    for seconds in (costs.announce_s, costs.usage_s, costs.publish_s, costs.tell_s, costs.apply_s):
        assert 0 <= seconds < 1e-3
    assert 0 < costs.look_up_s < 1e-3
    assert costs.directory_bytes > costs.replica_bytes > 100


def test_growth_is_linear_in_and_quadratic_out(costs: UnitCosts) -> None:
    load = load_of(trace(100, 2), nodes=4)
    small, large = grow(costs, load, steps=(100, 1000))
    assert large.bytes_in == pytest.approx(10 * small.bytes_in)
    assert large.bytes_out == pytest.approx(100 * small.bytes_out)
    assert large.directory_bytes == pytest.approx(10 * small.directory_bytes)
    assert large.chunks == 10_000_000
    limit = carried_nodes(costs, load)
    assert grow(costs, load, steps=(limit,))[0].carries
    assert not grow(costs, load, steps=(limit + 1,))[0].carries
    assert carried_nodes(replace(costs, usage_s=costs.usage_s * 1000), load) < limit


def test_where_few_follow_a_chunk_growth_is_linear(costs: UnitCosts) -> None:
    load = load_of(trace(100, 2), nodes=4)
    small, large = grow(costs, load, steps=(100, 1000), followers=10)
    (whole,) = grow(costs, load, steps=(1000,))
    assert large.bytes_out == pytest.approx(10 * small.bytes_out)
    assert large.replica_bytes == pytest.approx(small.replica_bytes) == pytest.approx(whole.replica_bytes / 100)
    assert large.directory_bytes == whole.directory_bytes
    assert large.snapshot_bytes == 0
    assert large.cores < whole.cores
    assert carried_nodes(costs, load, followers=10) > carried_nodes(costs, load)
    (few,) = grow(costs, load, steps=(4,), followers=10)
    assert few.replica_bytes == pytest.approx(grow(costs, load, steps=(4,))[0].replica_bytes)


def test_the_figures_of_a_measured_controller_count(costs: UnitCosts) -> None:
    found = {"figures": {"cpu_us_per_chunk": 900.0, "bytes_per_chunk": 222}, "load": {"followers": 10}}
    measured = with_bench(costs, found)
    assert measured.directory_bytes == 222
    assert measured.announce_s + measured.publish_s + 10 * measured.tell_s == pytest.approx(900e-6)
    assert measured.replica_bytes == costs.replica_bytes
    with pytest.raises(PlanError, match="'load' is missing"):
        with_bench(costs, {"figures": {}})


def test_cells_are_controllers_that_know_nothing_of_each_other(costs: UnitCosts) -> None:
    load = load_of(trace(100, 2), nodes=4)
    (alone,) = grow(costs, load, steps=(1000,))
    small, odd, whole = in_cells(costs, load, 1000, (100, 300, 1000, 2000))
    assert (small.cells, odd.cells, whole.cells) == (10, 4, 1)
    assert (whole.each, whole.cores) == (alone, alone.cores)
    assert small.each == grow(costs, load, steps=(100,))[0]
    assert small.cells * small.each.directory_bytes == pytest.approx(alone.directory_bytes)
    assert small.each.replica_bytes == pytest.approx(alone.replica_bytes / 10)
    assert small.cores < alone.cores


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["plan", "--scale", "--scale-sample", "2000", "--trace", str(CARRIED / "chat_small.jsonl")]
    bench = tmp_path / "bench.json"
    assert cli.main([*words, "--controller", str(bench)]) != 0
    assert "cannot be read" in capsys.readouterr().err
    bench.write_text('{"figures": {"cpu_us_per_chunk": 90, "bytes_per_chunk": 222}, "load": {"followers": 10}}')
    words += ["--controller", str(bench)]
    assert cli.main([*words, "--json", str(tmp_path / "scale.json")]) == 0
    said = capsys.readouterr().out
    assert "100,000,000" in said
    assert "One controller on one core carries about" in said
    assert "10,000 nodes in cells" in said
    figures = json.loads((tmp_path / "scale.json").read_text())
    assert figures["growth"][-1]["chunks"] == figures["followed"][-1]["chunks"] == 100_000_000
    assert figures["unit_costs"]["directory_bytes"] == 222
