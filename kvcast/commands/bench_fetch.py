"""`kvcast bench fetch`: one reader alone on links of full speed."""

from __future__ import annotations

import argparse

from rich.console import Console

from bmv2_testbed.bench.fetch import FetchPlan, fetch_table, run_fetch
from bmv2_testbed.errors import TestbedError
from bmv2_testbed.scale import SCALES
from bmv2_testbed.spec import Target
from kvcast.arguments import output_file, whole
from kvcast.bars import progress
from kvcast.cli import UsageError
from kvcast.figures import machine_facts, write_figures
from kvcast.wiring import add_no_root, add_target, size, wiring_of


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare `kvcast bench fetch`."""
    parser.add_argument(
        "--size",
        type=size,
        action="append",
        help="may be given again (default 16MiB and 4KiB; tna and bmv2 1MiB and 4KiB)",
    )
    parser.add_argument("--repeat", type=whole(1), default=30, help="fetches of each size (default 30)")
    add_target(parser)
    add_no_root(parser)
    parser.add_argument("--seed", type=whole(), default=1, help="of the content (default 1)")
    parser.add_argument("--json", type=output_file, metavar="FILE", help="write the figures there")


def run(args: argparse.Namespace) -> int:
    """Run it; 1 if a byte was wrong or missing."""
    plan = FetchPlan(
        sizes_bytes=tuple(args.size or (SCALES[Target(args.target)].incast_bytes, 4096)),
        repeat=args.repeat,
        seed=args.seed,
        target=Target(args.target),
        wiring=wiring_of(args.no_root),
    )
    console = Console()
    try:
        with progress(console) as (say, moved):
            figures = run_fetch(plan, say, moved)
    except TestbedError as error:
        raise UsageError(str(error)) from error
    console.print(fetch_table(figures))
    cases = [figure.to_json() for figure in figures]
    write_figures(console, args.json, {"benchmark": "fetch", "machine": machine_facts(), "cases": cases})
    return 0 if all(figure.verified for figure in figures) else 1
