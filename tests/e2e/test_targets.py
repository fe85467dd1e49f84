"""The whole of it on every switch: network, daemons, incast and demo with simple_switch_grpc, and with the program for
Tofino on p4switch."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from bmv2_testbed.bench.figures import IncastFigures
from bmv2_testbed.bench.incast import IncastPlan, IncastRun, Mode
from bmv2_testbed.demo.run import MODES, DemoPlan, run_demo
from bmv2_testbed.processes import child_environment
from bmv2_testbed.scale import SCALES
from bmv2_testbed.spec import Target
from p4switch.bmv2.names import tool_of_bmv2
from planner.workloads import workload_catalog as catalog

_LACKS = [tool for tool in ("simple_switch_grpc", "p4c-bm2-ss") if tool_of_bmv2(tool) is None]
BMV2 = pytest.param(
    Target.BMV2,
    marks=[
        pytest.mark.root,
        pytest.mark.bmv2,
        pytest.mark.skipif(bool(_LACKS), reason=f"bmv2: {', '.join(_LACKS)} not on PATH"),
    ],
)
TNA = pytest.param(Target.TNA, marks=pytest.mark.root)

on_every_target = pytest.mark.parametrize("target", [BMV2, TNA])


def _plan(target: Target) -> IncastPlan:
    scale = SCALES[target]
    return IncastPlan(
        readers=3,
        rate_bit_s=scale.link_bit_s,
        size_bytes=4 * scale.chunk_bytes,
        chunk_bytes=scale.chunk_bytes,
        target=target,
    )


def _run(plan: IncastPlan, mode: Mode) -> IncastFigures:
    figures, _ = IncastRun(plan, lambda _text: None, lambda _share: None).mode(mode)
    assert figures.verified, figures.problems
    assert figures.target == plan.target
    return figures


# With the program for Tofino casts are those of test_passive_fills.
@pytest.mark.parametrize("target", [BMV2])
def test_cast_brings_every_byte(target: Target) -> None:
    # On a machine that starts one of the readers late they may miss each other, but not every time.
    if not any("cast" in _run(replace(_plan(target), seed=seed), Mode.CAST).origins for seed in range(1, 6)):
        pytest.fail("no chunk was ever cast")


@on_every_target
def test_the_switch_serves_every_byte(target: Target) -> None:
    assert "switch" in _run(_plan(target), Mode.CACHE).origins


@on_every_target
def test_up_and_down(target: Target, tmp_path: Path) -> None:
    environment = child_environment({"XDG_RUNTIME_DIR": str(tmp_path)})

    def kvcast(*words: str) -> subprocess.CompletedProcess[str]:
        argv = [sys.executable, "-m", "kvcast.cli", "testbed", *words]
        return subprocess.run(argv, env=environment, capture_output=True, text=True, check=False)

    up = kvcast("up", "--target", target, "--nodes", "2")
    try:
        assert up.returncode == 0, up.stderr
        shown = kvcast("status").stdout.split()
        assert f"{target}," in shown
        assert "ended" not in shown
    finally:
        down = kvcast("down")
    assert down.returncode == 0, down.stderr


@pytest.mark.long
@on_every_target
def test_demo(target: Target) -> None:
    plan = DemoPlan(workloads=[catalog.Name.DOCUMENTS], length_s=1.0, target=target)
    figures = run_demo(plan, lambda _text: None, lambda _share: None, lambda _part: None)
    assert figures.verified
    assert len(figures.incast) == 3
    assert [row.mode for row in figures.rows] == list(MODES[catalog.Name.DOCUMENTS])
