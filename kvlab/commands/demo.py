"""`kvcast demo`: the whole thing at work in a few minutes, ending in tables and a picture."""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from bmv2_testbed.bench.figures import IncastFigures, incast_table
from bmv2_testbed.demo.run import DemoFigures, DemoPlan, run_demo
from bmv2_testbed.spec import Target
from bmv2_testbed.switches import program_of
from kvcast.arguments import above_zero, output_folder, whole
from kvcast.terminal import Terminal
from kvlab.bars import progress
from kvlab.commands.bench_workloads import show_rows
from kvlab.figures import machine_facts
from kvlab.wiring import add_target, refusals, size
from kvproto.programs import programs_directory
from kvproto.units import format_rate
from planner.workloads.workload_catalog import NODES

INTRODUCTION = """kvcast demo: one switch ({target}) running {program}, a controller,
agents, links of {rate}.
  1. incast: {nodes} nodes fetch the same prefix from one holder, by each way that there is;
  2. workloads: {nodes} nodes with one GPU each serve prompts. The GPU is modelled (it waits as long as an H100 computes
     Llama 3 8B); agents, switch, links and bytes are real, blocks and links scaled down alike: seconds stay seconds.
Every byte that arrives is compared with what it must be.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare `kvcast demo`."""
    parser.add_argument("--size", type=size, help="prefix of the incast (default: what suits the target)")
    parser.add_argument(
        "--length", type=above_zero, metavar="S", help="only what arrives in the first S seconds of each workload"
    )
    add_target(parser)
    parser.add_argument("--seed", type=whole(), default=1, help="of content, prompts and arrivals (default 1)")
    parser.add_argument("--out", type=output_folder, default=Path("out/demo"), help="where pictures and figures go")


def run(args: argparse.Namespace) -> int:
    """Run it; 1 if a byte was wrong or missing."""
    console = Terminal()
    plan = DemoPlan(
        incast_bytes=args.size, length_s=args.length or math.inf, seed=args.seed, target=Target(args.target)
    )
    _introduce(console, plan)
    started_s = time.monotonic()
    with refusals(), progress(console) as (say, moved):
        figures = run_demo(plan, say, moved, lambda incast: _show_incast(console, plan, incast))
    for rows in figures.by_workload().values():
        show_rows(console, rows, plan.seed)
    from bmv2_testbed.demo.picture import draw  # and matplotlib: only when there is something to draw

    files = draw(figures, args.out)
    record = args.out / "demo.json"
    record.write_text(json.dumps(_to_json(figures), indent=1) + "\n")
    for case in figures.incast:
        for problem in case.problems:
            console.print(f"incast, {case.mode}: {problem}", style="red")
    console.print(
        f"took {time.monotonic() - started_s:.0f} s; pictures: {', '.join(map(str, files))}; figures: {record}"
    )
    return 0 if figures.verified else 1


def _introduce(console: Console, plan: DemoPlan) -> None:
    console.print(
        INTRODUCTION.format(
            target=plan.target,
            program=program_of(plan.target).relative_to(programs_directory()),
            nodes=NODES,
            rate=format_rate(plan.scale.link_bit_s),
        )
    )


def _show_incast(console: Console, plan: DemoPlan, cases: Sequence[IncastFigures]) -> None:
    scale = plan.scale
    console.print(incast_table(cases, NODES, scale.incast_bytes, scale.link_bit_s, "incast"))


def _to_json(figures: DemoFigures) -> dict[str, object]:
    return {
        "machine": machine_facts(),
        "incast": {case.mode: case.to_json() for case in figures.incast},
        "rows": [row.to_json() for row in figures.rows],
    }
