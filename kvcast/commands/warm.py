"""`kvcast warm`: cast a prefix to many nodes at once (scale-out, rolling restart)."""

from __future__ import annotations

import argparse

from kvcast.operator import add_common, add_timeout, controller
from kvcast.progress import follow
from kvproto.rpc import control_pb2 as rpc


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare `kvcast warm --prefix KEY [--nodes a,b,c]`."""
    parser.add_argument("--prefix", required=True, metavar="KEY", help="last chunk of the prefix (first digits)")
    parser.add_argument("--nodes", default="", metavar="A,B,C", help="names, with commas (default: all)")
    parser.add_argument("--pin", action="store_true", help="and keep it there until `kvcast unpin`")
    add_timeout(parser)
    add_common(parser)


def run(args: argparse.Namespace) -> int:
    """Start it and follow it; ending the command calls it off."""
    nodes = [name.strip() for name in args.nodes.split(",") if name.strip()]
    asked = rpc.WarmRequest(key_hex=args.prefix, nodes=nodes, pin=args.pin, timeout_ms=int(args.timeout * 1000))
    with controller(args.controller) as stub:
        return follow(stub.Warm(asked), args.json)
