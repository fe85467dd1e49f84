"""The bar that benchmarks and demos show while they run."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn


def bar(console: Console) -> Progress:
    """What is done, the share of it, the time so far and still to come; removed at the end."""
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TextColumn("{task.percentage:3.0f} %", markup=False),
    )
    times = (TimeElapsedColumn(), TextColumn("left"), TimeRemainingColumn())
    return Progress(*columns, *times, console=console, transient=True)


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
