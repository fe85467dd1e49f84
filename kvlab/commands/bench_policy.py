"""`kvcast bench policy`: what cache policies make of traces, ours among them."""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from dataclasses import asdict

from rich.console import Console
from rich.table import Table

from bmv2_testbed.bench.policy.compare import BELADY, OURS, PolicyHit, case_results, compare, replay_count, summaries
from bmv2_testbed.bench.policy.replay import Tick
from bmv2_testbed.bench.policy.trees import Forest, forest
from kvcast.arguments import output_file, whole
from kvcast.errors import UsageError
from kvcast.terminal import Terminal
from kvlab.bars import bar
from kvlab.figures import write_figures
from kvlab.wiring import refusals
from planner.traces import NAMES, TraceError, TraceRequest, holdout, open_trace

POOLS_DEFAULT = (0.01, 0.05, 0.1, 0.2)
_TICKS = 256


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare `kvcast bench policy`."""
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument(
        "--trace", metavar="TRACE", help=f"a file in Mooncake's format, or one of {', '.join((*NAMES, *holdout.MADE))}"
    )
    which.add_argument("--holdout", action="store_true", help="all loads that no policy was tuned on")
    parser.add_argument(
        "--pool",
        type=_pools,
        default=POOLS_DEFAULT,
        metavar="SHARES",
        help="sizes as shares of the footprint, separated by commas (default 0.01,0.05,0.1,0.2)",
    )
    parser.add_argument("--requests", type=whole(1), metavar="N", help="only the first N requests of each trace")
    parser.add_argument("--hints", action="store_true", help="engines say when a session has ended (ours listens)")
    parser.add_argument(
        "--seed", type=whole(), default=1, help="of made traces, and of arrivals within quantised ticks"
    )
    parser.add_argument("--json", type=output_file, metavar="FILE", help="write hit ratios and times there")


def run(args: argparse.Namespace) -> int:
    """Replay the traces with every policy at every size."""
    console = Terminal()
    traces = _load(args)
    with refusals():
        hits = _compared(traces, args.pool, args.hints, console)
    console.print(_case_table(traces, hits))
    console.print(_policy_table(hits, args.pool))
    write_figures(console, args.json, [asdict(hit) for hit in hits])
    return 0


def _compared(traces: dict[str, Forest], pools: Sequence[float], hints: bool, console: Console) -> list[PolicyHit]:
    with bar(console) as shown:
        steps = sum(len(trees.steps) for trees in traces.values())
        task = shown.add_task("", total=replay_count(hints) * len(pools) * steps)

        def begun(trace: str, policy: str, pool: float) -> Tick:
            shown.update(task, description=f"{trace}, {pool:.4g}, {policy}")
            requests = len(traces[trace].steps)

            def tick(at: int) -> None:
                if at % _TICKS == 0:
                    shown.advance(task, min(_TICKS, requests - at))

            return tick

        return list(compare(traces, pools, hints, time.process_time, begun))


def _load(args: argparse.Namespace) -> dict[str, Forest]:
    """The traces that were asked for, by what to call them."""
    if args.holdout:
        made = {name: make(args.seed) for name, make in holdout.MADE.items()}
    else:
        made = dict((_open(args.trace, args.seed),))
    loaded = {name: forest(requests[: args.requests]) for name, requests in made.items()}
    for name, trees in loaded.items():
        if not trees.count or not trees.tokens:
            raise UsageError(f"--trace {name}: no request has a chunk; is it a trace in Mooncake's format?")
    return loaded


def _open(given: str, seed: int) -> tuple[str, list[TraceRequest]]:
    make = holdout.MADE.get(given)
    if make is not None:
        return given, make(seed)
    try:
        name, trace = open_trace(given, seed)
    except TraceError as error:
        raise UsageError(str(error)) from error
    return name, trace.requests


def _case_table(traces: dict[str, Forest], hits: list[PolicyHit]) -> Table:
    """Ours beside the best peer, by trace and size."""
    results = case_results(hits)
    losses = sum(one.is_loss for one in results)
    table = Table(title=f"ours is at or above the best peer in {len(results) - losses} of {len(results)} cases")
    table.add_column("trace: requests, chunks", overflow="fold")
    for name in ("pool", "ours", "best", "Belady"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("winner")
    shown = ""
    for one in results:
        trees = traces[one.trace]
        first = f"{one.trace}: {len(trees.steps):,}, {trees.count:,}" if one.trace != shown else ""
        shown = one.trace
        figures = (f"{hit:.3f}" for hit in (one.ours, one.best, one.belady))
        table.add_row(first, f"{one.pool:.4g}", *figures, one.winner, style="bold" if one.is_loss else "")
    return table


def _policy_table(hits: list[PolicyHit], pools: Sequence[float]) -> Table:
    """Means over the cases, by policy."""
    table = Table(title="means; cases ahead of ours; CPU time of the replay a chunk asked for")
    table.add_column("policy", no_wrap=True)
    for pool in pools:
        table.add_column(f"{pool:.4g}", justify="right")
    for name in ("mean", "ahead", "µs"):
        table.add_column(name, justify="right")
    for one in summaries(hits):
        own = [hit for hit in hits if hit.policy == one.policy]
        by_pool = [[hit.hit for hit in own if hit.pool == pool] for pool in pools]
        ahead = "" if one.policy in (OURS, BELADY) else str(one.ahead)
        means = (f"{sum(found) / len(found):.3f}" for found in by_pool)
        style = "bold" if one.policy == OURS else ""
        table.add_row(one.policy, *means, f"{one.mean:.4f}", ahead, f"{one.chunk_us:.1f}", style=style)
    return table


def _pools(text: str) -> tuple[float, ...]:
    try:
        pools = tuple(float(part) for part in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of shares like 0.001,0.01") from None
    if not all(0 < pool <= 1 for pool in pools):
        raise argparse.ArgumentTypeError(f"{text!r}: every share must lie above 0 and not above 1")
    return tuple(dict.fromkeys(pools))
