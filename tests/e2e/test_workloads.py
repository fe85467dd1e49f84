"""The demo's workloads on a real testbed, in short: one testbed, agents and controller started again between modes."""

from __future__ import annotations

import pytest

from bmv2_testbed.workloads.rows import RowsPlan, run_rows
from planner.workloads.workload_catalog import Mode, Name

pytestmark = pytest.mark.root


def test_rows_on_one_testbed() -> None:
    plan = RowsPlan([Name.SCALE_OUT], [Mode.NONE, Mode.UNICAST, Mode.MERGED], length_s=0.1)
    rows = {row.mode: row for row in run_rows(plan, lambda _text: None, lambda _share: None)}
    none, unicast, merged = rows[Mode.NONE], rows[Mode.UNICAST], rows[Mode.MERGED]
    assert [none.problems, unicast.problems, merged.problems] == [[], [], []]
    # Seven nodes compute the prompt of 15 blocks that the eighth has.
    assert none.computed_blocks == none.predicted.computed_blocks == 7 * 15
    assert not none.sources
    # How much of it comes in time depends on the machine; that it comes, and is right, does not.
    assert sum(unicast.sources.values()) > 0
    assert sum(merged.sources.values()) > 0
    # What a node has itself its engine reads without its agent: the gate is asked by the seven others.
    assert sum(merged.decisions.values()) >= len(merged.ready_s) - 1
