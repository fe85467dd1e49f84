"""`kvcast ls`: chunks in the pool and who holds them."""

from __future__ import annotations

import argparse
import sys

from rich.table import Table

from kvcast.arguments import whole
from kvcast.operator import (
    add_common,
    chunk_object,
    controller,
    holders_text,
    key_text,
    print_json,
    print_whole,
    twin_form,
)
from kvproto.printable import printable
from kvproto.rpc import control_pb2 as rpc
from kvproto.units import format_bytes

LIMIT_DEFAULT = 100


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare `kvcast ls [KEY]`."""
    parser.add_argument(
        "key", nargs="?", default="", help="only this chunk's prefix and what hangs below it (first digits)"
    )
    parser.add_argument("--node", default="", help="only what this node holds")
    parser.add_argument("--served", action="store_true", help="only what the switch serves")
    parser.add_argument("--pinned", action="store_true", help="only what is pinned")
    parser.add_argument(
        "--limit", type=whole(), default=LIMIT_DEFAULT, help=f"at most this many (0: all; default {LIMIT_DEFAULT})"
    )
    add_common(parser)


def run(args: argparse.Namespace) -> int:
    """List, in the order of prefixes."""
    asked = rpc.ListRequest(
        key_hex=args.key,
        node=args.node,
        # One more than shown tells whether there is more.
        limit=args.limit + 1 if args.limit else 0,
        served_only=args.served,
        pinned_only=args.pinned,
    )
    with controller(args) as stub:
        chunks = list(stub.List(asked))
    more = bool(args.limit) and len(chunks) > args.limit
    chunks = in_tree_order(chunks[: args.limit] if args.limit else chunks)
    if args.json:
        print_json([chunk_object(chunk) for chunk in chunks])
        return 0
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name, justify in (("KEY", "left"), ("POS", "right"), ("SIZE", "right"), ("HOLDERS", "left")):
        table.add_column(name, justify=justify, no_wrap=True)  # type: ignore[arg-type]
    for name, justify in (("SWITCH", "left"), ("PIN", "left"), ("FETCH/S", "right"), ("NAMESPACE", "left")):
        table.add_column(name, justify=justify, no_wrap=True, overflow="ellipsis")  # type: ignore[arg-type]
    for chunk in chunks:
        table.add_row(
            key_text(chunk.key),
            str(chunk.position),
            format_bytes(chunk.size_bytes) + (f" {form}" if (form := twin_form(chunk)) else ""),
            holders_text(list(chunk.holders), list(chunk.disk_holders)),
            _switch_text(chunk),
            "pinned" if chunk.pinned else "",
            f"{chunk.fetches_per_s:.3g}" if chunk.fetches_per_s >= 0.0005 else "",
            printable(chunk.namespace),
        )
    # What is no chunk goes elsewhere: whoever takes the last line of the output means the last chunk.
    if chunks:
        print_whole(table)
    else:
        print("kvcast ls: no chunk matches", file=sys.stderr)
    if more:
        print(f"kvcast ls: more than {args.limit}: --limit 0 shows all", file=sys.stderr)
    return 0


def _switch_text(chunk: rpc.ChunkView) -> str:
    """State in the switch, and why it is not served although it should be."""
    state = "" if chunk.switch_state == "absent" else chunk.switch_state
    return f"{state or 'not'} ({chunk.switch_problem})" if chunk.switch_problem else state


def in_tree_order(chunks: list[rpc.ChunkView]) -> list[rpc.ChunkView]:
    """Each chunk behind its parent, siblings together."""
    by_key = {chunk.key: chunk for chunk in chunks}
    children: dict[bytes, list[rpc.ChunkView]] = {}
    roots = []
    for chunk in chunks:
        if chunk.parent in by_key:
            children.setdefault(chunk.parent, []).append(chunk)
        else:
            roots.append(chunk)
    ordered, waiting = [], roots[::-1]
    while waiting:
        chunk = waiting.pop()
        ordered.append(chunk)
        waiting += children.get(chunk.key, [])[::-1]
    return ordered
