"""Progress of a job of the controller (warm, drain): one bar per node, and what went wrong."""

from __future__ import annotations

from collections.abc import Iterable

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from kvcast.operator import console, print_json
from kvproto.rpc import control_pb2 as rpc
from kvproto.units import format_bytes


def follow(steps: Iterable[rpc.Progress], as_json: bool) -> int:
    """Show a job until it ends; 0 if nothing went wrong, else 1."""
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
