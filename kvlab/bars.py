"""What benchmarks and demos run in: a bar, a CPU group of their own where the user asks for one, errors in one line."""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Callable, Iterator

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from bmv2_testbed.cpu_group import isolated
from bmv2_testbed.errors import TestbedError
from kvcast.errors import UsageError


def bar(console: Console) -> Progress:
    """What is done, the share of it, the time; gone when it is over."""
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.percentage:3.0f} %"))
    return Progress(*columns, TimeElapsedColumn(), console=console, transient=True)


@contextlib.contextmanager
def progress(console: Console) -> Iterator[tuple[Callable[[str], None], Callable[[float], None]]]:
    """A bar of what has arrived and a line of what happens now: functions that say so."""
    with bar(console) as shown:
        task = shown.add_task("", total=1.0)

        def say(text: str) -> None:
            shown.update(task, description=text, completed=0.0)

        def moved(share: float) -> None:
            shown.update(task, completed=share)

        yield say, moved


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
