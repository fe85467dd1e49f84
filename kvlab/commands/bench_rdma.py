"""`kvcast bench rdma`: the RDMA transport beside minimal programs, in a guest with soft-RoCE."""

from __future__ import annotations

import argparse

from bmv2_testbed.bench.rdma.guest import RdmaPlan, rdma_figures, rdma_table, run_rdma
from kvcast.arguments import between, whole
from kvcast.terminal import Terminal
from kvlab.bars import progress
from kvlab.figures import machine_facts, write_figures
from kvlab.wiring import add_json, refusals


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare `kvcast bench rdma`."""
    parser.add_argument("--rounds", type=whole(1), default=20, help="turns of each program (default 20)")
    parser.add_argument(
        "--slice", type=between(0.25, 10.0), default=0.75, metavar="S", help="seconds of a turn (default 0.75)"
    )
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Run it; UsageError where there is no guest, or a program failed."""
    console = Terminal()
    with refusals(), progress(console) as (say, moved):
        rounds = run_rdma(RdmaPlan(args.rounds, args.slice), say, moved)
    console.print(rdma_table(rounds))
    write_figures(console, args.json, {"benchmark": "rdma", "machine": machine_facts(), "cases": rdma_figures(rounds)})
    return 0
