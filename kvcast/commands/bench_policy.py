"""`kvcast bench policy`: what cache policies make of a trace, ours among them."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from bmv2_testbed.bench.policy.library import POLICIES, has_library, replay_library
from bmv2_testbed.bench.policy.replay import Tick, replay_belady, replay_lru, replay_ours
from bmv2_testbed.bench.policy.trees import Forest, forest, session_ends
from bmv2_testbed.errors import TestbedError
from kvcast.arguments import output_file, whole
from kvcast.bars import bar
from kvcast.cli import UsageError, need
from kvcast.figures import write_figures
from planner.traces import NAMES, TraceError, open_trace

POOLS_DEFAULT = (0.001, 0.01, 0.05, 0.1)
_TICKS = 256


@dataclass(frozen=True, slots=True)
class PolicyHit:
    """One policy at one size of the pool, as the JSON file has it."""

    policy: str
    pool: float
    """Share of the footprint."""
    hit: float
    """Tokens of leading chunks found in the pool / all input tokens."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare `kvcast bench policy`."""
    parser.add_argument(
        "--trace", required=True, metavar="TRACE", help=f"a file in Mooncake's format, or one of {', '.join(NAMES)}"
    )
    parser.add_argument(
        "--pool",
        type=_pools,
        default=POOLS_DEFAULT,
        metavar="SHARES",
        help="sizes as shares of the footprint, separated by commas (default 0.001,0.01,0.05,0.1)",
    )
    parser.add_argument("--hints", action="store_true", help="engines say when a session has ended (ours listens)")
    parser.add_argument("--seed", type=whole(), default=1, help="of arrivals within the ticks of a quantised trace")
    parser.add_argument("--json", type=output_file, metavar="FILE", help="write [{policy, pool, hit}] there")
    parser.add_argument("--plot", type=output_file, metavar="FILE", help="draw hit by pool there (.svg, .png)")


def run(args: argparse.Namespace) -> int:
    """Replay the trace with every policy at every size."""
    if args.plot is not None:
        need("matplotlib")
    console = Console()
    title, trees = _load(args.trace, args.seed)
    if not has_library():
        console.print(f"without {', '.join(POLICIES)}: pip install 'kvcast[policy]' for them")
    try:
        hits = compare(trees, args.pool, args.hints, console)
    except TestbedError as error:
        raise UsageError(str(error)) from error
    console.print(_table(title, trees, args.pool, hits))
    write_figures(console, args.json, [asdict(hit) for hit in hits])
    if args.plot is not None:
        _draw(args.plot, title, hits)
        console.print(f"plot: {args.plot}")
    return 0


def compare(trees: Forest, pools: tuple[float, ...], hints: bool, console: Console) -> list[PolicyHit]:
    """Every policy at every size. Raises TestbedError without libcachesim."""
    ends = session_ends(trees) if hints else None
    replays: dict[str, Callable[[int, Tick], float]] = {
        "ours": lambda capacity, tick: replay_ours(trees, capacity, tick, ends),
        "lru": lambda capacity, tick: replay_lru(trees, capacity, tick),
    }
    if hints:
        replays["ours-without-hints"] = lambda capacity, tick: replay_ours(trees, capacity, tick)
    for name in POLICIES if has_library() else ():
        replays[name] = lambda capacity, tick, name=name: replay_library(trees, capacity, name, tick)  # type: ignore[misc]
    replays["belady"] = lambda capacity, tick: replay_belady(trees, capacity, tick)
    hits = []
    with bar(console) as shown:
        task = shown.add_task("", total=len(replays) * len(pools) * len(trees.steps))

        def tick(at: int) -> None:
            if at % _TICKS == 0:
                shown.advance(task, min(_TICKS, len(trees.steps) - at))

        for name, replay in replays.items():
            for pool in pools:
                shown.update(task, description=f"{name}, pool {pool:.2%}")
                hits.append(PolicyHit(name, pool, replay(max(1, int(trees.count * pool)), tick)))
    return hits


def _load(given: str, seed: int) -> tuple[str, Forest]:
    try:
        title, requests = open_trace(given, seed)
    except TraceError as error:
        raise UsageError(str(error)) from error
    trees = forest(requests)
    if not trees.count or not trees.tokens:
        raise UsageError(f"--trace {given}: no request has a chunk; is it a trace in Mooncake's format?")
    return title, trees


def _table(title: str, trees: Forest, pools: tuple[float, ...], hits: list[PolicyHit]) -> Table:
    table = Table(title=f"{title}: {len(trees.steps):,} requests, {trees.count:,} chunks; tokens found in the pool")
    table.add_column("policy")
    for pool in pools:
        table.add_column(f"{pool:.4g} of all", justify="right")
    for name in dict.fromkeys(hit.policy for hit in hits):
        found = {hit.pool: hit.hit for hit in hits if hit.policy == name}
        table.add_row(name, *(f"{found[pool]:.3f}" for pool in pools), style="bold" if name == "ours" else "")
    return table


def _draw(path: Path, title: str, hits: list[PolicyHit]) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4.5), layout="constrained")
    axes = figure.add_subplot()
    for name in dict.fromkeys(hit.policy for hit in hits):
        points = sorted((hit.pool, hit.hit) for hit in hits if hit.policy == name)
        axes.plot([100 * pool for pool, _ in points], [hit for _, hit in points], marker="o", label=name,
                  linewidth=2.5 if name == "ours" else 1.0)  # fmt: skip
    axes.set_xscale("log")
    axes.set_xlabel("pool, % of the footprint")
    axes.set_ylabel("prefix hit, share of input tokens")
    axes.set_title(title)
    axes.legend()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)


def _pools(text: str) -> tuple[float, ...]:
    try:
        pools = tuple(float(part) for part in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of shares like 0.001,0.01") from None
    if not all(0 < pool <= 1 for pool in pools):
        raise argparse.ArgumentTypeError(f"{text!r}: every share must lie above 0 and not above 1")
    return pools
