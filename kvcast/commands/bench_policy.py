"""`kvcast bench policy`: what cache policies make of a trace, ours among them; and what ours costs at scale."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from bmv2_testbed.bench.policy.cost import measure_cost, measure_small_pool
from bmv2_testbed.bench.policy.displacement import measure_displacement
from bmv2_testbed.bench.policy.library import POLICIES, has_library, replay_library
from bmv2_testbed.bench.policy.replay import Tick, replay_belady, replay_lru, replay_ours
from bmv2_testbed.bench.policy.trees import Forest, forest, session_ends
from bmv2_testbed.errors import TestbedError
from kvcast.cli import UsageError
from planner.traces import TraceError, dequantise, is_quantised, read_trace

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


def add_parser(benches: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare `kvcast bench policy | value`."""
    policy = benches.add_parser("policy", help="hit ratios of cache policies on a trace")
    policy.add_argument("--trace", type=Path, required=True, metavar="FILE", help="Mooncake format, .jsonl or .zst")
    policy.add_argument(
        "--pool",
        type=_pools,
        default=POOLS_DEFAULT,
        metavar="SHARES",
        help="sizes as shares of the footprint, separated by commas (default 0.001,0.01,0.05,0.1)",
    )
    policy.add_argument("--hints", action="store_true", help="engines say when a session has ended (ours listens)")
    policy.add_argument("--seed", type=int, default=1, help="of arrivals within the ticks of a quantised trace")
    policy.add_argument("--json", type=Path, metavar="FILE", help="write [{policy, pool, hit}] there")
    policy.add_argument("--plot", type=Path, metavar="FILE", help="draw hit by pool there (.svg, .png)")
    cost = benches.add_parser("value", help="time and memory that our policy takes, at a million chunks")
    cost.add_argument("--chunks", type=int, default=1_000_000, help="chunks tracked (default 1000000)")
    cost.add_argument(
        "--residents",
        type=int,
        nargs="+",
        default=[1_000, 10_000],
        help="chunks in the switch, for what displacing one costs the controller (default 1000 10000)",
    )
    cost.add_argument(
        "--small",
        type=int,
        nargs="+",
        default=[64, 512, 2_048, 8_192],
        help="room of small pools in chunks (default 64 512 2048 8192)",
    )
    cost.add_argument("--json", type=Path, metavar="FILE", help="write the figures there")


def run(args: argparse.Namespace) -> int:
    """Run `kvcast bench policy` or `kvcast bench value`."""
    return _run_policy(args) if args.bench == "policy" else _run_cost(args)


def _run_policy(args: argparse.Namespace) -> int:
    console = Console()
    trees = _load(args.trace, args.seed)
    if not has_library():
        console.print(f"without {', '.join(POLICIES)}: pip install 'kvcast[policy]' for them")
    try:
        hits = compare(trees, args.pool, args.hints, console)
    except TestbedError as error:
        raise UsageError(str(error)) from error
    console.print(_table(args.trace.name, trees, args.pool, hits))
    if args.json is not None:
        args.json.parent.mkdir(parents=True, exist_ok=True)
        args.json.write_text(json.dumps([asdict(hit) for hit in hits], indent=1) + "\n", encoding="utf-8")
        console.print(f"figures: {args.json}")
    if args.plot is not None:
        _draw(args.plot, args.trace.name, hits)
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
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.percentage:3.0f} %"))
    with Progress(*columns, TimeElapsedColumn(), console=console, transient=True) as shown:
        task = shown.add_task("", total=len(replays) * len(pools) * len(trees.steps))

        def tick(at: int) -> None:
            if at % _TICKS == 0:
                shown.advance(task, min(_TICKS, len(trees.steps) - at))

        for name, replay in replays.items():
            for pool in pools:
                shown.update(task, description=f"{name}, pool {pool:.2%}")
                hits.append(PolicyHit(name, pool, replay(max(1, int(trees.count * pool)), tick)))
    return hits


def _load(path: Path, seed: int) -> Forest:
    try:
        requests = read_trace(path)
    except (TraceError, OSError) as error:
        raise UsageError(f"--trace {path}: {error}") from error
    trees = forest(dequantise(requests, seed) if is_quantised(requests) else requests)
    if not trees.count or not trees.tokens:
        raise UsageError(f"--trace {path}: no request has a chunk; is it a trace in Mooncake's format?")
    return trees


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


def _run_cost(args: argparse.Namespace) -> int:
    if args.chunks < 1000:
        raise UsageError(f"--chunks {args.chunks}: at least 1000")
    if min(args.residents) < 16:
        raise UsageError(f"--residents {min(args.residents)}: at least 16")
    if min(args.small) < 32:
        raise UsageError(f"--small {min(args.small)}: at least 32")
    console = Console()
    with console.status(f"fetching {args.chunks:,} chunks"):
        cost = measure_cost(args.chunks)
        small = [measure_small_pool(room) for room in args.small]
    with console.status("displacing chunks from the switch"):
        displacements = [measure_displacement(residents) for residents in args.residents]
    table = Table(title=f"our policy at {cost.tracked:,} tracked chunks, {cost.resident:,} of them in the pool")
    table.add_column("what")
    table.add_column("measured", justify="right")
    table.add_row("a fetched chunk that is here", f"{cost.hit_us:.2f} µs")
    table.add_row("choosing the policy, of that", f"{cost.contest_us:.2f} µs")
    table.add_row("a fetched chunk that is new", f"{cost.new_us:.2f} µs")
    table.add_row("besides, if it displaces another", f"{cost.displace_us:.2f} µs")
    for pool in small:
        figures = f"{pool.hit_us:.2f} / {pool.new_us:.2f} / {pool.displace_us:.2f} µs"
        table.add_row(f"the same three in a pool of {pool.room:,}", figures)
    table.add_row("a dict of as many keys, looked up and set", f"{cost.dict_us:.2f} µs")
    table.add_row("memory a tracked chunk", f"{cost.bytes_per_chunk:.1f} B")
    table.add_row("memory of all shadows and learned rates", f"{cost.fixed_bytes / 2**20:.1f} MiB")
    for one in displacements:
        table.add_row(
            f"controller: displace a chunk from a switch of {one.residents:,}", f"{one.displacement_us:.0f} µs"
        )
    console.print(table)
    if args.json is not None:
        args.json.parent.mkdir(parents=True, exist_ok=True)
        everything = asdict(cost) | {
            "small_pools": [asdict(pool) for pool in small],
            "displacements": [asdict(one) for one in displacements],
        }
        args.json.write_text(json.dumps(everything, indent=1) + "\n", encoding="utf-8")
        console.print(f"figures: {args.json}")
    return 0


def _pools(text: str) -> tuple[float, ...]:
    try:
        pools = tuple(float(part) for part in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of shares like 0.001,0.01") from None
    if not all(0 < pool <= 1 for pool in pools):
        raise argparse.ArgumentTypeError(f"{text!r}: every share must lie above 0 and not above 1")
    return pools
