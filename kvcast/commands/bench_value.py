"""`kvcast bench value`: what our policy costs at scale."""

from __future__ import annotations

import argparse
from dataclasses import asdict

from rich.console import Console
from rich.table import Table

from bmv2_testbed.bench.policy.cost import measure_cost
from bmv2_testbed.bench.policy.displacement import measure_displacement
from kvcast.arguments import output_file, whole
from kvcast.cli import UsageError
from kvcast.figures import write_figures


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare `kvcast bench value`."""
    parser.add_argument("--chunks", type=whole(), default=1_000_000, help="chunks tracked (default 1000000)")
    parser.add_argument(
        "--residents",
        type=whole(),
        nargs="+",
        default=[1_000, 10_000],
        help="chunks in the switch, for what displacing one costs the controller (default 1000 10000)",
    )
    parser.add_argument("--json", type=output_file, metavar="FILE", help="write the figures there")


def run(args: argparse.Namespace) -> int:
    """Measure and show."""
    if args.chunks < 1000:
        raise UsageError(f"--chunks {args.chunks}: at least 1000")
    if min(args.residents) < 16:
        raise UsageError(f"--residents {min(args.residents)}: at least 16")
    console = Console()
    with console.status(f"fetching {args.chunks:,} chunks"):
        cost = measure_cost(args.chunks)
    with console.status("displacing chunks from the switch"):
        displacements = [measure_displacement(residents) for residents in args.residents]
    table = Table(title=f"our policy at {cost.tracked:,} tracked chunks, {cost.resident:,} of them in the pool")
    table.add_column("what")
    table.add_column("measured", justify="right")
    table.add_row("a fetched chunk that is here", f"{cost.hit_us:.2f} µs")
    table.add_row("a fetched chunk that displaces another", f"{cost.miss_us:.2f} µs")
    table.add_row("choosing the policy, of that", f"{cost.contest_us:.2f} µs")
    table.add_row("a dict of as many keys, looked up and set", f"{cost.dict_us:.2f} µs")
    table.add_row("memory a tracked chunk", f"{cost.bytes_per_chunk:.1f} B")
    table.add_row("memory of all shadows and learned rates", f"{cost.fixed_bytes / 2**20:.1f} MiB")
    for one in displacements:
        table.add_row(
            f"controller: displace a chunk from a switch of {one.residents:,}", f"{one.displacement_us:.0f} µs"
        )
    console.print(table)
    displaced = [asdict(one) for one in displacements]
    write_figures(console, args.json, asdict(cost) | {"displacements": displaced})
    return 0
