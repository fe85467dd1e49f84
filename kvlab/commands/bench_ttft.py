"""`kvcast bench ttft`: time to first token by where a prompt's KV comes from, by turns."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from functools import partial
from typing import Any

from rich.console import Console
from rich.table import Table

from bmv2_testbed.bench.first_token import Case, FirstTokenFigures, FirstTokenPlan, run_first_token_bench
from bmv2_testbed.demo.vllm import MODEL
from bmv2_testbed.spec import Target
from kvcast.arguments import whole
from kvcast.terminal import Terminal
from kvlab.engine_demo import play
from kvlab.figures import machine_facts, write_figures
from kvlab.wiring import add_isolate, add_json, add_target, need_vllm

MODELS: dict[str, dict[str, Any]] = {"small": {}, "demo": MODEL}
"""What differs from a small Llama."""
MUST_REACH = {Case.LOCAL: (1.5, Case.OWN), Case.REMOTE: (2.5, Case.OWN), Case.AT_ONCE: (0.25, Case.COMPUTED)}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare `kvcast bench ttft`."""
    parser.add_argument("--tokens", type=whole(1), default=2000, help="length of the prompts (default 2000)")
    parser.add_argument(
        "--model",
        choices=sorted(MODELS),
        default="small",
        help="small: 4 layers of 256; demo: that of `kvcast demo-vllm`, 8 layers of 512 (default small)",
    )
    parser.add_argument("--chunk-tokens", type=whole(1), default=64, help="tokens of a chunk (default 64)")
    parser.add_argument("--repeat", type=whole(1), default=11, help="prompts (default 11)")
    parser.add_argument("--engines", type=whole(2), default=4, help="that fetch at once (default 4)")
    parser.add_argument("--seed", type=whole(), default=1, help="of prompts (default 1)")
    add_target(parser)
    add_isolate(parser)
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Run it; 1 if engines said different tokens."""
    need_vllm()
    plan = FirstTokenPlan(
        prompt_tokens=args.tokens,
        chunk_tokens=args.chunk_tokens,
        repeat=args.repeat,
        engines_at_once=args.engines,
        seed=args.seed,
        target=Target(args.target),
    )
    console = Terminal()
    figures, isolation = play(args, console, partial(run_first_token_bench, plan), MODELS[args.model])
    _show(console, plan, figures)
    facts = {"machine": machine_facts(), "isolation": isolation, "model": args.model, "plan": asdict(plan)}
    write_figures(console, args.json, {**facts, **asdict(figures)})
    return 0 if figures.same_tokens else 1


def _show(console: Console, plan: FirstTokenPlan, figures: FirstTokenFigures) -> None:
    table = Table(title=f"time to first token, {plan.prompt_tokens} tokens in float32, {plan.repeat} prompts")
    for heading in ("the prompt's KV", "median", "least", "of computing", "of own cache", "must reach"):
        table.add_column(heading, justify="left" if heading == "the prompt's KV" else "right")
    for case in Case:
        limit, to = MUST_REACH.get(case, (None, case))
        table.add_row(
            case.value,
            f"{figures.median_s(case) * 1000:.1f} ms",
            f"{min(figures.seconds[case]) * 1000:.1f} ms",
            f"{figures.ratio(case, Case.COMPUTED):.3f}",
            f"{figures.ratio(case, Case.OWN):.2f}",
            "" if limit is None else f"{limit} of {'computing' if to is Case.COMPUTED else 'own cache'}",
        )
    console.print(table)
    console.print(f"Same tokens: {'yes' if figures.same_tokens else 'NO'}. Of engines at once the slowest counts.")
