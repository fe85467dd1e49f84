"""Rows of the demo's workloads: their order, what they add up to, and where the planner is off."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import Any

import pytest

from bmv2_testbed.processes import ProcessorTimes
from bmv2_testbed.workloads.comparison import differences
from bmv2_testbed.workloads.gpu import Job, Saver
from bmv2_testbed.workloads.rows import Row, RowsPlan, happened, row_of, strays
from planner.workloads.prediction import Prediction
from planner.workloads.workload_catalog import Mode, Name, Prompt, workload

PLANNED = Prediction([0.1], computed_blocks=10, regret_s=0.0, saved_s=0.0, decisions={}, given_up=0, uplink_bytes=5000)
QUIET = ProcessorTimes(1.0, 0.01)


def report(**changes: Any) -> dict[str, Any]:
    made = {
        "ready_s": [0.1] * 6,
        "computed_blocks": 0,
        "sources": {"cast": 15},
        "fetched_bytes": 1000,
        "verified_bytes": 1000,
        "figures": {"gate_decisions_total{fetch}": 2.0, "gate_decisions_total{local}": 0.0, "gate_given_up_total": 1.0}
        | {"gate_regret_seconds_total{fetch}": 0.25, "gate_saved_seconds_total": 3.0},
    }
    return made | changes


def row(mode: Mode = Mode.CAST, **changes: Any) -> Row:
    made = row_of(workload(Name.SCALE_OUT), mode, PLANNED, [report() for _ in range(8)], 5000, QUIET, [])
    return replace(made, **changes)


def test_rows_of_the_same_daemons_follow_each_other() -> None:
    plan = RowsPlan([Name.CHATS, Name.ROLLOUTS], only={Name.CHATS: [Mode.NONE, Mode.MERGED]})
    assert plan.groups == [
        [(Name.CHATS, Mode.NONE), (Name.ROLLOUTS, Mode.NONE), (Name.ROLLOUTS, Mode.UNICAST)],
        [(Name.CHATS, Mode.MERGED), (Name.ROLLOUTS, Mode.CAST), (Name.ROLLOUTS, Mode.MERGED)],
        [(Name.ROLLOUTS, Mode.CAST_SWITCH)],
    ]
    only_cache = RowsPlan([Name.CHATS], [Mode.CAST_SWITCH])
    assert only_cache.testbed().controller_settings == {"policy": {"admission": True}}


def test_the_switch_is_told_where_hosts_are_before_any_row() -> None:
    assert not RowsPlan(modes=[Mode.NONE]).testbed().plain, "a switch that nobody has told floods"


def test_a_switch_that_floods_is_a_problem() -> None:
    assert strays(0, 100_000) == []
    assert strays(40_000_000, 40_000_000) == []
    assert strays(49_000_000, 7 * 49_000_000) == ["the switch floods: hosts sent 49000000 bytes and received 343000000"]


def test_a_row_adds_up_what_nodes_report() -> None:
    made = row()
    assert made.verified
    assert made.distinct_blocks == 0, "a node had all of them"
    assert made.sources == {"cast": 120}
    assert made.decisions == {"fetch": 16}
    assert (made.regret_s, made.saved_s, made.given_up) == (2.0, 24.0, 8)
    figures = made.to_json()
    assert (figures["mean_ms"], figures["p99_ms"]) == pytest.approx((100, 100))
    assert figures["verified"] is True
    assert happened(made) == "no block was computed; 120 came by cast; 8 fetches were given up."


def test_wrong_bytes_and_lost_requests_are_told() -> None:
    reports = [report(verified_bytes=900), *(report() for _ in range(6))]
    made = row_of(workload(Name.SCALE_OUT), Mode.CAST, PLANNED, reports, 0, QUIET, ["node7: no report: boom"])
    assert made.problems == [
        "node7: no report: boom",
        "6 requests did not end",
        "100 bytes were not what they must be",
    ]
    assert not made.verified


def test_what_was_computed_again_is_told() -> None:
    made = row(Mode.NONE, sources={}, given_up=0, computed_blocks=30, distinct_blocks=10)
    assert happened(made) == "30 blocks were computed, 20 of them again."
    assert happened(replace(made, distinct_blocks=0)) == "30 blocks were computed that a node had already."
    assert happened(replace(made, computed_blocks=0, distinct_blocks=0)) == "Nothing was needed."


def test_rows_within_the_tolerance_are_no_differences() -> None:
    assert differences([row(ready_s=[0.092, 0.104], computed_blocks=10)]) == []


def test_a_difference_has_a_cause() -> None:
    quiet = row(Mode.NONE, ready_s=[0.1], computed_blocks=10)
    more = row(ready_s=[0.2], computed_blocks=15, given_up=3, uplink_bytes=10_000_000)
    (difference,) = differences([quiet, more])
    assert str(difference) == (
        "scale-out, cast: the plan is -50% off: engines computed 15 blocks, 10 planned (3 fetches were given up, "
        "0 planned); nodes sent 10.0 MB, 0.0 planned"
    )
    assert not difference.explained
    (slower,) = differences([row(ready_s=[0.2], computed_blocks=10)])
    assert "nothing else that was measured differs" in str(slower)
    assert not slower.explained


def test_a_crowded_machine_explains_what_is_late_and_nothing_else() -> None:
    waited = ProcessorTimes(0.05, 0.3)
    late = row(ready_s=[0.2, 0.3], computed_blocks=10, processors=waited)
    (difference,) = differences([late])
    assert difference.explained
    assert str(difference).endswith(
        "the machine is crowded: agents, engines and switch waited 0.3 s for processors and used 0.1 s; requests came"
        " 0.3 s later, all together"
    )
    (later,) = differences([replace(late, ready_s=[0.2, 0.4])])
    assert not later.explained, "0.4 s are missing"
    (alone,) = differences([replace(late, processors=ProcessorTimes(0.2, 0.3))])
    assert not alone.explained, "it is its own processes that they wait for"
    (early,) = differences([replace(late, ready_s=[0.01])])
    assert not early.explained
    own = row(Mode.NONE, ready_s=[0.1], computed_blocks=10, processors=ProcessorTimes(0.2, 0.1))
    (burst,) = differences([own, replace(late, processors=ProcessorTimes(0.2, 0.35))])
    assert "processes waited 0.2 s longer for processors than without a pool" in str(burst)
    assert not burst.explained, "the planner misses bursts"
    busy = row(Mode.NONE, ready_s=[0.15], computed_blocks=10)
    assert "without a pool" in str(differences([busy, late])[1])


def test_a_row_without_requests_that_ended_differs() -> None:
    assert len(differences([row(ready_s=[])])) == 1


def test_chunks_are_saved_in_the_order_of_their_times() -> None:
    saved: list[int] = []
    gate = threading.Event()

    def save(job: Job, place: int) -> None:
        gate.wait()
        saved.append(place)

    job = Job(Prompt(0.0, 0, (0, 1, 2)), [b"a", b"b", b"c"], 0.0)
    saver = Saver(save)
    for due_s, place in ((1.0, 0), (3.0, 2), (2.0, 1)):
        saver.at(due_s, job, place)
    gate.set()
    saver.end()
    assert saved[0] in (0, 2) and sorted(saved) == [0, 1, 2]
    assert saved.index(0) < saved.index(1)
