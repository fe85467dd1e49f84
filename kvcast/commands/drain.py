"""`kvcast drain`: move the last copies off a node before it leaves."""

from __future__ import annotations

import argparse

from kvcast.operator import add_common, add_timeout, controller
from kvcast.progress import follow
from kvproto.rpc import control_pb2 as rpc


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare `kvcast drain NODE`."""
    parser.add_argument("node", help="its name")
    parser.add_argument("--cancel", action="store_true", help="take the node back into service")
    add_timeout(parser)
    add_common(parser)


def run(args: argparse.Namespace) -> int:
    """Start it and follow it; the node stays out of use until --cancel or until it goes."""
    asked = rpc.DrainRequest(node=args.node, cancel=args.cancel, timeout_ms=int(args.timeout * 1000))
    with controller(args.controller) as stub:
        return follow(stub.Drain(asked), args.json)
