"""`kvcast bench vllm`: a real engine with the pool, side by side with one without it."""

from __future__ import annotations

import argparse
import tempfile
from dataclasses import asdict
from pathlib import Path

from rich.console import Console
from rich.table import Table

from bmv2_testbed.bench.engine import EngineBenchFigures, EngineBenchPlan, run_engine_bench
from bmv2_testbed.engines.small_models import make_model
from kvcast.arguments import whole
from kvlab.figures import write_figures
from kvlab.wiring import add_json, need_vllm, refusals


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare `kvcast bench vllm`."""
    parser.add_argument("--tokens", type=whole(1), default=4000, help="length of the prompts (default 4000)")
    parser.add_argument("--repeat", type=whole(1), default=7, help="prompts (default 7)")
    parser.add_argument("--misses", type=whole(1), default=40, help="requests that find nothing (default 40)")
    parser.add_argument("--dtype", choices=["bfloat16", "float32"], default="bfloat16", help="default bfloat16")
    parser.add_argument("--seed", type=whole(), default=1, help="of prompts (default 1)")
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Run it; 1 if engines said different tokens in float32, where nothing rounds them apart."""
    need_vllm()
    plan = EngineBenchPlan(args.tokens, args.repeat, args.misses, args.seed, args.dtype)
    console = Console()
    with refusals(), tempfile.TemporaryDirectory(prefix="kvcast-") as made, console.status("model") as status:
        folder = Path(made)
        figures = run_engine_bench(plan, make_model(folder / "model"), folder, lambda text: status.update(text))
    _show(console, plan, figures)
    ratios = {"pool_ratio": figures.pool_ratio, "refused_ratio": figures.refused_ratio, "own_ratio": figures.own_ratio}
    write_figures(console, args.json, {**asdict(figures), **ratios})
    return 0 if figures.same_tokens or args.dtype != "float32" else 1


def _show(console: Console, plan: EngineBenchPlan, figures: EngineBenchFigures) -> None:
    table = Table(title=f"time to first token, {plan.prompt_tokens} tokens, median of {plan.repeat}")
    for heading in ("engine", "first token", "of recompute"):
        table.add_column(heading, justify="left" if heading == "engine" else "right")
    for name, seconds in (
        ("without kvcast", figures.recompute_s),
        ("KV in this node's pool", figures.pool_s),
        ("gate says no", figures.refused_s),
        ("without kvcast, in its own prefix cache", figures.own_s),
    ):
        table.add_row(name, f"{seconds * 1000:.1f} ms", f"{seconds / figures.recompute_s:.1%}")
    console.print(table)
    console.print(
        f"A miss spends {figures.miss_wall_s * 1e6:.0f} µs in the connector's calls on the engine's thread "
        f"({figures.miss_cpu_s * 1e6:.0f} µs of CPU); where the prompt is saved, until all of it is in the pool, "
        f"{figures.saved_miss_cpu_s * 1e6:.0f} µs of CPU. "
        f"Same tokens: {'yes' if figures.same_tokens else 'NO'}."
    )
