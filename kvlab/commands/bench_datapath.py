"""`kvcast bench datapath`: what a cast segment costs at holder and readers."""

from __future__ import annotations

import argparse

from bmv2_testbed.bench.datapath import DatapathPlan, datapath_table, run_datapath
from kvcast.arguments import whole
from kvcast.terminal import Terminal
from kvlab.bars import progress
from kvlab.figures import machine_facts, write_figures
from kvlab.wiring import add_isolate, add_json, isolation, refusals, size
from p4switch.build import BuildError, find_compiler


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare `kvcast bench datapath`."""
    parser.add_argument("--size", type=size, default=64 << 20, help="cast in each turn (default 64MiB)")
    parser.add_argument("--segment", type=size, default=4096, help="bytes of a segment (default 4KiB)")
    parser.add_argument(
        "--readers", type=whole(1), action="append", help="how many; may be given again (default 1 and 4)"
    )
    parser.add_argument("--repeat", type=whole(1), default=5, help="turns of each way (default 5)")
    add_isolate(parser)
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Run it; 1 if a byte was wrong or missing."""
    plan = DatapathPlan(args.size, args.segment, tuple(args.readers or (1, 4)), args.repeat)
    console = Terminal()
    with refusals(BuildError), isolation(args) as isolated, progress(console) as (say, moved):
        find_compiler()
        figures = run_datapath(plan, say, moved)
    console.print(datapath_table(figures))
    if isolated:
        console.print(isolated)
    document = {
        "benchmark": "datapath",
        "machine": machine_facts(),
        "isolation": isolated,
        "cases": [figure.to_json() for figure in figures],
    }
    write_figures(console, args.json, document)
    return 0 if all(figure.right for figure in figures) else 1
