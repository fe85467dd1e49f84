"""`kvcast bench blend`: documents from the pool behind any others, and what a model makes of their KV."""

from __future__ import annotations

import argparse
from pathlib import Path

from bmv2_testbed.bench.blend import BlendPlan, blend_table, carry_by_testbed, run_blend
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
    parser.add_argument("--seed", type=whole(0), default=1, help="of the order in which documents are put (default 1)")
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Run it; UsageError where there is no model."""
    plan = BlendPlan(args.model, args.windows, args.seed)
    console = Terminal()
    with refusals(), progress(console) as (say, moved):
        report = run_blend(plan, carry_by_testbed(), say, moved)
    console.print(blend_table(report))
    console.print(
        f"perplexity on KV computed in full: {report.full_perplexity:.2f}; first documents, which are prefixes, differ"
        f" from it by {report.prefix_error:.1e}; {report.documents} documents crossed the network in"
        f" {report.whole_bytes:,} bytes, and without their first layer in {report.later_bytes:,}"
    )
    write_figures(console, args.json, {"benchmark": "blend", "machine": machine_facts(), **report.to_json()})
    return 0
