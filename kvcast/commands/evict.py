"""`kvcast evict`: stop serving a prefix from the switch."""

from __future__ import annotations

import argparse

from kvcast.operator import add_common, console, controller, print_json
from kvproto.rpc import control_pb2 as rpc


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare `kvcast evict KEY [--hosts]`."""
    parser.add_argument("key", help="this chunk and what hangs below it (first digits)")
    parser.add_argument("--hosts", action="store_true", help="from hosts' pools too, but for what is pinned")
    add_common(parser)


def run(args: argparse.Namespace) -> int:
    """Evict; a last copy in the switch is saved to a host first, unless --hosts asks for the end of it."""
    with controller(args.controller) as stub:
        reply = stub.Evict(rpc.EvictRequest(key_hex=args.key, hosts=args.hosts))
    if args.json:
        print_json({"chunks_from_switch": reply.chunks_from_switch, "copies_from_hosts": reply.copies_from_hosts})
    else:
        console().print(
            f"{reply.chunks_from_switch} chunks leave the switch, {reply.copies_from_hosts} copies leave hosts"
        )
    return 0
