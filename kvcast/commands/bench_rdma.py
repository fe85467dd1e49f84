"""`kvcast bench rdma`: the RDMA transport beside minimal programs, in a guest with soft-RoCE; or its code alone."""

from __future__ import annotations

import argparse

from rich.console import Console

from bmv2_testbed.bench.rdma.cpu import cpu_table, run_cpu
from bmv2_testbed.bench.rdma.guest import RdmaPlan, rdma_figures, rdma_table, run_rdma
from bmv2_testbed.errors import TestbedError
from kvcast.arguments import between, output_file, whole
from kvcast.bars import progress
from kvcast.cli import UsageError
from kvcast.figures import machine_facts, write_figures


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare `kvcast bench rdma`."""
    parser.add_argument(
        "--cpu", action="store_true", help="CPU time of the transport's own code instead, without a guest or a NIC"
    )
    parser.add_argument("--rounds", type=whole(1), default=20, help="turns of each program (default 20)")
    parser.add_argument(
        "--slice", type=between(0.25, 10.0), default=0.75, metavar="S", help="seconds of a turn (default 0.75)"
    )
    parser.add_argument("--json", type=output_file, metavar="FILE", help="write the figures there")


def run(args: argparse.Namespace) -> int:
    """Run it; UsageError where there is no guest or a program failed."""
    console = Console()
    try:
        with progress(console) as (say, moved):
            if args.cpu:
                figures = run_cpu(say, moved)
            else:
                rounds = run_rdma(RdmaPlan(args.rounds, args.slice), say, moved)
    except TestbedError as error:
        raise UsageError(str(error)) from error
    if args.cpu:
        console.print(cpu_table(figures))
        cases = [{"work": name, "cpu_ns": nanoseconds} for name, nanoseconds in figures.items()]
    else:
        console.print(rdma_table(rounds))
        cases = rdma_figures(rounds)
    write_figures(console, args.json, {"benchmark": "rdma", "machine": machine_facts(), "cases": cases})
    return 0
