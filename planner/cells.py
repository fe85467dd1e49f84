"""Clusters beyond one switch: cells with a switch and a controller each, and what a pool brings in all of them.

A cell knows nothing of the others: its nodes find what its own nodes have. So what counts is which requests come
together. A router that keeps sessions in one cell sends each new session to the cell with the least work so far; one
that does not sends requests round.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from kvchunk.ids import ChunkKey
from kvproto.limits import MEMBERS_MAX
from planner.cluster.figures import Management, ReplayFigures
from planner.cluster.options import Scenario
from planner.cluster.replay import Replay
from planner.cluster.requests import Outcome, Request

_NAMED_BY: Final = 1
"""Place of the chunk that tells sessions apart: before it lies what all prompts begin with."""


@dataclass(frozen=True, slots=True)
class CellRun:
    """What became of the requests of one cell."""

    nodes: int
    figures: ReplayFigures
    outcomes: Sequence[Outcome]


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
    runs = []
    for number, (nodes, part) in enumerate(zip(sizes, parts, strict=True)):
        replay = Replay(replace(scenario, cluster=replace(scenario.cluster, nodes=nodes)))
        figures = replay.run(part, lambda share, number=number: progress((number + share) / len(sizes)))  # type: ignore[misc]
        runs.append(CellRun(nodes, figures, replay.outcomes))
    return combined(runs)


def combined(runs: Sequence[CellRun]) -> ReplayFigures:
    """Sums, means over requests, tokens or nodes, and quantiles over the requests of all cells. Of the busiest uplink:
    the busiest cell's."""
    figures = [run.figures for run in runs]
    outcomes = [outcome for run in runs for outcome in run.outcomes]
    tokens, nodes = sum(one.tokens for one in figures), sum(run.nodes for run in runs)
    duration_s = max(one.duration_s for one in figures)

    def by_tokens(shares: Sequence[float]) -> float:
        return sum(share * one.tokens for share, one in zip(shares, figures, strict=True)) / max(1, tokens)

    def by_nodes(shares: Sequence[float]) -> float:
        """Of utilisations, each over its own cell's time."""
        parts = zip(shares, runs, strict=True)
        return sum(share * run.nodes * run.figures.duration_s for share, run in parts) / max(1e-9, nodes * duration_s)

    ttft_s = [one.ttft_s for one in outcomes]
    fetch_s = [one.fetch_s for one in outcomes if one.fetch_s > 0]
    return ReplayFigures(
        sharing=figures[0].sharing,
        requests=len(outcomes),
        duration_s=duration_s,
        tokens=tokens,
        hits={name: by_tokens([one.hits[name] for one in figures]) for name in figures[0].hits},
        refused=by_tokens([one.refused for one in figures]),
        ttft_mean_s=float(np.mean(ttft_s)) if ttft_s else 0.0,
        ttft_p50_s=_quantile(ttft_s, 0.5),
        ttft_p99_s=_quantile(ttft_s, 0.99),
        fetches=len(fetch_s),
        fetch_p50_s=_quantile(fetch_s, 0.5),
        fetch_p99_s=_quantile(fetch_s, 0.99),
        saved_s=sum(one.saved_s for one in figures),
        regret_s=sum(one.regret_s for one in figures),
        given_up=sum(one.given_up for one in figures),
        queue_mean_s=float(np.mean([one.queue_s for one in outcomes])) if outcomes else 0.0,
        prefill_s=sum(one.prefill_s for one in figures),
        engine_busy=by_nodes([one.engine_busy for one in figures]),
        uplink_bytes=sum(one.uplink_bytes for one in figures),
        uplink_mean=by_nodes([one.uplink_mean for one in figures]),
        uplink_peak=max(one.uplink_peak for one in figures),
        uplink_p99=max(one.uplink_p99 for one in figures),
        management=_managed([one.management for one in figures]),
        core_cpu_s=sum(one.core_cpu_s for one in figures),
    )


def _managed(parts: Sequence[Management]) -> Management:
    decisions: Counter[str] = Counter()
    for part in parts:
        decisions.update(part.decisions)
    return Management(
        sum(part.messages for part in parts),
        sum(part.message_bytes for part in parts),
        sum(part.control_packets for part in parts),
        sum(part.control_bytes for part in parts),
        sum(part.switch_updates for part in parts),
        dict(sorted(decisions.items())),
    )


def _quantile(values: Sequence[float], share: float) -> float:
    return float(np.quantile(values, share)) if values else 0.0
