"""`kvcast bench layout`: an engine's pages in and out of chunks, by their layout, beside a plain copy."""

from __future__ import annotations

import argparse

from bmv2_testbed.bench.layout_copies import CopiesPlan, copies_table, run_copies
from kvcast.arguments import whole
from kvcast.terminal import Terminal
from kvlab.figures import machine_facts, write_figures
from kvlab.wiring import add_json


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the benchmark."""
    parser.add_argument("--blocks", type=whole(1), default=4, help="of 16 tokens in a chunk (default 4)")
    parser.add_argument("--rounds", type=whole(1), default=10, help="of each layout (default 10)")
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Run it; 1 where bytes were wrong."""
    figures = list(run_copies(CopiesPlan(args.blocks, args.rounds)))
    console = Terminal()
    console.print(copies_table(figures))
    cases = [one.to_json() for one in figures]
    write_figures(console, args.json, {"benchmark": "layout", "machine": machine_facts(), "cases": cases})
    return 0 if all(one.is_right for one in figures) else 1
