"""`kvcast bench disk`: the disk tier beside plain reads and writes of a file on the same device."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from rich.console import Console

from bmv2_testbed.bench.disk import DiskPlan, disk_table, run_disk
from bmv2_testbed.errors import TestbedError
from bmv2_testbed.units import parse_size_bytes
from kvcast.cli import UsageError


def add_parser(benches: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the benchmark."""
    parser = benches.add_parser("disk", help="the agent's disk tier, beside a plain file on the same device")
    parser.add_argument("--path", type=Path, default=Path("out"), help="a folder on that device (default out)")
    parser.add_argument("--size", default="256MiB", help="written and read in each round (default 256MiB)")
    parser.add_argument("--chunk", default="4MiB", help="of its chunks (default 4MiB)")
    parser.add_argument("--rounds", type=int, default=5, help="of which the median counts (default 5)")
    parser.add_argument("--seed", type=int, default=1, help="of the content (default 1)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there")


def run(args: argparse.Namespace) -> int:
    """Run it; UsageError where the disk or the sizes do not do."""
    from kvcast.commands.bench import machine_facts, progress

    try:
        chunk_bytes, size_bytes = parse_size_bytes(args.chunk), parse_size_bytes(args.size)
        plan = DiskPlan(args.path, chunk_bytes, size_bytes // chunk_bytes, args.rounds, args.seed)
        console = Console()
        with progress(console) as (say, moved):
            figures = run_disk(plan, say, moved)
    except (TestbedError, ValueError) as error:
        raise UsageError(str(error)) from error
    except OSError as error:
        raise UsageError(f"--path {args.path}: {error.strerror}") from error
    console.print(disk_table(figures))
    if args.json is not None:
        args.json.parent.mkdir(parents=True, exist_ok=True)
        what = {"benchmark": "disk", "machine": machine_facts(), "cases": [figures.to_json()]}
        args.json.write_text(json.dumps(what, indent=1) + "\n")
        console.print(f"figures: {args.json}")
    return 0
