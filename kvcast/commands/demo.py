"""`kvcast demo`: the whole thing at work in a few minutes, ending in a table and a picture."""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from bmv2_testbed.bench.figures import incast_table
from bmv2_testbed.demo.run import NODES, DemoFigures, DemoPlan, run_demo
from bmv2_testbed.errors import TestbedError
from bmv2_testbed.spec import Target
from bmv2_testbed.switches import program_of
from bmv2_testbed.workloads.replay_run import ReplayFigures
from kvcast.arguments import above_zero, output_folder, whole
from kvcast.bars import progress
from kvcast.cli import UsageError, need
from kvcast.figures import machine_facts
from kvcast.wiring import add_no_root, add_target, size, wiring_of
from kvdaemon.programs import programs_directory
from kvproto.units import format_bytes, format_rate

INTRODUCTION = """[bold]kvcast demo[/bold]: one switch ({target}) running {program}, a controller, {agents} agents.
  1. incast: {nodes} nodes fetch the same prefix from one holder: unicast, cast by the switch, served by the switch;
  2. traces: requests replayed so that nodes really fetch through their agents. One {block} block on a {rate} link
     stands for 512 tokens of Llama-3-8B (64 MiB) on 100 Gbit/s: seconds stay seconds.
Every byte that arrives is compared with what it must be. Computing a prompt's KV is modelled (a sleep), and says so.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare `kvcast demo`."""
    parser.add_argument("--size", type=size, help="prefix of the incast (default: what suits the target)")
    parser.add_argument("--stretch", type=above_zero, default=48.0, metavar="S", help="of each trace (default 48)")
    parser.add_argument("--faster", type=above_zero, default=4.0, metavar="X", help="as fast as that (default 4)")
    add_target(parser)
    add_no_root(parser)
    parser.add_argument("--seed", type=whole(), default=1, help="of content and of where requests go (default 1)")
    parser.add_argument("--out", type=output_folder, default=Path("out/demo"), help="where pictures and figures go")


def run(args: argparse.Namespace) -> int:
    """Run it; 1 if a byte was wrong or missing."""
    need("matplotlib")
    console = Console()
    plan = DemoPlan(
        incast_bytes=args.size,
        stretch_s=args.stretch,
        compression=args.faster,
        seed=args.seed,
        target=Target(args.target),
        wiring=wiring_of(args.no_root),
    )
    scale = plan.scale
    console.print(
        INTRODUCTION.format(
            target=plan.target,
            program=program_of(plan.target).relative_to(programs_directory()),
            agents=NODES + 1,
            nodes=NODES,
            block=format_bytes(scale.block_bytes),
            rate=format_rate(scale.link_bit_s),
        )
    )
    started_s = time.monotonic()
    try:
        with progress(console) as (say, moved):
            figures = run_demo(plan, say, moved, lambda part: _show(console, plan, part))
    except TestbedError as error:
        raise UsageError(str(error)) from error
    from bmv2_testbed.demo.picture import draw  # and matplotlib: only when there is something to draw

    files = draw(figures, args.out)
    record = args.out / "demo.json"
    record.write_text(json.dumps(_to_json(figures), indent=1) + "\n")
    for problem in _problems(figures):
        console.print(f"[red]{problem}[/red]")
    console.print(
        f"took {time.monotonic() - started_s:.0f} s; pictures: {', '.join(map(str, files))}; figures: {record}"
    )
    return 0 if figures.verified else 1


def _show(console: Console, plan: DemoPlan, part: DemoFigures) -> None:
    scale = plan.scale
    if part.incast:
        cases = [case for _, case in part.incast]
        console.print(incast_table(cases, NODES, scale.incast_bytes, scale.link_bit_s, "incast"))
    for title, group in part.replays:
        console.print(_times_table(title, group))
        console.print(_sources_table(group))
        if not any(figures.sources.get("cast") for figures in group):
            console.print("No two nodes waited for the same block at the same moment: there was nothing to cast.\n")


def _times_table(title: str, group: Sequence[ReplayFigures]) -> Table:
    """How long until a prompt's KV is there, and what that cost the links."""
    table = Table(
        title=f"{title}: {group[0].requests} requests, {group[0].blocks} blocks",
        caption="KV ready: measured fetch + modelled computing of what no pool had",
    )
    for heading in ("mode", "KV ready, mean", "p95", "fetch", "uplinks sent", "busiest", "compared"):
        table.add_column(heading, justify="left" if heading == "mode" else "right")
    for figures in group:
        p95_s = statistics.quantiles(figures.ready_s, n=20)[-1] if len(figures.ready_s) > 1 else 0.0
        table.add_row(
            figures.mode,
            f"{_mean_ms(figures.ready_s)} ms",
            f"{p95_s * 1000:.0f} ms",
            f"{_mean_ms(figures.fetch_s)} ms",
            f"{sum(figures.uplink_bytes) / 2**20:.1f} MiB",
            f"{figures.busiest_uplink_bytes / 2**20:.1f} MiB",
            "NO" if figures.wrong_blocks or figures.problems else f"{figures.verified_bytes / 2**20:.0f} MiB",
        )
    return table


def _mean_ms(times_s: Sequence[float]) -> str:
    """`-` without any."""
    return f"{statistics.fmean(times_s) * 1000:.0f}" if times_s else "-"


def _sources_table(group: Sequence[ReplayFigures]) -> Table:
    """Where the blocks came from."""
    table = Table(title="where blocks came from")
    names = ("local", "holder", "cast", "switch", "computed")
    for heading in ("mode", *names):
        table.add_column(heading, justify="left" if heading == "mode" else "right")
    for figures in group:
        table.add_row(figures.mode, *(str(figures.sources.get(name, 0)) for name in names))
    return table


def _problems(figures: DemoFigures) -> list[str]:
    found = [f"{label}: {problem}" for label, case in figures.incast for problem in case.problems]
    for title, group in figures.replays:
        found += [f"{title}, {each.mode}: {problem}" for each in group for problem in each.problems]
    return found


def _to_json(figures: DemoFigures) -> dict[str, object]:
    return {
        "machine": machine_facts(),
        "incast": {label: case.to_json() for label, case in figures.incast},
        "replays": {title: [each.to_json() for each in group] for title, group in figures.replays},
    }
