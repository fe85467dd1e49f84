"""`kvcast bench fetch`: one reader alone on links of full speed."""

from __future__ import annotations

import argparse

from bmv2_testbed.bench.fetch import (
    CHUNK_BYTES,
    FetchPlan,
    fetch_spread_tables,
    fetch_table,
    run_fetch,
    typical_fetches,
)
from bmv2_testbed.scale import SCALES
from bmv2_testbed.spec import Target
from kvcast.arguments import whole
from kvcast.terminal import Terminal
from kvlab.bars import progress
from kvlab.figures import machine_facts, write_figures
from kvlab.wiring import add_isolate, add_json, add_target, isolation, refusals, size


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare `kvcast bench fetch`."""
    parser.add_argument(
        "--size",
        type=size,
        action="append",
        help="may be given again (default 16MiB and 4KiB; tna and bmv2 1MiB and 4KiB)",
    )
    parser.add_argument(
        "--chunk", type=size, action="append", help="its chunks; may be given again, one after the other (default 1MiB)"
    )
    parser.add_argument("--repeat", type=whole(1), default=30, help="fetches of each size (default 30)")
    parser.add_argument(
        "--runs",
        type=whole(1),
        default=1,
        help="do everything so often, by turns, and show the median run of each row (default 1)",
    )
    add_isolate(parser)
    add_target(parser)
    parser.add_argument("--seed", type=whole(), default=1, help="of the content (default 1)")
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Run it; 1 if a byte was wrong or missing."""
    plan = FetchPlan(
        sizes_bytes=tuple(args.size or (SCALES[Target(args.target)].incast_bytes, 4096)),
        chunks_bytes=tuple(args.chunk or (CHUNK_BYTES,)),
        repeat=args.repeat,
        seed=args.seed,
        target=Target(args.target),
    )
    console, runs = Terminal(), []
    with refusals(), isolation(args) as isolated:
        if isolated:
            console.print(isolated)
        for run_index in range(args.runs):
            with progress(console) as (say, moved):
                say(f"run {run_index + 1} of {args.runs}")
                runs.append(run_fetch(plan, say, moved))
    figures = typical_fetches(runs)
    console.print(fetch_table(figures))
    if args.runs > 1:
        for table in fetch_spread_tables(runs):
            console.print(table)
    document = {
        "benchmark": "fetch",
        "machine": machine_facts(),
        "isolation": isolated,
        "cases": [figure.to_json() for figure in figures],
        "runs": [[figure.to_json() for figure in each] for each in runs],
    }
    write_figures(console, args.json, document)
    return 0 if all(figure.verified for figure in figures) else 1
