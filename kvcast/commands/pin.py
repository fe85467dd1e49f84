"""`kvcast pin`: keep a prefix whatever the pressure."""

from __future__ import annotations

import argparse

from kvcast.operator import add_common, console, controller, print_json
from kvproto.rpc import control_pb2 as rpc
from kvproto.units import format_bytes


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare `kvcast pin KEY [--switch]`."""
    parser.add_argument("key", help="last chunk of the prefix (first digits)")
    parser.add_argument("--switch", action="store_true", help="also bring it into the switch and keep it there")
    add_common(parser)


def run(args: argparse.Namespace) -> int:
    """Pin the chunk and everything before it."""
    with controller(args.controller) as stub:
        reply = stub.Pin(rpc.PinRequest(key_hex=args.key, in_switch=args.switch))
    if args.json:
        print_json({"chunks": reply.chunks, "bytes": reply.bytes})
    else:
        where = "in hosts' pools and the switch" if args.switch else "in hosts' pools"
        console().print(f"pinned {reply.chunks} chunks ({format_bytes(reply.bytes)}) {where}")
    return 0
