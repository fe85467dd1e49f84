"""`kvcast bench codec`: KV in fewer bytes: ratio, speed of a core, and what a model makes of it."""

from __future__ import annotations

import argparse
from pathlib import Path

from bmv2_testbed.bench.kv_forms import FormsPlan, forms_table, run_forms
from kvcast.arguments import whole
from kvcast.terminal import Terminal
from kvlab.bars import progress
from kvlab.figures import machine_facts, write_figures
from kvlab.wiring import add_json, refusals


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the benchmark."""
    parser.add_argument(
        "--model",
        type=Path,
        default=Path("out/kv_model.npz"),
        metavar="FILE",
        help="what tools/train_kv_model.py wrote (default out/kv_model.npz)",
    )
    parser.add_argument("--windows", type=whole(1), default=24, help="contexts of held-out text (default 24)")
    parser.add_argument("--rounds", type=whole(1), default=5, help="of each form and context (default 5)")
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Run it; UsageError where there is no model."""
    plan = FormsPlan(args.model, args.windows, args.rounds)
    console = Terminal()
    with refusals(), progress(console) as (say, moved):
        figures = run_forms(plan, say, moved)
    console.print(forms_table(figures))
    cases = [one.to_json() for one in figures]
    write_figures(console, args.json, {"benchmark": "codec", "machine": machine_facts(), "cases": cases})
    return 0
