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

from kvcast.arguments import Parser, add_choice
from kvproto import __version__

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


TESTBED_MODULES = ("matplotlib", "zstandard")
"""What `pip install kvcast` alone leaves out."""


class Command(Protocol):
    """What a module in `kvcast.commands` offers."""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None: ...
    def run(self, args: argparse.Namespace) -> int: ...


class UsageError(Exception):
    """The user asked for something that cannot be; the message is one line and names the remedy."""


def load(name: str) -> Command:
    """The module of a command, or of a benchmark as `bench_NAME`."""
    module: Command = importlib.import_module(f"kvcast.commands.{name.replace('-', '_')}")
    return module


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit status."""
    parser = Parser(prog="kvcast", description="An in-network memory pool for LLM KV cache.")
    parser.add_argument("--version", action="version", version=f"kvcast {__version__}")
    add_choice(parser, "command", COMMANDS, lambda name: load(name).add_arguments)
    args = argparse.Namespace(command="")
    try:
        parser.parse_args(argv, args)
        return load(args.command).run(args)
    except UsageError as error:
        print(f"kvcast {args.command}: {error}", file=sys.stderr)
        return 2
    except ModuleNotFoundError as error:
        if error.name not in TESTBED_MODULES:
            raise
        print(f"kvcast {args.command}: needs {error.name}: pip install 'kvcast[testbed]'", file=sys.stderr)
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
