"""`kvcast demo-vllm`: real vLLM engines, on the CPU, share the KV of a document through the pool."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import asdict
from functools import partial

from rich.console import Console
from rich.table import Table
from rich.text import Text

from bmv2_testbed.demo.vllm import FIRST_COLD_HOST, EngineFigures, VllmDemoFigures, VllmDemoPlan, run_vllm_demo
from kvcast.terminal import Terminal
from kvlab.engine_demo import add_demo_arguments, check_demo_arguments, play
from kvlab.figures import machine_facts, write_figures


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare `kvcast demo-vllm`."""
    add_demo_arguments(parser, "demo-vllm", "the document")


def run(args: argparse.Namespace) -> int:
    """Run it; 1 if any engine said other tokens than the one without kvcast."""
    check_demo_arguments(args, "demo-vllm")
    console = Terminal()
    plan = VllmDemoPlan(document_tokens=args.tokens, seed=args.seed)
    hosts = FIRST_COLD_HOST + plan.cold_engines
    console.print(
        f"kvcast demo-vllm: {hosts} vLLM engines (float32, CPU) on {hosts} hosts, "
        "each with its agent; a controller; one switch.\nThe model is small and its weights are random: what it says "
        "means nothing, that all engines say the same does."
    )
    figures, isolation = play(args, console, partial(run_vllm_demo, plan))
    _show(console, plan, figures)
    write_figures(console, args.json, {"machine": machine_facts(), "isolation": isolation, **asdict(figures)})
    return 0 if figures.good else 1


def _show(console: Console, plan: VllmDemoPlan, figures: VllmDemoFigures) -> None:
    recompute_s = figures.plain.first_token_s
    table = Table(title=f"time to first token, document of {plan.document_tokens} tokens")
    for heading in ("engine", "first token", "of recompute", "tokens from the pool", "chunks from", "same tokens"):
        table.add_column(heading, justify="left" if heading in ("engine", "chunks from") else "right")
    table.add_row("without kvcast", f"{recompute_s * 1000:.0f} ms", "100 %", "0", "computed", "-")
    for each in (figures.asked, *figures.cold):
        table.add_row(*_row(each, recompute_s))
    console.print(table)
    console.print(
        f"{plan.cold_engines} engines at once: the holder sent "
        f"{figures.holder_sent_bytes / figures.document_bytes:.2f} times the document's "
        f"{figures.document_bytes / 2**20:.1f} MiB (unicast: {plan.cold_engines}.00 times)."
    )


def _row(each: EngineFigures, recompute_s: float) -> tuple[str | Text, ...]:
    return (
        each.name,
        f"{each.result.first_token_s * 1000:.0f} ms",
        f"{each.result.first_token_s / recompute_s:.1%}",
        str(each.result.cached_tokens),
        _sources(each.chunks_from),
        "yes" if each.same_tokens else Text("NO", "red"),
    )


def _sources(chunks: Mapping[str, float]) -> str:
    return ", ".join(f"{source} {count:.0f}" for source, count in sorted(chunks.items())) or "computed"
