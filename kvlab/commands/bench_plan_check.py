"""`kvcast bench plan-check`: what the planner says of the demo's workloads, beside what the testbed measures."""

from __future__ import annotations

import argparse

from rich.table import Table

from bmv2_testbed.workloads.comparison import TOLERANCE, differences
from bmv2_testbed.workloads.rows import Row
from kvcast.arguments import above_zero
from kvcast.terminal import Terminal
from kvlab.commands.bench_workloads import add_rows, run_plan
from kvlab.figures import write_figures


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare `kvcast bench plan-check`."""
    add_rows(parser)
    parser.add_argument(
        "--tolerance",
        type=above_zero,
        default=TOLERANCE * 100,
        metavar="PERCENT",
        help="how far a row's mean may be off (default 10)",
    )


def run(args: argparse.Namespace) -> int:
    """Run it; 1 if a row is off by more and the machine's processors do not explain it, or a byte was wrong."""
    console = Terminal()
    rows, document = run_plan(console, args)
    console.print(_table(rows))
    found = differences(rows, args.tolerance / 100)
    for difference in found:
        console.print(str(difference), style="yellow" if difference.explained else "red", soft_wrap=True)
    document |= {
        "benchmark": "plan-check",
        "differences": [str(difference) for difference in found],
        "unexplained": sum(not difference.explained for difference in found),
    }
    write_figures(console, args.json, document)
    return 0 if all(difference.explained for difference in found) and all(row.verified for row in rows) else 1


def _table(rows: list[Row]) -> Table:
    table = Table(
        title="plan / testbed: mean time until a prompt's KV is there; computed blocks; bytes that nodes sent"
    )
    headings = ("workload", "mode", "mean", "plan is off", "blocks", "sent", "waited for processors", "compared")
    for heading in headings:
        table.add_column(heading, justify="left" if heading in ("workload", "mode") else "right")
    for row in rows:
        planned = row.predicted
        table.add_row(
            row.workload.value,
            row.mode.value,
            f"{planned.mean_s * 1e3:.0f} / {row.mean_s * 1e3:.0f} ms",
            f"{row.error:+.1%}",
            f"{planned.computed_blocks} / {row.computed_blocks}",
            f"{planned.uplink_bytes / 1e6:.1f} / {row.uplink_bytes / 1e6:.1f} MB",
            f"{row.processors.waited_s:.1f} s",
            "yes" if row.verified else "; ".join(row.problems),
        )
    return table
