"""`kvcast bench workloads`: where a pool pays and where it does not, with real agents and a real switch."""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from bmv2_testbed.spec import Target
from bmv2_testbed.workloads.rows import Row, RowsPlan, happened, run_rows
from kvcast.arguments import above_zero, whole
from kvcast.errors import UsageError
from kvcast.terminal import Terminal
from kvlab.bars import progress
from kvlab.figures import machine_facts, write_figures
from kvlab.wiring import add_json, add_target, isolation, refusals
from planner.workloads.workload_catalog import Mode, Name, workload


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare `kvcast bench workloads`."""
    add_rows(parser)


def add_rows(parser: argparse.ArgumentParser) -> None:
    """Which rows, on what, and where the figures go."""
    parser.add_argument(
        "--workload",
        action="append",
        choices=[name.value for name in Name],
        help="which workload; may be given again (default all)",
    )
    parser.add_argument(
        "--mode",
        action="append",
        choices=[mode.value for mode in Mode],
        help="what the pool can do; may be given again (default all)",
    )
    parser.add_argument(
        "--isolate", action="store_true", help="in a CPU group of its own, before all else that runs here"
    )
    add_target(parser)
    parser.add_argument(
        "--length", type=above_zero, metavar="S", help="only what arrives in the first S seconds of each workload"
    )
    parser.add_argument("--seed", type=whole(), default=1, help="of prompts and arrivals (default 1)")
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Run it; 1 if a byte was wrong or missing."""
    console = Terminal()
    rows, document = run_plan(console, args)
    for name in dict.fromkeys(row.workload for row in rows):
        show_rows(console, [row for row in rows if row.workload is name], args.seed)
    write_figures(console, args.json, document)
    return 0 if all(row.verified for row in rows) else 1


def run_plan(console: Console, args: argparse.Namespace) -> tuple[list[Row], dict[str, Any]]:
    """The rows that the command asks for, and the document for `--json`."""
    target = Target(args.target)
    if target is Target.BRIDGE:
        raise UsageError("--target bridge cannot cast: choose p4switch, tna or bmv2")
    plan = RowsPlan(
        workloads=[Name(name) for name in dict.fromkeys(args.workload or Name)],
        modes=[Mode(mode) for mode in dict.fromkeys(args.mode or Mode)],
        target=target,
        seed=args.seed,
        length_s=args.length or math.inf,
    )
    with refusals(), isolation(args) as isolated:
        rows = _collect(console, plan)
    document = {
        "benchmark": "workloads",
        "machine": machine_facts(),
        "isolation": isolated,
        "target": target.value,
        "seed": args.seed,
        "rows": [row.to_json() for row in rows],
    }
    return rows, document


def _collect(console: Console, plan: RowsPlan) -> list[Row]:
    """Run the rows with a progress bar; in the order of workloads and modes."""
    with progress(console) as (say, moved):
        rows = list(run_rows(plan, say, moved))
    order = {name: place for place, name in enumerate(plan.workloads)}
    modes = list(Mode)
    return sorted(rows, key=lambda row: (order[row.workload], modes.index(row.mode)))


def show_rows(console: Console, rows: Sequence[Row], seed: int) -> None:
    """All modes of one workload: a table, and a sentence for each mode."""
    made = workload(rows[0].workload, seed)
    table = Table(title=f"{made.name}: {made.title}", title_justify="left")
    for heading in ("mode", "mean", "planned", "p99", "blocks computed", "regret / saved", "compared"):
        table.add_column(heading, justify="left" if heading == "mode" else "right")
    for row in rows:
        table.add_row(
            row.mode.value,
            f"{row.mean_s * 1e3:.0f} ms",
            f"{row.predicted.mean_s * 1e3:.0f} ms",
            f"{row.p99_s * 1e3:.0f} ms",
            f"{row.computed_blocks}",
            f"{row.regret_s:.1f} / {row.saved_s:.1f} s",
            "yes" if row.verified else "NO",
        )
    console.print(table)
    for row in rows:
        console.print(f"  {row.mode}: {happened(row)} Gates decided: {decisions(row)}.")
        for problem in row.problems:
            console.print(f"  {row.mode}: {problem}", style="red")
    console.print()


def decisions(row: Row) -> str:
    """What the gates decided, in words."""
    return ", ".join(f"{choice} {count} times" for choice, count in row.decisions.items()) or "nothing"
