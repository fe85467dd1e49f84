"""Progress of a job of the controller (warm, drain): one bar per node, and what went wrong."""

from __future__ import annotations

from collections.abc import Iterable

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from kvcast.operator import console, print_json
from kvproto.rpc import control_pb2 as rpc
from kvproto.units import format_bytes


def follow(steps: Iterable[rpc.Progress], as_json: bool) -> int:
    """Show a job until it ends; 0 if nothing went wrong, else 1."""
    if as_json:
        return _collect(steps)
    problems: dict[str, str] = {}
    bars: dict[str, TaskID] = {}
    out = console()
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[moved]}"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=out) as shown:
        for step in steps:
            if step.problem:
                problems[step.node] = step.problem
            if not step.total:
                continue
            if step.node not in bars:
                bars[step.node] = shown.add_task(step.node, total=step.total, moved="")
            shown.update(bars[step.node], completed=step.done, moved=format_bytes(step.bytes) if step.bytes else "")
    for node, problem in problems.items():
        out.print(f"{node}: {problem}" if node else problem)
    if not problems and not bars:
        out.print("nothing to move")
    return 1 if problems else 0


def _collect(steps: Iterable[rpc.Progress]) -> int:
    last: dict[str, rpc.Progress] = {}
    problems: dict[str, str] = {}
    for step in steps:
        if step.problem:
            problems[step.node] = step.problem
        if step.total:
            last[step.node] = step
    nodes = {
        name: {"done": step.done, "total": step.total, "bytes": step.bytes, "problem": step.problem}
        for name, step in last.items()
    }
    print_json({"nodes": nodes, "problems": problems})
    return 1 if problems else 0
