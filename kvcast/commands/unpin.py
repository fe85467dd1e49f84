"""`kvcast unpin`: take a pin back."""

from __future__ import annotations

import argparse

from kvcast.operator import add_common, console, controller, print_json
from kvproto.rpc import control_pb2 as rpc
from kvproto.units import format_bytes


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare `kvcast unpin KEY`."""
    parser.add_argument("key", help="last chunk of the prefix (first digits)")
    add_common(parser)


def run(args: argparse.Namespace) -> int:
    """Unpin the chunk and everything before it, in hosts' pools and in the switch."""
    with controller(args.controller) as stub:
        reply = stub.Unpin(rpc.PinRequest(key_hex=args.key))
    if args.json:
        print_json({"chunks": reply.chunks, "bytes": reply.bytes})
    else:
        console().print(f"unpinned {reply.chunks} chunks ({format_bytes(reply.bytes)})")
    return 0
