"""Entry point of `kvcast`: finds the command, imports only that one, runs it.

Exit status: 0 done, 1 the command failed, 2 wrong usage, 130 interrupted.

Standard output as it is on users' machines: full disks, readers that went away, encodings without our characters.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from kvcast.arguments import Command, Parser, add_choice, add_version
from kvcast.errors import UsageError
from kvdaemon.streams import FULL, drop_output, take_any_text
from kvproto.printable import printable_lines

EXIT_NO_OUTPUT: Final = 1


def run_command(name: str, command: Callable[[], int]) -> int:
    """Run a command whose words go to standard output, and see that they got there; returns its exit status.

    One line on standard error says that they did not. argparse ends by SystemExit after --help; that passes.
    """
    take_any_text()
    try:
        try:
            return command()
        finally:
            sys.stdout.flush()
    except BrokenPipeError:
        # The reader of our output (head, less) went away; nothing is left to say.
        drop_output()
        return 0
    except OSError as error:
        if error.errno not in FULL or error.filename is not None:
            raise
        drop_output()
        print(f"{name}: cannot write to standard output: {error.strerror}", file=sys.stderr)
        return EXIT_NO_OUTPUT


def bad_word(words: Sequence[str]) -> str | None:
    """What is wrong with a command line, or None: bytes that are no text come as halves of characters, which nothing
    that we send or print can hold."""
    for word in words:
        if any("\ud800" <= character <= "\udfff" for character in word):
            return f"{word.encode(errors='replace').decode()!r} is not UTF-8"
    return None


COMMANDS: dict[str, str] = {
    "ls": "chunks in the pool and who holds them",
    "top": "what is hot, live",
    "warm": "cast a prefix to many nodes at once",
    "pin": "keep a prefix whatever the pressure",
    "unpin": "take a pin back",
    "evict": "stop serving a prefix from the switch, or delete it everywhere",
    "drain": "move the last copies off a node before it leaves",
    "expel": "expel a node: nobody accepts its certificate, its tokens or its copies any more",
    "init": "configuration files for this machine, from flags or a few questions",
    "pki": "an authority and certificates for a cluster, for TLS with identities",
    "switch": "a switch made of interfaces of this machine: p4switch with kvcast's program",
    "keeper": "keeps an agent's pool while the agent is away, as systemd does for its services",
    "doctor": "what is missing or broken, on this machine or in the cluster, and the remedy",
    "testbed": "a network of namespaces with switch, controller and agents",
    "bench": "benchmarks, as ratios against something run side by side",
    "size": "what the KV of a prompt weighs, and what it takes to bring or to compute it",
    "plan": "what a pool would do for a trace, and at which scale it pays",
    "completion": "the script that completes kvcast's words in bash, zsh or fish",
    "demo": "see it work: an incast, then workloads with and without a pool",
    "demo-vllm": "vLLM engines share a document through the pool; one warms four by a cast",
    "demo-pd": "one vLLM engine computes prompts, four decode: bytes and times",
}


LAB = frozenset({"testbed", "bench", "size", "plan", "demo", "demo-vllm", "demo-pd"})
"""Commands that kvcast-lab brings: modules of `kvlab.commands`."""


def load(name: str) -> Command:
    """A command; imports what it needs."""
    if name in ("pin", "unpin", "evict", "warm", "drain", "expel"):
        commands: Mapping[str, Command] = importlib.import_module("kvcast.commands.placement").COMMANDS
        return commands[name]
    package = "kvlab" if name in LAB else "kvcast"
    module: Command = importlib.import_module(f"{package}.commands.{name.replace('-', '_')}")
    return module


def make_parser() -> Parser:
    """Of the whole command line; each command declares its arguments when they are needed."""
    parser = Parser(prog="kvcast", description="An in-network memory pool for LLM KV cache.")
    add_version(parser)
    add_choice(parser, "command", COMMANDS, lambda name: load(name).add_arguments)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit status."""
    # gRPC would write lines of its own on standard error; their content becomes one line of ours.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    return run_command("kvcast", lambda: _run(sys.argv[1:] if argv is None else argv))


def _run(argv: Sequence[str]) -> int:
    args = argparse.Namespace(command="")
    try:
        if problem := bad_word(argv):
            raise UsageError(problem)
        make_parser().parse_args(argv, args)
        return load(args.command).run(args)
    except UsageError as error:
        print(printable_lines(f"kvcast {args.command}".rstrip() + f": {error}"), file=sys.stderr)
        return 2
    except ModuleNotFoundError as error:
        if error.name != "kvlab":
            raise
        print(f"kvcast {args.command}: needs kvcast-lab: pip install kvcast-lab", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    raise SystemExit(main())
