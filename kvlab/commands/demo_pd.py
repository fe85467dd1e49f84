"""`kvcast demo-pd`: one vLLM engine, on the CPU, computes prompts; one and four others decode them through the pool."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from functools import partial

from rich.console import Console
from rich.table import Table
from rich.text import Text

from bmv2_testbed.demo.prefill import PrefillDemoFigures, PrefillDemoPlan, run_prefill_demo
from bmv2_testbed.demo.prefill_systems import nixl_refusal
from kvcast.arguments import whole
from kvcast.terminal import Terminal
from kvlab.engine_demo import add_demo_arguments, check_demo_arguments, play
from kvlab.figures import machine_facts, write_figures


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare `kvcast demo-pd`."""
    add_demo_arguments(parser, "demo-pd", "a prompt")
    parser.add_argument("--rounds", type=whole(1), default=3, help="prompts with one, and with four (default 3)")


def run(args: argparse.Namespace) -> int:
    """Run it; 1 if any engine said other tokens than the one without kvcast."""
    check_demo_arguments(args, "demo-pd")
    console = Terminal()
    refusal = nixl_refusal()
    plan = PrefillDemoPlan(prompt_tokens=args.tokens, rounds=args.rounds, seed=args.seed, with_nixl=refusal is None)
    console.print(
        f"kvcast demo-pd: one vLLM engine computes prompts, {plan.decoders} decode (float32, CPU), each "
        "on a host of its own with its agent; a controller; one switch. Then the same with vLLM's NIXL connector."
    )
    if refusal is not None:
        console.print(f"Without NIXL beside it. {refusal}.")
    figures, isolation = play(args, console, partial(run_prefill_demo, plan))
    _show(console, plan, figures)
    write_figures(console, args.json, {"machine": machine_facts(), "isolation": isolation, **asdict(figures)})
    return 0 if figures.good else 1


def _show(console: Console, plan: PrefillDemoPlan, figures: PrefillDemoFigures) -> None:
    table = Table(title=f"a prompt of {plan.prompt_tokens} tokens, {figures.prompt_bytes / 2**20:.1f} MiB of KV")
    for heading in ("over", "decoders", "first token", "beside one decoder", "producer sent", "same tokens"):
        table.add_column(heading, justify="left" if heading == "over" else "right")
    for system in figures.systems:
        alone_s = figures.of(system, 1).first_token_s[0]
        for count in (1, plan.decoders):
            each = figures.of(system, count)
            times = [f"{time_s * 1000:.0f}" for time_s in each.first_token_s]
            table.add_row(
                system,
                str(count),
                f"{times[0] if count == 1 else f'{times[0]} to {times[-1]}'} ms",
                f"{each.first_token_s[-1] / alone_s:.2f}",
                f"{each.sent_bytes / figures.prompt_bytes:.2f} S",
                "yes" if each.same_tokens else Text("NO", "red"),
            )
    console.print(table)
    console.print(
        f"S is the KV of a prompt's whole chunks. Medians of {plan.rounds} prompts, from when the engine that computes "
        f"is asked. The slowest of {plan.decoders} decoders beside a decoder alone. An engine without kvcast computes "
        f"a prompt in {figures.computing_s * 1000:.0f} ms."
    )
