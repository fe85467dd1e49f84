"""`kvcast bench datapath`: what a cast segment costs at holder and readers."""

from __future__ import annotations

import argparse
from contextlib import nullcontext

from rich.console import Console

from bmv2_testbed.bench.datapath import DatapathPlan, datapath_table, run_datapath
from bmv2_testbed.cpu_group import isolated
from bmv2_testbed.errors import TestbedError
from kvcast.arguments import output_file, whole
from kvcast.cli import UsageError
from kvlab.bars import progress
from kvlab.figures import machine_facts, write_figures
from kvlab.wiring import size
from p4switch.build import BuildError, find_compiler


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare `kvcast bench datapath`."""
    parser.add_argument("--size", type=size, default=64 << 20, help="cast in each turn (default 64MiB)")
    parser.add_argument("--segment", type=size, default=4096, help="bytes of a segment (default 4KiB)")
    parser.add_argument(
        "--readers", type=whole(1), action="append", help="how many; may be given again (default 1 and 4)"
    )
    parser.add_argument("--repeat", type=whole(1), default=5, help="turns of each way (default 5)")
    parser.add_argument(
        "--isolate", action="store_true", help="run in a CPU group of its own, so that other programs do not slow it"
    )
    parser.add_argument("--json", type=output_file, metavar="FILE", help="write the figures there")


def run(args: argparse.Namespace) -> int:
    """Run it; 1 if a byte was wrong or missing."""
    plan = DatapathPlan(args.size, args.segment, tuple(args.readers or (1, 4)), args.repeat)
    console = Console()
    try:
        find_compiler()
        with isolated() if args.isolate else nullcontext("") as isolation, progress(console) as (say, moved):
            figures = run_datapath(plan, say, moved)
    except (TestbedError, BuildError) as error:
        raise UsageError(str(error)) from error
    console.print(datapath_table(figures))
    if isolation:
        console.print(isolation)
    document = {
        "benchmark": "datapath",
        "machine": machine_facts(),
        "isolation": isolation,
        "cases": [figure.to_json() for figure in figures],
    }
    write_figures(console, args.json, document)
    return 0 if all(figure.right for figure in figures) else 1
