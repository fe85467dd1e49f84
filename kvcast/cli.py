"""Entry point of `kvcast`: finds the command, imports only that one, runs it.

Exit status: 0 done, 1 the command failed, 2 wrong usage, 130 interrupted.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Sequence
from typing import Protocol

COMMANDS: dict[str, str] = {
    "ls": "chunks in the pool and who holds them",
    "top": "what is hot, live",
    "warm": "cast a prefix to many nodes at once",
    "pin": "keep a prefix whatever the pressure",
    "unpin": "take a pin back",
    "evict": "stop serving a prefix from the switch",
    "drain": "move the last copies off a node before it leaves",
    "doctor": "what is missing on this machine, or slows it down",
    "testbed": "a network of namespaces with switch, controller and agents",
    "bench": "benchmarks, as ratios against something run side by side",
    "plan": "what a pool would do for a trace, and at which scale it pays",
    "demo": "the whole thing at work: incast in all modes, then real traces",
    "demo-vllm": "vLLM engines share a document through the pool; one warms four by a cast",
}


class Command(Protocol):
    """What a module in `kvcast.commands` offers."""

    def add_parser(self, subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None: ...
    def run(self, args: argparse.Namespace) -> int: ...


class UsageError(Exception):
    """The user asked for something that cannot be; the message is one line and names the remedy."""


def _load(name: str) -> Command:
    module: Command = importlib.import_module(f"kvcast.commands.{name.replace('-', '_')}")
    return module


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit status."""
    words = list(sys.argv[1:] if argv is None else argv)
    chosen = next((word for word in words if not word.startswith("-")), None)
    parser = argparse.ArgumentParser(prog="kvcast", description="An in-network memory pool for LLM KV cache.")
    subparsers = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    command = _load(chosen) if chosen in COMMANDS else None
    for name, summary in COMMANDS.items():
        if command is not None and name == chosen:
            command.add_parser(subparsers)
        else:
            subparsers.add_parser(name, help=summary)
    args = parser.parse_args(words)
    if command is None:
        parser.error("name a command first, then its options")
    try:
        return command.run(args)
    except UsageError as error:
        print(f"kvcast {chosen}: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # The reader of our output (head, less) went away; nothing is left to say.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


if __name__ == "__main__":
    # As `python -m kvcast.cli` this file is the module __main__, whose UsageError is not the one that commands raise.
    from kvcast.cli import main as imported_main

    raise SystemExit(imported_main())
