"""`kvcast size`: what the KV of a prompt weighs, how long it takes to bring or to compute, how much fits where."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Final

from kvcast.arguments import whole
from kvcast.errors import UsageError
from kvcast.operator import print_json
from kvcast.setup.files import pool_for
from kvcast.terminal import Terminal
from kvproto.printable import printable
from kvproto.units import format_bytes
from planner.errors import PlanError
from planner.hardware import Model, find_model
from planner.hardware.model_files import BYTES_MAX, model_from
from planner.report.tables import Grid, terminal
from planner.sizes import DTYPE_BYTES, Sizes, sizes
from planner.units import format_seconds, memory_bytes

_PACKET_BUFFERS: Final = {"Tofino 1's packet buffer": 16 << 20, "Tofino 2's": 48 << 20}
"""What kvcast's programs keep chunks in there."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare `kvcast size MODEL`."""
    parser.add_argument("model", help="a published model's name, or its config.json (or the folder that has it)")
    parser.add_argument("--tokens", type=whole(1), default=2048, help="of the prompt (default 2048)")
    parser.add_argument("--tp", type=whole(1), default=1, metavar="N", help="accelerators of an engine (default 1)")
    parser.add_argument("--dtype", choices=list(DTYPE_BYTES), default="bf16", help="of the KV (default bf16)")
    parser.add_argument("--chunk-tokens", type=whole(1), default=0, help="default: as vLLM's connector chooses it")
    parser.add_argument("--pool", metavar="SIZE", help="of a node (default: what `kvcast init` takes of this machine)")
    parser.add_argument("--switch", default="64MiB", metavar="SIZE", help="p4switch's memory (default 64MiB)")
    parser.add_argument("--json", action="store_true", help="for other programs")


def run(args: argparse.Namespace) -> int:
    """Reckon, and show it."""
    try:
        pool_bytes = memory_bytes(args.pool) if args.pool else _pool_here()
        places = {"this node's pool": pool_bytes, "p4switch": memory_bytes(args.switch), **_PACKET_BUFFERS}
        found = sizes(_model(args.model), args.dtype, args.tokens, args.tp, places, args.chunk_tokens)
    except PlanError as error:
        raise UsageError(str(error)) from error
    if args.json:
        print_json(found.to_json())
    else:
        _show(found)
    return 0


def _pool_here() -> int:
    from kvcast.setup.machine import look  # and what opens sockets: only when nobody says a size

    return pool_for(look().memory_bytes)


def _model(name: str) -> Model:
    path = Path(name)
    path = path / "config.json" if path.is_dir() else path
    if not path.is_file():
        return find_model(name, "give its config.json")
    try:
        with path.open("rb") as file:
            content = file.read(BYTES_MAX + 1)
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}") from error
    if len(content) > BYTES_MAX:
        raise UsageError(f"{path} is larger than a model's config.json")
    return model_from(content, str(path))


def _show(found: Sizes) -> None:
    console = Terminal()
    token = format_bytes(found.bytes_per_token)
    if found.tensor_parallel > 1:
        token += f" ({format_bytes(found.bytes_per_token_and_rank)} on each of {found.tensor_parallel})"
    console.print(
        f"{printable(found.model)} in {found.dtype}: {token} a token. {found.tokens:,} tokens:"
        f" {format_bytes(found.prompt_bytes)} in {found.chunks:,} chunks of {found.chunk_tokens} tokens,"
        f" {format_bytes(found.chunk_bytes)} each.",
        style="bold",
        markup=False,
    )
    links = tuple((f"{link.gbit_s} Gbit/s", format_seconds(link.seconds)) for link in found.links)
    computed = tuple(
        (
            f"{one.count} x {one.accelerator}" if one.count > 1 else one.accelerator,
            format_seconds(one.seconds),
            f"{one.break_even_gbit_s:.3g} Gbit/s",
        )
        for one in found.computed
    )
    places = tuple(
        (place.name, format_bytes(place.bytes), f"{place.chunks:,}", f"{place.tokens:,}", f"{place.prompts:,.3g}")
        for place in found.places
    )
    for grid in (
        Grid("Bringing it", ("link", "takes"), links),
        Grid("Computing it", ("accelerator", "takes", "a slower link is later"), computed),
        Grid("What fits", ("where", "size", "chunks", "tokens", "such prompts"), places),
    ):
        console.print()
        console.print(terminal(grid))
