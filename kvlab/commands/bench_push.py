"""`kvcast bench push`: whether gated pushes pay on traces, and that they cost nothing where they do not."""

from __future__ import annotations

import argparse

from rich.console import Console

from bmv2_testbed.bench.push import measure_pushes, push_table
from kvcast.arguments import whole
from kvcast.errors import UsageError
from kvlab.figures import write_figures
from kvlab.wiring import add_json, refusals
from planner.traces import TraceError, open_trace


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the benchmark."""
    parser.add_argument(
        "--trace",
        action="append",
        metavar="FILE",
        help="a trace or the name of one; may be given again (default conversation, toolmix, tenant, rollout8)",
    )
    parser.add_argument("--nodes", type=whole(), default=16, help="that requests go to in turn (default 16)")
    parser.add_argument("--seed", type=whole(), default=1, help="of arrivals within a tick of the trace (default 1)")
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Run it; UsageError for traces that cannot be read."""
    if args.nodes < 2:
        raise UsageError(f"--nodes {args.nodes}: between fewer than 2 nodes nothing is pushed")
    console = Console()
    figures = []
    with refusals(TraceError):
        for name in args.trace or ["conversation", "toolmix", "tenant", "rollout8"]:
            title, requests = open_trace(name, args.seed)
            figures.append(measure_pushes(title, requests, args.nodes))
    console.print(push_table(figures))
    write_figures(console, args.json, {"benchmark": "push", "cases": [case.to_json() for case in figures]})
    return 0
