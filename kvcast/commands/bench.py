"""`kvcast bench`: figures of kvcast and of its peers, measured side by side in one run."""

from __future__ import annotations

import argparse
import json
import os
import platform
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from bmv2_testbed.bench.fetch import FetchPlan, fetch_table, run_fetch
from bmv2_testbed.bench.figures import IncastFigures, incast_table
from bmv2_testbed.bench.incast import IncastPlan, IncastRun, Mode, Peer
from bmv2_testbed.errors import TestbedError
from bmv2_testbed.network.namespaces import can_unshare
from bmv2_testbed.scale import SCALES
from bmv2_testbed.spec import Faults, Target, Wiring
from bmv2_testbed.units import parse_rate_bit_s, parse_size_bytes
from kvcast.cli import UsageError
from kvcast.commands import bench_disk, bench_policy, bench_push, bench_switch, bench_vllm


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare `kvcast bench incast | fetch | switch | vllm`."""
    parser = subparsers.add_parser("bench", help="benchmarks, as ratios against something run side by side")
    benches = parser.add_subparsers(dest="bench", required=True, metavar="BENCHMARK")
    incast = benches.add_parser("incast", help="N nodes fetch the same prefix from one holder")
    incast.add_argument("--nodes", type=int, default=8, help="readers (default 8)")
    incast.add_argument(
        "--rate", type=rate, help="rate of every link, both ways (default 100mbit; tna 25mbit, bmv2 6.25mbit)"
    )
    incast.add_argument("--size", type=size, help="the prefix (default 16MiB; tna and bmv2 1MiB)")
    incast.add_argument("--chunk", type=size, help="its chunks (default 1MiB; tna 128KiB, bmv2 64KiB)")
    incast.add_argument("--stagger", action="store_true", help="starts at random within one transfer time")
    incast.add_argument(
        "--mode",
        action="append",
        choices=[*(mode.value for mode in Mode), "all", "none"],
        help="how kvcast does it; may be given again (default cast)",
    )
    incast.add_argument("--slow", type=rate, metavar="RATE", help="rate of one reader's link")
    incast.add_argument("--slow-reader", type=int, default=0, metavar="I", help="which reader that is (default 0)")
    incast.add_argument("--loss", type=probability, default=0.0, metavar="P", help="loss at every switch port, 0 to 1")
    incast.add_argument(
        "--peer", action="append", choices=[*(peer.value for peer in Peer), "all"], help="who else does it, too"
    )
    fetch = benches.add_parser("fetch", help="one reader alone on links of full speed")
    fetch.add_argument(
        "--size",
        type=size,
        action="append",
        help="may be given again (default 16MiB and 4KiB; tna and bmv2 1MiB and 4KiB)",
    )
    fetch.add_argument("--repeat", type=int, default=30, help="fetches of each size (default 30)")
    bench_switch.add_parser(benches)
    bench_policy.add_parser(benches)
    bench_disk.add_parser(benches)
    bench_push.add_parser(benches)
    bench_vllm.add_parser(benches)
    for bench in (incast, fetch):
        bench.add_argument("--target", choices=[target.value for target in Target], default=Target.P4SWITCH.value)
        bench.add_argument("--no-root", action="store_true", help="loopback datagrams instead of namespaces")
        bench.add_argument("--seed", type=int, default=1, help="of starts, losses and content (default 1)")
        bench.add_argument("--json", type=Path, metavar="FILE", help="write the figures there")


def run(args: argparse.Namespace) -> int:
    """Run one benchmark; 1 if a byte was wrong or missing."""
    if args.bench in ("policy", "value"):
        return bench_policy.run(args)
    if args.bench == "switch":
        return bench_switch.run(args)
    if args.bench == "disk":
        return bench_disk.run(args)
    if args.bench == "push":
        return bench_push.run(args)
    if args.bench == "vllm":
        return bench_vllm.run(args)
    try:
        return _incast(args) if args.bench == "incast" else _fetch(args)
    except TestbedError as error:
        raise UsageError(str(error)) from error


def wiring_of(no_root: bool) -> Wiring:
    """Namespaces where this process may make them; asks for `--no-root` to do without."""
    if no_root:
        return Wiring.DATAGRAMS
    if not can_unshare():
        raise UsageError("namespaces and shaped links need root: become root, or use --no-root")
    return Wiring.NAMESPACES


def _incast(args: argparse.Namespace) -> int:
    target = Target(args.target)
    scale = SCALES[target]
    plan = IncastPlan(
        readers=args.nodes,
        rate_bit_s=args.rate or scale.link_bit_s,
        size_bytes=args.size or scale.incast_bytes,
        chunk_bytes=args.chunk or scale.chunk_bytes,
        stagger=args.stagger,
        seed=args.seed,
        slow={} if args.slow is None else {args.slow_reader: args.slow},
        faults=Faults(loss=args.loss),
        target=target,
        wiring=wiring_of(args.no_root),
    )
    if plan.wiring is Wiring.DATAGRAMS and args.peer:
        raise UsageError("peers need the links of namespaces: leave out --peer, or become root and leave out --no-root")
    if args.slow is not None and not 0 <= args.slow_reader < args.nodes:
        raise UsageError(f"--slow-reader {args.slow_reader}: readers are numbered 0 to {args.nodes - 1}")
    modes = _chosen(args.mode or [Mode.CAST.value], Mode)
    peers = _chosen(args.peer or [], Peer)
    console = Console()
    with progress(console) as (say, moved):
        cases, found = run_incast(plan, modes, peers, say, moved)
    everything = [*cases.values(), *found.values()]
    what = ("starts within one transfer time" if plan.stagger else "all at once") + (
        f", {args.loss:.1%} loss at every switch port" if args.loss else ""
    )
    console.print(incast_table(everything, plan.readers, plan.size_bytes, plan.rate_bit_s, what))
    if plan.wiring is Wiring.DATAGRAMS:
        console.print(
            "Without root: casts are shaped and counted where they leave the switch, what hosts send is not shaped; "
            "reliable reads go over plain loopback TCP, not shaped, and are counted by the agents. Compare casts only."
        )
    if args.json is not None:
        _write_json(args.json, incast_json(plan, cases, found))
        console.print(f"figures: {args.json}")
    return 0 if all(case.verified for case in everything) else 1


def run_incast(
    plan: IncastPlan, modes: list[Mode], peers: list[Peer], say: Callable[[str], None], moved: Callable[[float], None]
) -> tuple[dict[str, IncastFigures], dict[str, IncastFigures]]:
    """Figures by mode and by peer. Peers run on the links of the first mode."""
    runner = IncastRun(plan, say, moved)
    cases: dict[str, IncastFigures] = {}
    found: dict[str, IncastFigures] = {}
    if not modes:
        found = runner.peers(peers)
    for index, mode in enumerate(modes):
        cases[mode.value], of_peers = runner.mode(mode, peers if index == 0 else ())
        found |= of_peers
    return cases, found


def incast_json(plan: IncastPlan, cases: dict[str, IncastFigures], peers: dict[str, IncastFigures]) -> dict[str, Any]:
    """Everything under `modes` and `peers`; the figures of a single mode also at the top."""
    result: dict[str, Any] = {
        "benchmark": "incast",
        "nodes": plan.readers,
        "rate_bit_s": plan.rate_bit_s,
        "size_bytes": plan.size_bytes,
        "chunk_bytes": plan.chunk_bytes,
        "stagger": plan.stagger,
        "seed": plan.seed,
        "slow": {str(reader): rate for reader, rate in plan.slow.items()},
        "loss": plan.faults.loss,
        "wiring": plan.wiring.value,
        "machine": machine_facts(),
        "modes": {name: case.to_json() for name, case in cases.items()},
        "peers": {name: case.to_json() for name, case in peers.items()},
    }
    if len(cases) == 1:
        result |= next(iter(cases.values())).to_json()
    return result


def machine_facts() -> dict[str, Any]:
    """What a reader of the figures wants to know of the machine."""
    model = next(
        (
            line.partition(":")[2].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if "model name" in line
        ),
        platform.machine(),
    )
    return {"cpu": model, "cores": os.cpu_count(), "kernel": platform.release(), "python": platform.python_version()}


def _fetch(args: argparse.Namespace) -> int:
    plan = FetchPlan(
        sizes_bytes=tuple(args.size or (SCALES[Target(args.target)].incast_bytes, 4096)),
        repeat=args.repeat,
        seed=args.seed,
        target=Target(args.target),
        wiring=wiring_of(args.no_root),
    )
    console = Console()
    with progress(console) as (say, moved):
        figures = run_fetch(plan, say, moved)
    console.print(fetch_table(figures))
    if args.json is not None:
        _write_json(
            args.json,
            {"benchmark": "fetch", "machine": machine_facts(), "cases": [figure.to_json() for figure in figures]},
        )
        console.print(f"figures: {args.json}")
    return 0 if all(figure.verified for figure in figures) else 1


class progress:  # noqa: N801  used as a function
    """A bar of what has arrived and a line of what happens now."""

    def __init__(self, console: Console) -> None:
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.percentage:3.0f} %"),
            TimeElapsedColumn(),
            console=console,
            transient=True,
        )

    def __enter__(self) -> tuple[Callable[[str], None], Callable[[float], None]]:
        self._bar.start()
        task = self._bar.add_task("", total=1.0)

        def say(text: str) -> None:
            self._bar.update(task, description=text, completed=0.0)

        def moved(share: float) -> None:
            self._bar.update(task, completed=share)

        return say, moved

    def __exit__(self, *_: object) -> None:
        self._bar.stop()


def _write_json(path: Path, figures: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(figures, indent=1) + "\n")


def _chosen(words: list[str], kind: Any) -> list[Any]:
    if "all" in words:
        return list(kind)
    return [kind(word) for word in dict.fromkeys(words) if word != "none"]


def rate(text: str) -> int:
    """An argument like 100mbit, in bit/s."""
    return _typed(parse_rate_bit_s, text)


def size(text: str) -> int:
    """An argument like 16MiB, in bytes."""
    return _typed(parse_size_bytes, text)


def _typed(parse: Callable[[str], int], text: str) -> int:
    try:
        return parse(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def probability(text: str) -> float:
    """An argument from 0 to below 1."""
    value = float(text)
    if not 0 <= value < 1:
        raise argparse.ArgumentTypeError(f"{text} is not a probability from 0 to below 1")
    return value
