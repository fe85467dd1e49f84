"""`kvcast bench value`: what our policy costs at scale."""

from __future__ import annotations

import argparse
from dataclasses import asdict

from rich.console import Console
from rich.table import Table

from bmv2_testbed.bench.policy.cost import measure_cost, measure_small_pool
from bmv2_testbed.bench.policy.displacement import measure_displacement
from kvcast.arguments import whole
from kvlab.figures import write_figures
from kvlab.wiring import add_json


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare `kvcast bench value`."""
    parser.add_argument("--chunks", type=whole(1000), default=1_000_000, help="chunks tracked (default 1000000)")
    parser.add_argument(
        "--residents",
        type=whole(16),
        nargs="+",
        default=[1_000, 10_000],
        help="chunks in the switch, for what displacing one costs the controller (default 1000 10000)",
    )
    parser.add_argument(
        "--small",
        type=whole(32),
        nargs="+",
        default=[64, 512, 2_048, 8_192],
        help="room of small pools in chunks (default 64 512 2048 8192)",
    )
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Measure and show."""
    console = Console()
    with console.status(f"fetching {args.chunks:,} chunks"):
        cost = measure_cost(args.chunks)
        small = [measure_small_pool(room) for room in args.small]
    with console.status("displacing chunks from the switch"):
        displacements = [measure_displacement(residents) for residents in args.residents]
    table = Table(title=f"our policy at {cost.tracked:,} tracked chunks, {cost.resident:,} of them in the pool")
    table.add_column("what")
    table.add_column("measured", justify="right")
    table.add_row("a fetched chunk that is here", f"{cost.hit_us:.2f} µs")
    table.add_row("choosing the policy, of that", f"{cost.selection_us:.2f} µs")
    table.add_row("a fetched chunk that is new", f"{cost.new_us:.2f} µs")
    table.add_row("besides, if it displaces another", f"{cost.displace_us:.2f} µs")
    for pool in small:
        figures = f"{pool.hit_us:.2f} / {pool.new_us:.2f} / {pool.displace_us:.2f} µs"
        table.add_row(f"the same three in a pool of {pool.room:,}", figures)
    table.add_row("a dict of as many keys, looked up and set", f"{cost.dict_us:.2f} µs")
    table.add_row("memory a tracked chunk", f"{cost.bytes_per_chunk:.1f} B")
    table.add_row("memory of all shadows and learned rates", f"{cost.fixed_bytes / 2**20:.1f} MiB")
    for one in displacements:
        table.add_row(
            f"controller: displace a chunk from a switch of {one.residents:,}", f"{one.displacement_us:.0f} µs"
        )
    console.print(table)
    everything = asdict(cost) | {
        "small_pools": [asdict(pool) for pool in small],
        "displacements": [asdict(one) for one in displacements],
    }
    write_figures(console, args.json, everything)
    return 0
