"""Where a prefix is kept, by an operator's word: `kvcast pin`, `unpin`, `evict`, `warm`, `drain` and `expel`.

Each is a class with what `kvcast.cli.Command` says; keys may be given by their first digits.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable
from typing import Final

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from kvcast.arguments import Command, between
from kvcast.errors import UsageError
from kvcast.operator import add_common, add_timeout, console, controller, fields_of, print_json
from kvproto.rpc import control_pb2 as rpc
from kvproto.rpc import control_pb2_grpc
from kvproto.units import format_bytes

PIN_WAIT_S: Final = 30.0
"""How long `kvcast pin --switch` waits for the switch unless told otherwise."""


class Pin:
    """Keep a prefix whatever the pressure."""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare `kvcast pin KEY [--switch [--timeout S]]`."""
        parser.add_argument("key", help="last chunk of the prefix (first digits)")
        parser.add_argument("--switch", action="store_true", help="also bring it into the switch and keep it there")
        parser.add_argument(
            "--timeout",
            type=between(0, 3600),
            default=PIN_WAIT_S,
            metavar="S",
            help=f"with --switch: how long to wait until the switch serves all of it (default {PIN_WAIT_S:g})",
        )
        add_common(parser)

    def run(self, args: argparse.Namespace) -> int:
        """Pin the chunk and everything before it. Status 1: the switch does not serve all of it yet."""
        wait_ms = int(args.timeout * 1000) if args.switch else 0
        with controller(args) as stub:
            reply = stub.Pin(rpc.PinRequest(key_hex=args.key, in_switch=args.switch, wait_ms=wait_ms))
        served = reply.served_chunks == reply.chunks
        if args.json:
            print_json(fields_of(reply))
        else:
            out = console()
            out.print(f"pinned {reply.chunks} chunks ({format_bytes(reply.bytes)}) in hosts' pools")
            if args.switch:
                out.print(f"the switch serves {reply.served_chunks} of them", *([] if served else ["so far"]))
                for problem in reply.problems:
                    out.print(f"  {problem}")
        return 0 if served or not args.switch else 1


class Unpin:
    """Take a pin back."""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare `kvcast unpin KEY`."""
        parser.add_argument("key", help="last chunk of the prefix (first digits)")
        add_common(parser)

    def run(self, args: argparse.Namespace) -> int:
        """Unpin the chunk and everything before it, in hosts' pools and in the switch."""
        with controller(args) as stub:
            reply = stub.Unpin(rpc.PinRequest(key_hex=args.key))
        if args.json:
            print_json(fields_of(reply))
        else:
            console().print(f"unpinned {reply.chunks} chunks ({format_bytes(reply.bytes)})")
        return 0


class Evict:
    """Stop serving a prefix from the switch, or delete it from the whole pool."""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare `kvcast evict KEY [--hosts [--yes]] [--dry-run]`."""
        parser.add_argument("key", help="this chunk and what hangs below it (first digits)")
        parser.add_argument("--hosts", action="store_true", help="from hosts' pools too, but for what is pinned")
        parser.add_argument("--yes", action="store_true", help="do not ask before --hosts deletes copies")
        parser.add_argument("--dry-run", action="store_true", help="only say what would go")
        add_common(parser)

    def run(self, args: argparse.Namespace) -> int:
        """Evict; a last copy in the switch is saved to a host first, unless --hosts asks for the end of it."""
        with controller(args) as stub:
            if args.dry_run:
                return self._show_plan(stub, args)
            if args.hosts and not args.yes and not self._confirmed(stub, args):
                return 1
            reply = stub.Evict(rpc.EvictRequest(key_hex=args.key, hosts=args.hosts))
        if args.json:
            print_json(fields_of(reply))
        else:
            console().print(
                f"{reply.chunks_from_switch} chunks leave the switch, {reply.copies_from_hosts} copies leave hosts"
            )
        return 0

    def _show_plan(self, stub: control_pb2_grpc.OperatorStub, args: argparse.Namespace) -> int:
        from_switch, from_hosts = _would_go(stub, args.key, args.hosts)
        if args.json:
            print_json({"chunks_from_switch": from_switch, "copies_from_hosts": from_hosts, "dry_run": True})
        else:
            console().print(f"{from_switch} chunks would leave the switch, {from_hosts} copies would leave hosts")
        return 0

    def _confirmed(self, stub: control_pb2_grpc.OperatorStub, args: argparse.Namespace) -> bool:
        if not sys.stdin.isatty():
            raise UsageError("--hosts deletes copies: confirm it with --yes, or see what would go with --dry-run")
        _, from_hosts = _would_go(stub, args.key, hosts=True)
        # On standard error, so that standard output stays with the result.
        print(f"{from_hosts} copies leave hosts and are gone. Go on? [y/N] ", end="", file=sys.stderr, flush=True)
        return sys.stdin.readline().strip().lower() in ("y", "yes")


def _would_go(stub: control_pb2_grpc.OperatorStub, key: str, hosts: bool) -> tuple[int, int]:
    """(chunks in the switch, copies in hosts' pools) that evicting a key and what hangs below it ends."""
    below: dict[bytes, rpc.ChunkView] = {}
    for chunk in stub.List(rpc.ListRequest(key_hex=key)):  # parents before their children
        if chunk.key.hex().startswith(key.lower()) or chunk.parent in below:
            below[chunk.key] = chunk
    leaving = [chunk for chunk in below.values() if not (hosts and chunk.pinned)]
    from_switch = sum(chunk.switch_state != "absent" for chunk in leaving)
    return from_switch, sum(len(chunk.holders) for chunk in leaving) if hosts else 0


class Warm:
    """Cast a prefix to many nodes at once (scale-out, rolling restart)."""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare `kvcast warm --prefix KEY [--nodes a,b,c]`."""
        parser.add_argument("--prefix", required=True, metavar="KEY", help="last chunk of the prefix (first digits)")
        parser.add_argument("--nodes", default="", metavar="A,B,C", help="names, with commas (default: all)")
        parser.add_argument("--pin", action="store_true", help="and keep it there until `kvcast unpin`")
        add_timeout(parser)
        add_common(parser)

    def run(self, args: argparse.Namespace) -> int:
        """Start it and follow it; ending the command calls it off."""
        nodes = [name.strip() for name in args.nodes.split(",") if name.strip()]
        asked = rpc.WarmRequest(key_hex=args.prefix, nodes=nodes, pin=args.pin, timeout_ms=int(args.timeout * 1000))
        with controller(args) as stub:
            return _follow(stub.Warm(asked), args.json)


class Drain:
    """Move the last copies off a node before it leaves."""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare `kvcast drain NODE`."""
        parser.add_argument("node", help="its name")
        parser.add_argument("--cancel", action="store_true", help="take the node back into service")
        add_timeout(parser)
        add_common(parser)

    def run(self, args: argparse.Namespace) -> int:
        """Start it and follow it; the node stays out of use until --cancel or until it goes."""
        asked = rpc.DrainRequest(node=args.node, cancel=args.cancel, timeout_ms=int(args.timeout * 1000))
        with controller(args) as stub:
            return _follow(stub.Drain(asked), args.json)


class Expel:
    """Put a node out of the cluster."""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare `kvcast expel [NODE [--cancel]]`."""
        parser.add_argument("node", nargs="?", default="", help="its name (default: only show who is out)")
        parser.add_argument("--cancel", action="store_true", help="take the node in again")
        add_common(parser)

    def run(self, args: argparse.Namespace) -> int:
        """Do it at once: its stream ends, its copies are forgotten, holders refuse its tokens, its port is nobody's."""
        if args.cancel and not args.node:
            raise UsageError("--cancel needs the name of a node")
        with controller(args) as stub:
            reply = stub.Expel(rpc.ExpelRequest(node=args.node, cancel=args.cancel))
        if args.json:
            print_json(fields_of(reply))
            return 0
        out = console()
        if args.node and not args.cancel:
            out.print(f"{args.node} is expelled" + ("" if reply.was_attached else "; it was not attached"))
        elif args.node:
            out.print(f"{args.node} may attach again")
        out.print("expelled nodes:", ", ".join(reply.expelled) or "none")
        if reply.expelled and not reply.lasting:
            out.print("until this controller ends: name a file (expelled: FILE in controller.yaml) to make it last")
        return 0


COMMANDS: Final[dict[str, Command]] = {
    "pin": Pin(),
    "unpin": Unpin(),
    "evict": Evict(),
    "warm": Warm(),
    "drain": Drain(),
    "expel": Expel(),
}


def _follow(steps: Iterable[rpc.Progress], as_json: bool) -> int:
    """Show a job of the controller until it ends, one bar per node, and what went wrong; 0 if nothing did, else 1."""
    problems: dict[str, str] = {}
    last: dict[str, rpc.Progress] = {}
    bars: dict[str, TaskID] = {}
    out = console()
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[moved]}", markup=False),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=out, disable=as_json) as shown:
        for step in steps:
            if step.problem:
                problems[step.node] = step.problem
            if not step.total:
                continue
            if step.node not in last:
                bars[step.node] = shown.add_task(step.node, total=step.total, moved="")
            last[step.node] = step
            shown.update(bars[step.node], completed=step.done, moved=format_bytes(step.bytes) if step.bytes else "")
    if as_json:
        said = ("done", "total", "bytes", "problem")
        nodes = {node: {name: getattr(step, name) for name in said} for node, step in last.items()}
        print_json({"nodes": nodes, "problems": problems})
        return int(bool(problems))
    for node, problem in problems.items():
        out.print(f"{node}: {problem}" if node else problem)
    if not problems and not last:
        out.print("nothing to move")
    return int(bool(problems))
