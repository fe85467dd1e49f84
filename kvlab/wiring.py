"""What several commands have: arguments, a CPU group of their own, errors in one line."""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
from collections.abc import Iterator

from bmv2_testbed.cpu_group import isolated
from bmv2_testbed.errors import TestbedError
from bmv2_testbed.spec import Target
from kvcast.arguments import checked, output_file
from kvcast.errors import UsageError
from kvproto.units import parse_rate_bit_s, parse_size_bytes

rate = checked(parse_rate_bit_s)
"""An argument like 100mbit, in bit/s."""
size = checked(parse_size_bytes)
"""An argument like 16MiB, in bytes."""


def add_target(parser: argparse.ArgumentParser) -> None:
    """Which switch."""
    targets = [target.value for target in Target]
    parser.add_argument("--target", choices=targets, default=Target.P4SWITCH.value, help="which switch")


def add_isolate(parser: argparse.ArgumentParser) -> None:
    """Whether other programs may slow it."""
    parser.add_argument(
        "--isolate", action="store_true", help="run in a CPU group of its own, so that other programs do not slow it"
    )


def add_json(parser: argparse.ArgumentParser) -> None:
    """Where the figures go."""
    parser.add_argument("--json", type=output_file, metavar="FILE", help="write the figures there")


def need_vllm(remedy: str = "tools/setup_vllm.sh makes one") -> None:
    """Raises UsageError where no engine can run."""
    if importlib.util.find_spec("vllm") is None:
        raise UsageError(f"there is no vLLM in this environment: {remedy}")


@contextlib.contextmanager
def refusals(*also: type[Exception]) -> Iterator[None]:
    """Turns what a testbed cannot do, and these exceptions, into UsageError."""
    refused: tuple[type[Exception], ...] = (TestbedError, *also)
    try:
        yield
    except refused as error:
        raise UsageError(str(error)) from error


@contextlib.contextmanager
def isolation(args: argparse.Namespace, loops: int = 0) -> Iterator[str]:
    """With `--isolate` a CPU group of its own, beside `loops` endless loops; yields how it ran, or nothing."""
    with isolated(loops) if args.isolate else contextlib.nullcontext("") as text:
        yield text
