"""`kvcast bench cold`: put and get through the agent's cold store, its clients alone, and native ones, by turns."""

from __future__ import annotations

import argparse
from pathlib import Path

from bmv2_testbed.bench.cold import ColdPlan, cold_table, run_cold
from kvcast.arguments import output_folder, whole
from kvcast.errors import UsageError
from kvcast.terminal import Terminal
from kvlab.bars import progress
from kvlab.figures import machine_facts, write_figures
from kvlab.wiring import add_json, refusals, size


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the benchmark."""
    parser.add_argument("--path", type=output_folder, default=Path("out"), help="a folder for files (default out)")
    parser.add_argument("--chunk", type=size, default="1MiB", help="put and got at a time (default 1MiB)")
    parser.add_argument("--rounds", type=whole(1), default=40, help="of which the median counts (default 40)")
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Run it; UsageError where a service is missing."""
    plan = ColdPlan(args.path, args.chunk, args.rounds)
    console = Terminal()
    try:
        with refusals(), progress(console) as (say, moved):
            figures = run_cold(plan, say, moved)
    except OSError as error:
        raise UsageError(f"--path {args.path}: {error.strerror}") from error
    console.print(cold_table(plan, figures))
    cases = [one.to_json() for one in figures]
    write_figures(console, args.json, {"benchmark": "cold", "machine": machine_facts(), "cases": cases})
    return 0
