"""`kvcast plan`: what a pool would do for a trace, before anything is bought or installed."""

from __future__ import annotations

import argparse
import json
import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from kvcast.cli import UsageError
from planner.cluster.options import Cluster, Routing
from planner.errors import PlanError
from planner.hardware import ACCELERATORS, MODELS, Attention, Engine, Model, engine_of, find_model
from planner.plan import PlanFigures, PlanOptions, check, run_plan
from planner.report import plots
from planner.report.limits import LIMITS
from planner.report.page import page
from planner.report.scale_tables import scale_conclusions, scale_grids
from planner.report.tables import grids, terminal
from planner.scale import CELL_NODES, CELLS, CHUNKS_PER_NODE, Uses, grow, load_of, measure, reuse_in_cells
from planner.traces import (
    BLOCK_TOKENS,
    FORMATS,
    NAMES,
    TraceError,
    TraceRequest,
    dequantise,
    find_trace,
    is_quantised,
    read_trace,
)
from planner.units import link_rate, memory_bytes, switch_bytes
from planner.verdict import conclusions

_REPLICAS: Final = 3


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare `kvcast plan`."""
    parser = subparsers.add_parser("plan", help="what a pool would do for a trace, and at which scale it pays")
    parser.add_argument("--trace", default="conversation", help=f"a file, or one of {', '.join(NAMES)}")
    parser.add_argument("--requests", type=int, default=0, metavar="N", help="only the first N (default all)")
    parser.add_argument("--speed", type=float, default=1.0, help="arrivals so many times as fast (default 1)")
    parser.add_argument("--seed", type=int, default=1, help="of arrivals within a tick (default 1)")
    cluster = parser.add_argument_group("the cluster")
    cluster.add_argument("--nodes", type=int, default=16, help="2 to 64 (default 16)")
    cluster.add_argument("--link", default="100g", help="every node's link, Gbit/s (default 100g)")
    cluster.add_argument("--switch", default="16g", help="its memory for chunks: sram, none, or GiB (default 16g)")
    cluster.add_argument("--local-dram", default="256g", help="of each node for KV, GiB (default 256g)")
    cluster.add_argument("--local-disk", default="none", help="of each node for KV, GiB (default none)")
    cluster.add_argument("--disk-rate", type=float, default=6.0, metavar="GB_S", help="of its device (default 6)")
    cluster.add_argument("--routing", choices=[one.value for one in Routing], default=Routing.ROUND_ROBIN.value)
    cluster.add_argument("--replicas", type=int, help=f"copies in the pool with replicas (default {_REPLICAS})")
    engine = parser.add_argument_group("model and engine")
    engine.add_argument("--model", default="llama-3-8b", help=f"{', '.join(MODELS)}; or any name with what follows")
    engine.add_argument("--layers", type=int, help="of a model that is not known, with:")
    engine.add_argument("--heads", type=int, help="query heads (default: the KV heads)")
    engine.add_argument("--kv-heads", type=int)
    engine.add_argument("--head-dim", type=int)
    engine.add_argument("--parameters", type=float, metavar="BILLIONS")
    engine.add_argument("--active-parameters", type=float, metavar="BILLIONS", help="of a sparse model")
    engine.add_argument("--kv-bytes", type=float, default=2.0, help="of one number in the KV (default 2: bf16; 1: fp8)")
    engine.add_argument("--accelerator", choices=list(ACCELERATORS), default="h100")
    engine.add_argument("--accelerators", type=int, default=0, help="of a node (default 1, or 8 above 30 billion)")
    engine.add_argument("--prefill-rate", type=float, metavar="TOKENS_S", help="measured, of a whole node's engine")
    scale = parser.add_argument_group("instead of a replay")
    scale.add_argument("--scale", action="store_true", help="how managing grows, to 10,000 nodes, 100 M chunks")
    scale.add_argument(
        "--scale-sample", type=int, default=100_000, metavar="N", help="chunks measured (default 100000)"
    )
    output = parser.add_argument_group("what comes out")
    output.add_argument("--no-sweep", action="store_true", help="leave out where options start to pay")
    output.add_argument(
        "--sweep-requests", type=int, default=1500, metavar="N", help="replayed at each point (default 1500)"
    )
    output.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="replays side by side (default: cores)")
    output.add_argument(
        "--out", type=Path, metavar="DIR", help="write report.html, plots (SVG, PNG) and plan.json there"
    )
    output.add_argument("--json", type=Path, metavar="FILE", help="write the figures there")


def run(args: argparse.Namespace) -> int:
    """Make the plan and show it."""
    try:
        _check_numbers(args)
        _check_output(args)
        if args.scale:
            return _scale(args)
        plan = _plan(args)
        _show(args, plan)
    except (PlanError, TraceError) as error:
        raise UsageError(str(error)) from error
    return 0


@contextmanager
def _writing() -> Iterator[None]:
    """Files that cannot be written are one line."""
    try:
        yield
    except OSError as error:
        raise PlanError(f"cannot write the plan: {error}") from error


def _show(args: argparse.Namespace, plan: PlanFigures) -> None:
    """On the terminal, and in the files asked for."""
    console = Console()
    tables = grids(plan)
    for grid in tables:
        console.print(terminal(grid))
        console.print()
    said = conclusions(plan)
    for line in said:
        console.print(f"* {line}")
    with _writing():
        if args.json is not None:
            _write(args.json, plan.to_json())
        if args.out is not None:
            drawn = plots.save(plots.figures_of(plan), args.out)
            _write(args.out / "plan.json", plan.to_json())
            title = f"kvcast plan: {plan.options.trace_name} on {plan.options.cluster.nodes} nodes"
            pictures = {plots.CAPTIONS[name]: element for name, element in drawn.items()}
            (args.out / "report.html").write_text(page(title, said, tables, pictures, LIMITS))
    if args.out is not None:
        console.print(f"report: {args.out / 'report.html'}")


_LEAST: Final = {"requests": 0, "replicas": 1, "sweep_requests": 1, "jobs": 1, "accelerators": 0, "scale_sample": 1000}
_ABOVE_ZERO: Final = ("speed", "disk_rate", "kv_bytes", "prefill_rate", "parameters", "active_parameters")


def _check_numbers(args: argparse.Namespace) -> None:
    """Raises PlanError."""
    for name, low in _LEAST.items():
        given = getattr(args, name)
        if given is not None and given < low:
            raise PlanError(f"{_option(name)} {given} is below {low}")
    for name in _ABOVE_ZERO:
        given = getattr(args, name)
        if given is not None and not (0 < given < math.inf):
            raise PlanError(f"{_option(name)} {given:g} is not a number above zero")
    if args.replicas is not None and args.replicas > args.nodes > 1:
        raise PlanError(f"--replicas {args.replicas}: there are only {args.nodes} nodes to keep them")


def _check_output(args: argparse.Namespace) -> None:
    """Before anything is replayed: whether the plan can be written where it shall go. Raises PlanError."""
    if args.json is not None and args.json.is_dir():
        raise PlanError(f"--json {args.json} is a directory: name a file")
    with _writing():
        if args.out is not None:
            args.out.mkdir(parents=True, exist_ok=True)
        if args.json is not None:
            args.json.parent.mkdir(parents=True, exist_ok=True)
    for folder in (args.out, args.json.parent if args.json is not None else None):
        if folder is not None and not os.access(folder, os.W_OK):
            raise PlanError(f"cannot write to {folder}: choose another folder, or change its permissions")


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
        replicas=min(_REPLICAS, args.nodes) if args.replicas is None else args.replicas,
    )
    check(cluster)
    name, trace = load_trace(args.trace, args.seed)
    options = PlanOptions(cluster, name, args.speed, not args.no_sweep, args.sweep_requests, args.jobs)
    trace = trace[: args.requests] if args.requests else trace
    with _bar() as bar:
        task = bar.add_task("replaying", total=1.0)
        return run_plan(options, trace, lambda what, share: bar.update(task, description=what, completed=share))


def _scale(args: argparse.Namespace) -> int:
    """Unit costs on the real classes, load from the trace, growth by arithmetic."""
    if args.nodes < 1:
        raise PlanError(f"--nodes {args.nodes}: the trace is that of one node at least")
    name, trace = load_trace(args.trace, args.seed)
    trace = trace[: args.requests] if args.requests else trace
    load = load_of(trace, args.nodes, args.speed)
    engine, rate = _engine(args), link_rate(args.link)
    with _bar() as bar:
        task = bar.add_task("measuring", total=1.0)
        costs = measure(args.scale_sample, lambda what, share: bar.update(task, description=what, completed=share))
        uses = Uses.of(trace, args.speed)
        fetch_s = engine.model.chunk_bytes(BLOCK_TOKENS) * load.uses_per_s / max(load.requests_per_s, 1e-9) / rate
        stays_s = CHUNKS_PER_NODE / load.uses_per_s
        cells = []
        for nodes in CELL_NODES:
            for cell in sorted({min(cell, nodes) for cell in CELLS}):
                bar.update(task, description=f"{nodes:,} nodes in cells of {cell:,}")
                cells.append(reuse_in_cells(uses, nodes, cell, stays_s, fetch_s, args.seed))
    growth = grow(costs, load)
    console = Console()
    console.print(f"{name} on {args.nodes} nodes, {CHUNKS_PER_NODE:,} chunks a node\n")
    for grid in scale_grids(costs, load, growth, cells):
        console.print(terminal(grid))
        console.print()
    for line in scale_conclusions(costs, load, growth, cells):
        console.print(f"* {line}")
    if args.json is not None:
        found: dict[str, Any] = {"unit_costs": asdict(costs), "load": asdict(load)}
        found |= {"growth": [asdict(one) for one in growth], "cells": [asdict(one) for one in cells]}
        with _writing():
            _write(args.json, found)
    return 0


def _bar() -> Progress:
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.percentage:3.0f} %"))
    return Progress(*columns, TimeElapsedColumn(), console=Console(stderr=True), transient=True)


def load_trace(given: str, seed: int) -> tuple[str, list[TraceRequest]]:
    """A trace by name or file, and what to call it. Raises TraceError."""
    if given in NAMES:
        found = find_trace(given)
        title, trace = found.title, found.requests()
    elif not given.endswith(FORMATS):
        raise TraceError(f"trace {given}: neither {', '.join(NAMES)} nor a file that ends in {', '.join(FORMATS)}")
    else:
        title, trace = Path(given).name, read_trace(Path(given))
    return title, dequantise(trace, seed) if is_quantised(trace) else trace


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
    if min(args.layers, args.kv_heads, args.head_dim, heads) <= 0:
        raise PlanError("--layers, --heads, --kv-heads and --head-dim are above zero")
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


def _write(path: Path, figures: dict[str, Any]) -> None:
    path.write_text(json.dumps(figures, indent=1) + "\n")
