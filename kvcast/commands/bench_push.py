"""`kvcast bench push`: whether gated pushes pay on traces, and that they cost nothing where they do not."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from rich.console import Console

from bmv2_testbed.bench.push import measure_pushes, push_table
from kvcast.cli import UsageError
from planner.traces import TraceError, dequantise, find_trace, is_quantised, read_trace


def add_parser(benches: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the benchmark."""
    parser = benches.add_parser("push", help="gated pushes on traces: fetches that engines wait for, and bytes")
    parser.add_argument(
        "--trace",
        action="append",
        metavar="FILE",
        help="a trace or the name of one; may be given again (default conversation, toolmix, tenant, rollout8)",
    )
    parser.add_argument("--nodes", type=int, default=16, help="that requests go to in turn (default 16)")
    parser.add_argument("--seed", type=int, default=1, help="of arrivals within a tick of the trace (default 1)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there")


def run(args: argparse.Namespace) -> int:
    """Run it; UsageError for traces that cannot be read."""
    if args.nodes < 2:
        raise UsageError(f"--nodes {args.nodes}: between fewer than 2 nodes nothing is pushed")
    console = Console()
    figures = []
    try:
        for name in args.trace or ["conversation", "toolmix", "tenant", "rollout8"]:
            path, title = Path(name), name
            if not path.is_file():
                found = find_trace(name)
                path, title = found.path, found.title
            requests = read_trace(path)
            if is_quantised(requests):
                requests = dequantise(requests, args.seed)
            figures.append(measure_pushes(title, requests, args.nodes))
    except TraceError as error:
        raise UsageError(str(error)) from error
    console.print(push_table(figures))
    if args.json is not None:
        args.json.parent.mkdir(parents=True, exist_ok=True)
        what = {"benchmark": "push", "cases": [case.to_json() for case in figures]}
        args.json.write_text(json.dumps(what, indent=1) + "\n")
        console.print(f"figures: {args.json}")
    return 0
