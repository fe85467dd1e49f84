"""Clusters beyond one switch: cells with a switch and a controller each, and what a pool brings in all of them.

A cell knows nothing of the others: its nodes find what its own nodes have. So what counts is which requests come
together. A router that keeps sessions in one cell sends each new session to the cell with the least work so far; one
that does not sends requests round.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

from kvchunk.ids import ChunkKey
from kvproto.limits import MEMBERS_MAX
from planner.cluster.figures import ReplayFigures, figures_of
from planner.cluster.options import Scenario
from planner.cluster.replay import Replay
from planner.cluster.requests import Request

_NAMED_BY: Final = 1
"""Place of the chunk that differs between sessions: all prompts begin with the chunks before it."""


def cell_sizes(nodes: int) -> list[int]:
    """As few cells as switches allow, as even as possible; nodes of each."""
    count = -(-nodes // MEMBERS_MAX)
    return [nodes // count + (cell < nodes % count) for cell in range(count)]


def divide(requests: Sequence[Request], sizes: Sequence[int], *, by_session: bool) -> list[list[Request]]:
    """The requests of each cell, in order of arrival. A session is what shares the second chunk of its prompts (or the
    first, where there is no second)."""
    cells: list[list[Request]] = [[] for _ in sizes]
    work = [0.0] * len(sizes)
    """Tokens so far for each node of a cell."""
    home: dict[ChunkKey, int] = {}
    for turn, request in enumerate(requests):
        cell = turn % len(sizes)
        if by_session:
            idlest = min(range(len(sizes)), key=lambda one: (work[one], one))
            name = request.keys[min(_NAMED_BY, len(request.keys) - 1)] if request.keys else None
            cell = idlest if name is None else home.setdefault(name, idlest)
        cells[cell].append(request)
        work[cell] += request.tokens / sizes[cell]
    return cells


def replay_cells(
    scenario: Scenario, requests: Sequence[Request], progress: Callable[[float], None] = lambda _: None
) -> ReplayFigures:
    """Replay the cells one after the other; the figures are of all of them together."""
    sizes = cell_sizes(scenario.cluster.nodes)
    parts = divide(requests, sizes, by_session=scenario.cluster.sessions_in_cells)
    cells = []
    for number, (nodes, part) in enumerate(zip(sizes, parts, strict=True)):
        replay = Replay(replace(scenario, cluster=replace(scenario.cluster, nodes=nodes)))
        replay.run(part, lambda share, number=number: progress((number + share) / len(sizes)))  # type: ignore[misc]
        cells.append(replay.measured())
    return figures_of(scenario.sharing, scenario.cluster.link_rate, cells)
