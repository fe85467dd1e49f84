"""`simple_switch_CLI`: commands from a terminal or a file, one a line, for a switch that speaks P4Runtime."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from p4switch import logs
from p4switch.errors import SwitchError

PROMPT = "RuntimeCmd: "


def main(argv: Sequence[str]) -> int:
    """Run the console: 0; 1 where no switch answers."""
    parser = argparse.ArgumentParser(prog="simple_switch_CLI", description="bmv2's console, by P4Runtime.")
    parser.add_argument("--thrift-port", type=int, default=9090, metavar="PORT", help="as the switch was started with")
    parser.add_argument("--thrift-ip", default="127.0.0.1", metavar="HOST")
    parser.add_argument("--grpc", metavar="HOST:PORT", help="P4Runtime's address, instead of the two")
    parser.add_argument("--device-id", type=int, metavar="N", help="default: the switch says it")
    parser.add_argument("--json", metavar="FILE", help="without effect: the switch describes its program")
    parser.add_argument("--pre", metavar="ENGINE", help="without effect: groups and clones are the same everywhere")
    args = parser.parse_args(argv)
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # the messages here already say what gRPC's library would print
    from p4switch.bmv2.client import Client

    try:
        with Client(args.grpc or f"{args.thrift_ip}:{args.thrift_port}", args.device_id) as client:
            return _converse(client)
    except SwitchError as error:
        print(logs.printable_lines(f"simple_switch_CLI: {error}"), file=sys.stderr)
        return 1


def _converse(client: object) -> int:
    from p4switch.bmv2.client import Client, RefusedError
    from p4switch.bmv2.commands import COMMANDS, Commands

    assert isinstance(client, Client)
    commands = Commands(client, lambda text: print(logs.printable_lines(text)))
    print("Control utility for runtime P4 table manipulation, by P4Runtime")
    if sys.stdin.isatty():
        import readline  # noqa: F401 - input() edits lines with it
    while True:
        try:
            words = input(PROMPT).partition("#")[0].split()
        except EOFError:
            print()
            return 0
        if words and words[0] in ("exit", "quit", "EOF"):
            return 0
        if words and words[0] == "help":
            for name, command in COMMANDS.items():
                print(f"{name} {command.usage}".rstrip())
        elif words:
            try:
                commands.run(words)
            except RefusedError as refused:
                print(logs.printable_lines(f"Error: {refused}"))
        sys.stdout.flush()
