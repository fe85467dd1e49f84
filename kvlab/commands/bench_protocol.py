"""`kvcast bench protocol`: the protocol's own rules in the simulator, at rates that no testbed has."""

from __future__ import annotations

import argparse
from dataclasses import asdict, replace

from rich.table import Table

from kvcast.arguments import checked, probability, whole
from kvcast.errors import UsageError
from kvcast.terminal import Terminal
from kvlab.bars import progress
from kvlab.figures import write_figures
from kvlab.wiring import add_json
from kvproto.fanout import Fanout
from kvproto.limits import MEMBERS_MAX
from kvproto.units import format_bytes, format_rate, parse_rate_bit_s, parse_size_bytes
from kvsim.incast import Hosts, Incast, IncastResult, combine, simulate


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare `kvcast bench protocol`."""
    parser.add_argument(
        "--rate", type=checked(parse_rate_bit_s), default=100_000_000_000, help="of every link (default 100gbit)"
    )
    parser.add_argument(
        "--size", type=checked(parse_size_bytes), default=16 << 20, help="of the prefix (default 16MiB)"
    )
    parser.add_argument("--chunk", type=checked(parse_size_bytes), default=1 << 20, help="size (default 1MiB)")
    parser.add_argument("--readers", type=whole(1), default=8, help=f"at most {MEMBERS_MAX - 1} (default 8)")
    parser.add_argument("--stagger", action="store_true", help="begin at random times within one transfer")
    parser.add_argument(
        "--hosts",
        choices=[hosts.value for hosts in Hosts],
        default=Hosts.QUICK.value,
        help="processes run 20 us late (quick), 0.45 ms (slow), or every other reader's 1 ms (mixed)",
    )
    parser.add_argument(
        "--racks",
        type=whole(1),
        default=1,
        help="spread over so many, whose switches cast to each other: simulated only (default 1)",
    )
    parser.add_argument(
        "--fanout",
        choices=[way.name.lower() for way in Fanout],
        default=Fanout.SWITCH.name.lower(),
        help="what is in the middle: a kvcast switch (default), one that multicasts, or one that only forwards",
    )
    parser.add_argument("--loss", type=probability, default=0.0, metavar="P", help="at each link (default 0)")
    parser.add_argument("--repeat", type=whole(1), default=1, help="seeds, counted from --seed (default 1)")
    parser.add_argument("--seed", type=whole(), default=1, help="of the first simulation (default 1)")
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Simulate and show; 1 if a reader did not get all of it."""
    if args.readers >= MEMBERS_MAX:
        raise UsageError(f"--readers: {args.readers} and a holder are more than the {MEMBERS_MAX} members of a switch")
    try:
        incast = Incast(
            rate_bit_s=args.rate,
            size_bytes=args.size,
            readers=args.readers,
            chunk_bytes=args.chunk,
            stagger=args.stagger,
            hosts=Hosts(args.hosts),
            racks=args.racks,
            fanout=Fanout[args.fanout.upper()],
            loss=args.loss,
            seed=args.seed,
        )
    except ValueError as error:
        raise UsageError(f"--size, --chunk, --racks, --fanout: {error}") from error
    console, results = Terminal(), []
    with progress(console) as (say, moved):
        for seed in range(args.seed, args.seed + args.repeat):
            say(f"seed {seed}")
            results.append(simulate(replace(incast, seed=seed), moved))
    result = combine(results)
    console.print(_table(incast, result, args.repeat))
    about = {
        "benchmark": "protocol",
        "rate_bit_s": incast.rate_bit_s,
        "size_bytes": incast.size_bytes,
        "chunk_bytes": incast.chunk_bytes,
        "readers": incast.readers,
        "stagger": incast.stagger,
        "hosts": incast.hosts.value,
        "racks": incast.racks,
        "fanout": incast.fanout.name.lower(),
        "loss": incast.loss,
        "seed": incast.seed,
        "repeat": args.repeat,
        "transfer_s": incast.transfer_ns / 1e9,
    }
    write_figures(console, args.json, about | asdict(result) | {"runs": [asdict(each) for each in results]})
    return 0 if result.complete else 1


def _table(incast: Incast, result: IncastResult, repeat: int) -> Table:
    start = "staggered" if incast.stagger else "at once"
    racks = f" in {incast.racks} racks" if incast.racks > 1 else ""
    title = (
        f"{incast.readers} readers{racks}, {format_bytes(incast.size_bytes)} at {format_rate(incast.rate_bit_s)}, "
        f"{start}, by {incast.fanout.name.lower()}, {incast.hosts.value} hosts; S/B = {incast.transfer_ns / 1e6:.3g} ms"
    )
    table = Table(title=title, caption=f"simulated, {repeat} seed{'s' if repeat > 1 else ''} from {incast.seed}")
    table.add_column("what")
    table.add_column("measured", justify="right")
    table.add_row("mean time over S/B", f"{result.mean_ratio:.3f}")
    if incast.late_readers:
        table.add_row("the same of readers on quick hosts", f"{result.quick_mean_ratio:.3f}")
    table.add_row("longest time over S/B", f"{result.max_ratio:.3f}")
    table.add_row("holder sends", f"{result.holder_tx_S:.2f} S")
    table.add_row("all readers send", f"{result.readers_tx_S:.3f} S")
    table.add_row("every reader has all of it", "yes" if result.complete else "NO")
    return table
