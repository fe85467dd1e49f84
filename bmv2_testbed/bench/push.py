"""What gated pushes do to a trace: fetches that engines wait for, and bytes, with and without. Pure but for reading.

Requests go to the nodes in turn, copies stay where they came: the case with the most fetches between nodes. The policy
is the controller's own; network and pools have room for everything, so only the choice of what to push is measured.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rich import box
from rich.table import Table

from kvchunk.ids import ChunkKey
from kvpolicy.tiers.push import PushParameters, PushPolicy
from planner.traces import TraceRequest

_MS = 1_000_000
"""Nanoseconds."""


@dataclass(frozen=True, slots=True)
class PushFigures:
    """Blocks of one trace; all of one size."""

    trace: str
    nodes: int
    fetched_without: int
    """Blocks that engines wait for over the network, without pushes."""
    fetched: int
    pushed: int
    used: int
    """Of the pushed: asked for in time by the node that they were pushed to."""

    @property
    def cut(self) -> float:
        """How many times fewer blocks engines wait for."""
        return self.fetched_without / max(1, self.fetched)

    @property
    def bytes_ratio(self) -> float:
        """Bytes that nodes receive, against without pushes."""
        return (self.fetched + self.pushed) / max(1, self.fetched_without)

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {"cut": self.cut, "bytes_ratio": self.bytes_ratio}


def measure_pushes(trace: str, requests: Sequence[TraceRequest], nodes: int) -> PushFigures:
    """Replay a trace twice."""
    without, _ = _replay(requests, nodes, PushParameters(enabled=False))
    fetched, policy = _replay(requests, nodes, PushParameters())
    return PushFigures(trace, nodes, without, fetched, policy.counts.pushed_bytes, policy.counts.used_bytes)


def _replay(requests: Sequence[TraceRequest], nodes: int, parameters: PushParameters) -> tuple[int, PushPolicy[int]]:
    """(blocks fetched remotely for engines, the policy at the end)."""
    policy: PushPolicy[int] = PushPolicy(parameters)
    holders: defaultdict[int, set[int]] = defaultdict(set)
    fetched = 0
    for number, request in enumerate(requests):
        node, now_ns, found = number % nodes, int(request.arrival_ms * _MS), True
        for position, block in enumerate(request.blocks):
            copies = holders[block]
            found = found and bool(copies)
            if not found and node not in copies:
                copies.add(node)  # computed here
                continue
            remote = node not in copies
            fetched += remote
            absent = [other for other in range(nodes) if other not in copies]
            key = ChunkKey(block.to_bytes(16, "big"))
            pushed = policy.fetched(key, 1, position, node, remote, lambda absent=absent: absent, now_ns)  # type: ignore[misc]
            for other in pushed:
                policy.sent(key, 1, other)
            copies.add(node)
            copies.update(pushed)
    return fetched, policy


def push_table(figures: Sequence[PushFigures]) -> Table:
    """For a terminal."""
    table = Table(title=f"gated pushes, {figures[0].nodes} nodes in turn", box=box.SIMPLE)
    for column in ("trace", "fetched without", "fetched with", "fewer by", "pushed", "used", "bytes"):
        table.add_column(column, justify="left" if column == "trace" else "right")
    for case in figures:
        table.add_row(
            case.trace,
            f"{case.fetched_without:,}",
            f"{case.fetched:,}",
            f"{case.cut:.1f} x",
            f"{case.pushed:,}",
            f"{case.used / case.pushed:.0%}" if case.pushed else "-",
            f"{case.bytes_ratio:.2f} x",
        )
    return table
