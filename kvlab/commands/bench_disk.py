"""`kvcast bench disk`: the disk tier beside plain reads and writes of a file on the same device."""

from __future__ import annotations

import argparse
from pathlib import Path

from bmv2_testbed.bench.disk import DiskPlan, disk_table, run_disk
from kvcast.arguments import output_folder, whole
from kvcast.errors import UsageError
from kvcast.terminal import Terminal
from kvlab.bars import progress
from kvlab.figures import machine_facts, write_figures
from kvlab.wiring import add_json, refusals, size


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the benchmark."""
    parser.add_argument("--path", type=output_folder, default=Path("out"), help="a folder on that device (default out)")
    parser.add_argument("--size", type=size, default="256MiB", help="written and read in each round (default 256MiB)")
    parser.add_argument("--chunk", type=size, default="4MiB", help="of its chunks (default 4MiB)")
    parser.add_argument("--rounds", type=whole(1), default=5, help="of which the median counts (default 5)")
    parser.add_argument("--seed", type=whole(), default=1, help="of the content (default 1)")
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Run it; UsageError where the disk or the sizes do not do."""
    console = Terminal()
    try:
        with refusals(ValueError), progress(console) as (say, moved):
            plan = DiskPlan(args.path, args.chunk, args.size // args.chunk, args.rounds, args.seed)
            figures = run_disk(plan, say, moved)
    except OSError as error:
        raise UsageError(f"--path {args.path}: {error.strerror}") from error
    console.print(disk_table(figures))
    write_figures(console, args.json, {"benchmark": "disk", "machine": machine_facts(), "cases": [figures.to_json()]})
    return 0
