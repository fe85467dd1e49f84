"""`kvcast plan`: what a pool would do for a trace, before anything is bought or installed."""

from __future__ import annotations

import argparse
import json
import os
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Final

from rich.progress import Progress

from kvcast.arguments import above_zero, output_file, output_folder, whole
from kvcast.errors import UsageError
from kvcast.terminal import Terminal
from kvlab.bars import bar
from kvlab.figures import write_figures
from planner.cluster.figures import ReplayFigures
from planner.cluster.options import Cluster, Routing, Sharing
from planner.errors import PlanError
from planner.hardware import ACCELERATORS, MODELS, Attention, Engine, Model, engine_of, find_model
from planner.plan import PlanFigures, PlanOptions, check, run_plan
from planner.report.limits import LIMITS
from planner.report.page import page
from planner.report.scale_tables import scale_conclusions, scale_grids
from planner.report.tables import grids, terminal
from planner.scale.growth import CHUNKS_PER_NODE, FOLLOWERS, grow
from planner.scale.load import load_of
from planner.scale.reuse import CELL_NODES, CELLS, Uses, reuse_in_cells
from planner.scale.unit_costs import measure, with_bench
from planner.traces import BLOCK_TOKENS, NAMES, TimeUnit, Trace, TraceError, open_trace
from planner.units import format_seconds, link_rate, memory_bytes, switch_bytes
from planner.verdict import conclusions, headline

_SAY_S: Final = 30.0
_REPLICAS: Final = 3


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare `kvcast plan`."""
    parser.add_argument(
        "--trace", default="conversation", help=f"a file, or one of {', '.join(NAMES)}; it may end in .zst"
    )
    parser.add_argument(
        "--time-unit",
        choices=[one.value for one in TimeUnit],
        help="of a file's timestamps (default: worked out and said)",
    )
    parser.add_argument(
        "--block-tokens", type=whole(1), metavar="N", help="of a file's hashes (default: worked out and said)"
    )
    parser.add_argument("--requests", type=whole(), default=0, metavar="N", help="only the first N (default all)")
    parser.add_argument("--speed", type=above_zero, default=1.0, help="speed-up factor of the arrivals (default 1)")
    parser.add_argument("--seed", type=whole(), default=1, help="of arrivals within a tick (default 1)")
    cluster = parser.add_argument_group("the cluster")
    cluster.add_argument("--nodes", type=whole(1), default=16, help="2 to 1024, beyond 64 in cells (default 16)")
    cluster.add_argument(
        "--cells-by",
        choices=["session", "any"],
        default="session",
        help="beyond 64 nodes: a session's requests go to one cell, or to any (default session)",
    )
    cluster.add_argument("--link", default="100g", help="every node's link, Gbit/s (default 100g)")
    cluster.add_argument("--switch", default="16g", help="its memory for chunks: sram, none, or GiB (default 16g)")
    cluster.add_argument("--local-dram", default="256g", help="of each node for KV, GiB (default 256g)")
    cluster.add_argument("--local-disk", default="none", help="of each node for KV, GiB (default none)")
    cluster.add_argument("--disk-rate", type=above_zero, default=6.0, metavar="GB_S", help="of its device (default 6)")
    cluster.add_argument("--routing", choices=[one.value for one in Routing], default=Routing.ROUND_ROBIN.value)
    cluster.add_argument("--replicas", type=whole(1), help=f"copies in the pool with replicas (default {_REPLICAS})")
    engine = parser.add_argument_group("model and engine")
    engine.add_argument("--model", default="llama-3-8b", help=f"{', '.join(MODELS)}; or any name with what follows")
    engine.add_argument("--layers", type=whole(1), help="of a model that is not known, with:")
    engine.add_argument("--heads", type=whole(1), help="query heads (default: the KV heads)")
    engine.add_argument("--kv-heads", type=whole(1))
    engine.add_argument("--head-dim", type=whole(1))
    engine.add_argument("--parameters", type=above_zero, metavar="BILLIONS")
    engine.add_argument("--active-parameters", type=above_zero, metavar="BILLIONS", help="of a sparse model")
    engine.add_argument(
        "--kv-bytes", type=above_zero, default=2.0, help="of one number in the KV (default 2: bf16; 1: fp8)"
    )
    engine.add_argument("--accelerator", choices=list(ACCELERATORS), default="h100")
    engine.add_argument("--accelerators", type=whole(), default=0, help="of a node (default 1, or 8 above 30 billion)")
    engine.add_argument(
        "--prefill-rate", type=above_zero, metavar="TOKENS_S", help="measured, of a whole node's engine"
    )
    scale = parser.add_argument_group("instead of a replay")
    scale.add_argument("--scale", action="store_true", help="how managing grows, to 10,000 nodes, 100 M chunks")
    scale.add_argument(
        "--scale-sample", type=whole(1000), default=100_000, metavar="N", help="chunks measured (default 100000)"
    )
    scale.add_argument(
        "--controller", type=Path, metavar="FILE", help="figures of `kvcast bench controller --json`, for --scale"
    )
    output = parser.add_argument_group("what comes out")
    output.add_argument("--no-sweep", action="store_true", help="leave out where options start to pay")
    output.add_argument(
        "--sweep-requests", type=whole(1), default=1500, metavar="N", help="replayed at each point (default 1500)"
    )
    output.add_argument(
        "--jobs", type=whole(1), default=os.cpu_count() or 1, help="replays side by side (default: cores)"
    )
    output.add_argument(
        "--out", type=output_folder, metavar="DIR", help="write report.html, plots (SVG, PNG) and plan.json there"
    )
    output.add_argument("--json", type=output_file, metavar="FILE", help="write the figures there")


def run(args: argparse.Namespace) -> int:
    """Make the plan and show it."""
    try:
        if args.replicas is not None and args.replicas > args.nodes > 1:
            raise PlanError(f"--replicas {args.replicas}: there are only {args.nodes} nodes to keep them")
        if args.scale:
            _scale(args)
        else:
            _show(args, _plan(args))
    except (PlanError, TraceError) as error:
        raise UsageError(str(error)) from error
    except OSError as error:
        raise UsageError(f"cannot write the plan: {error}") from error
    return 0


def _show(args: argparse.Namespace, plan: PlanFigures) -> None:
    """On the terminal, and in the files asked for."""
    console = Terminal()
    verdict = headline(plan)
    console.print(verdict, style="bold")
    console.print()
    tables = grids(plan)
    for grid in tables:
        console.print(terminal(grid))
        console.print()
    said = conclusions(plan)
    for line in said:
        console.print(f"* {line}")
    write_figures(console, args.json, plan.to_json())
    if args.out is not None:
        from planner.report import plots  # and matplotlib: only when asked for

        args.out.mkdir(parents=True, exist_ok=True)
        drawn = plots.draw(plan, args.out)
        write_figures(console, args.out / "plan.json", plan.to_json())
        title = f"kvcast plan: {plan.options.trace_name} on {plan.options.cluster.nodes} nodes"
        pictures = {plots.CAPTIONS[name]: element for name, element in drawn.items()}
        (args.out / "report.html").write_text(page(title, verdict, said, tables, pictures, LIMITS))
        console.print(f"report: {args.out / 'report.html'}")


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _plan(args: argparse.Namespace) -> PlanFigures:
    cluster = Cluster(
        engine=_engine(args),
        nodes=args.nodes,
        link_rate=link_rate(args.link),
        local_dram_bytes=memory_bytes(args.local_dram),
        local_disk_bytes=memory_bytes(args.local_disk),
        disk_rate=args.disk_rate * 1e9,
        switch_bytes=switch_bytes(args.switch),
        routing=Routing(args.routing),
        sessions_in_cells=args.cells_by == "session",
        replicas=min(_REPLICAS, args.nodes) if args.replicas is None else args.replicas,
    )
    check(cluster)
    name, trace = _trace(args)
    options = PlanOptions(cluster, name, args.speed, not args.no_sweep, args.sweep_requests, args.jobs)
    with bar(Terminal(stderr=True)) as shown:
        return run_plan(options, trace, Shown(shown))


class Shown:
    """Shows how far a plan is, and what each option gives as soon as that is known."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._task = progress.add_task("replaying", total=1.0)
        self._said_s = 0.0

    def moved(self, what: str, share: float) -> None:
        self._progress.update(self._task, description=what, completed=share)
        task = self._progress.tasks[0]
        elapsed_s = task.elapsed or 0.0
        if not self._progress.console.is_terminal and elapsed_s - self._said_s >= _SAY_S:
            self._said_s = elapsed_s  # no bar moves in a file
            left = f", {task.time_remaining:.0f} s left" if task.time_remaining is not None else ""
            self._progress.console.print(f"{what}: {share:.0%} after {elapsed_s:.0f} s{left}", style="dim")

    def replayed(self, sharing: Sharing, figures: ReplayFigures) -> None:
        mean = format_seconds(figures.ttft_mean_s)
        self._progress.console.print(f"{sharing.value}: {mean} to the first token on average", style="dim")


def _trace(args: argparse.Namespace) -> tuple[str, Trace]:
    """The trace that was asked for; says what was read."""
    unit = None if args.time_unit is None else TimeUnit(args.time_unit)
    name, trace = open_trace(args.trace, args.seed, unit, args.block_tokens)
    if args.requests:
        trace = replace(trace, requests=trace.requests[: args.requests])
    Terminal(stderr=True).print(f"{name}: {trace.said()}", style="dim", soft_wrap=True)
    return name, trace


def _scale(args: argparse.Namespace) -> None:
    """Unit costs on the real classes, load from the trace, growth by arithmetic."""
    name, read = _trace(args)
    trace = read.requests
    load = load_of(trace, args.nodes, args.speed)
    engine, rate = _engine(args), link_rate(args.link)
    with bar(Terminal(stderr=True)) as shown:
        task = shown.add_task("measuring", total=1.0)
        costs = measure(args.scale_sample, lambda what, share: shown.update(task, description=what, completed=share))
        uses = Uses.of(trace, args.speed)
        fetch_s = engine.model.chunk_bytes(BLOCK_TOKENS) * load.uses_per_s / max(load.requests_per_s, 1e-9) / rate
        stays_s = CHUNKS_PER_NODE / load.uses_per_s
        cells = []
        for nodes in CELL_NODES:
            for cell in sorted({min(cell, nodes) for cell in CELLS}):
                shown.update(task, description=f"{nodes:,} nodes in cells of {cell:,}")
                cells.append(reuse_in_cells(uses, nodes, cell, stays_s, fetch_s, args.seed))
    if args.controller is not None:
        try:
            costs = with_bench(costs, json.loads(args.controller.read_text()))
        except (OSError, ValueError) as error:
            raise PlanError(f"--controller: {args.controller} cannot be read: {error}") from error
    growth, followed = grow(costs, load), grow(costs, load, followers=FOLLOWERS)
    console = Terminal()
    console.print(f"{name} on {args.nodes} nodes, {CHUNKS_PER_NODE:,} chunks a node\n")
    for grid in scale_grids(costs, load, growth, followed, cells):
        console.print(terminal(grid))
        console.print()
    for line in scale_conclusions(costs, load, growth, cells):
        console.print(f"* {line}")
    found: dict[str, Any] = {"unit_costs": asdict(costs), "load": asdict(load)}
    found |= {"growth": [asdict(one) for one in growth], "followed": [asdict(one) for one in followed]}
    found |= {"cells": [asdict(one) for one in cells]}
    write_figures(console, args.json, found)


def _engine(args: argparse.Namespace) -> Engine:
    model = _model(args)
    count = args.accelerators or (8 if model.parameters > 30e9 else 1)
    return engine_of(model, args.accelerator, count, args.prefill_rate)


def _model(args: argparse.Namespace) -> Model:
    """A published model, or one described by its shape."""
    shape: dict[str, Any] = {name: getattr(args, name) for name in ("layers", "kv_heads", "head_dim", "parameters")}
    given = [name for name, value in shape.items() if value is not None]
    if not given:
        if args.heads is not None or args.active_parameters is not None:
            raise PlanError("--heads and --active-parameters belong to a model described by its shape: see --layers")
        return find_model(args.model).with_dtype(args.kv_bytes)
    missing = [_option(name) for name in shape if name not in given]
    if missing:
        raise PlanError(f"a model described by its shape needs {', '.join(missing)} too")
    heads = args.kv_heads if args.heads is None else args.heads
    if heads % args.kv_heads:
        raise PlanError(f"--heads {heads} is not a multiple of --kv-heads {args.kv_heads}")
    if (args.active_parameters or 0) > args.parameters:
        raise PlanError(f"--active-parameters {args.active_parameters:g} is more than --parameters {args.parameters:g}")
    return Model(
        args.model,
        args.layers,
        heads,
        args.kv_heads,
        args.head_dim,
        args.parameters * 1e9,
        (args.active_parameters or args.parameters) * 1e9,
        Attention.GQA,
        dtype_bytes=args.kv_bytes,
    )
