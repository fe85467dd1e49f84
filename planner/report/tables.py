"""Tables that fit a terminal of 100 columns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from rich import box
from rich.table import Table

from kvproto.units import format_bytes
from planner.cluster.options import Sharing
from planner.plan import PlanFigures
from planner.units import format_seconds
from planner.verdict import AGAINST, benefit, ranges, settings


@dataclass(frozen=True, slots=True)
class Grid:
    """A table before it is drawn, for terminal and page alike."""

    title: str
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str = ""
    numbers: bool = True
    """What the cells after the first are: set to the right."""


def terminal(grid: Grid) -> Table:
    """Draw it for a terminal."""
    table = Table(
        title=grid.title,
        caption=grid.note or None,
        title_justify="left",
        caption_justify="left",
        box=box.SIMPLE_HEAD,
        show_header=any(grid.head),
        collapse_padding=True,
        pad_edge=False,
    )
    for index, heading in enumerate(grid.head):
        justify: Literal["left", "right"] = "right" if index and grid.numbers else "left"
        table.add_column(heading, justify=justify, overflow="fold", no_wrap=not index and grid.numbers)
    for row in grid.rows:
        table.add_row(*row)
    return table


def grids(plan: PlanFigures) -> list[Grid]:
    """All tables of a plan, in the order of the questions."""
    found = [_settings(plan), _hits(plan), _latency(plan), _bursts(plan), _cost(plan), _benefit(plan)]
    return [*found, _ranges(plan)] if plan.points else found


def _settings(plan: PlanFigures) -> Grid:
    return Grid("What was planned for", ("", ""), tuple(settings(plan)), numbers=False)


def _hits(plan: PlanFigures) -> Grid:
    rows = []
    for sharing, one in plan.replays.items():
        tiers = [one.hits[tier] for tier in one.hits if tier != "computed"]
        rows.append((sharing.value, *map(_percent, tiers), _percent(one.hits["computed"]), _percent(one.refused)))
    tiers_head = [tier for tier in next(iter(plan.replays.values())).hits if tier != "computed"]
    return Grid(
        "1. Where tokens' KV came from",
        ("", *tiers_head, "computed", "refused"),
        tuple(rows),
        "shares of all input tokens; refused: in the pool, but computing was expected to be faster",
    )


def _latency(plan: PlanFigures) -> Grid:
    rows = [
        (
            sharing.value,
            format_seconds(one.ttft_mean_s),
            format_seconds(one.ttft_p50_s),
            format_seconds(one.ttft_p99_s),
            format_seconds(one.fetch_p50_s) if one.fetches else "-",
            format_seconds(one.fetch_p99_s) if one.fetches else "-",
            _percent(one.uplink_mean),
            f"{one.uplink_p99:.0%}",
            f"{one.uplink_peak:.0%}",
        )
        for sharing, one in plan.replays.items()
    ]
    return Grid(
        "2. Time to first token, and holders' uplinks",
        ("", "mean", "p50", "p99", "fetch", "fetch p99", "links", "p99", "peak"),
        tuple(rows),
        "fetch: median; links: mean utilisation of all uplinks; p99, peak: of the busiest one in each second",
    )


def _bursts(plan: PlanFigures) -> Grid:
    rows = [
        (
            str(one.readers),
            format_seconds(one.recompute_s),
            format_seconds(one.unicast_s),
            format_seconds(one.replicas_s),
            format_seconds(one.relay_s),
            format_seconds(one.cast_s),
            format_seconds(one.switch_s),
            f"{one.uplink_unicast:.1f}",
            f"{one.uplink_cast:.1f}",
        )
        for one in plan.bursts
    ]
    tokens, size = (plan.bursts[0].tokens, plan.bursts[0].size_bytes) if plan.bursts else (0, 0)
    return Grid(
        f"2b. When several nodes ask for the same {tokens} tokens ({format_bytes(size)}) at once",
        ("nodes", "compute", "unicast", "replicas", "relays", "cast", "switch", "sent", "cast"),
        tuple(rows),
        "mean time until the KV is at hand; sent, cast: bytes from the holder over the prefix, by unicast and by cast",
    )


def _cost(plan: PlanFigures) -> Grid:
    rows = []
    for sharing, one in plan.replays.items():
        seconds = max(1.0, one.duration_s)
        cost = one.management
        rows.append(
            (
                sharing.value,
                f"{cost.messages / seconds:.1f}",
                f"{format_bytes(cost.message_bytes / seconds)}/s",
                f"{cost.control_packets / seconds:.1f}",
                f"{cost.switch_updates / seconds:.2f}",
                f"{one.core_cpu_s / seconds:.2%}",
                format_bytes(one.uplink_bytes),
            )
        )
    return Grid(
        "3. What managing costs",
        ("", "messages/s", "of bytes", "datagrams/s", "writes/s", "CPU", "data sent"),
        tuple(rows),
        "messages: of controller and agents; datagrams: JOIN, GET, LEAVE; CPU: of the controller, measured here",
    )


def _benefit(plan: PlanFigures) -> Grid:
    rows = []
    for sharing in plan.replays:
        if sharing in AGAINST:
            one = benefit(sharing, plan.replays, plan.noise)
            rows.append(
                (
                    sharing.value,
                    one.against.value,
                    f"{-one.ttft_mean:+.1%}",
                    f"{-one.ttft_p99:+.1%}",
                    f"{one.waited_s_per_hour:+,.0f} s",
                    f"{one.net_s_per_hour:+,.0f} s",
                    "yes" if one.pays else "no",
                )
            )
    return Grid(
        "4. Net benefit",
        ("", "against", "mean", "p99", "waiting/h", "engine - CPU/h", "pays"),
        tuple(rows),
        "time to first token; waiting spared; engine time less controller CPU; pays: mean 2 % less, not by chance",
    )


def _ranges(plan: PlanFigures) -> Grid:
    found = ranges(plan.points, plan.noise)
    axes = list(dict.fromkeys(one.axis for one in found))
    rows = []
    for sharing in Sharing:
        mine = {one.axis: one.text() for one in found if one.sharing is sharing}
        if mine:
            rows.append((f"{sharing.value} vs {AGAINST[sharing].value}", *(mine[axis] for axis in axes)))
    requests = next(iter(plan.points[0].figures.values())).requests
    return Grid(
        "4b. Where each option pays, one setting changed at a time",
        ("", *axes),
        tuple(rows),
        f"first {requests} requests of the trace, cold caches",
        numbers=False,
    )


def _percent(share: float) -> str:
    return f"{share:.1%}"
