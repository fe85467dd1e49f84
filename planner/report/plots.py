"""Plots of a plan, as matplotlib figures and as SVG text."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

from kvchunk.sources import ChunkSource
from planner import palette
from planner.cluster.options import Sharing
from planner.plan import PlanFigures
from planner.report.style import column_figure, paper, save
from planner.units import format_seconds

COLOURS = {
    Sharing.NONE: palette.COMPUTED,
    Sharing.UNICAST: palette.HOLDER,
    Sharing.REPLICAS: palette.REPLICAS,
    Sharing.RELAY: palette.RELAY,
    Sharing.CAST: palette.CAST,
    Sharing.CAST_SWITCH: palette.SWITCH,
}
"""An option has the colour of the source that it adds."""
CAPTIONS = {
    "hits": "Where tokens' KV came from, by option; the rest was computed",
    "latency": "Time to first token, by option: the mean of all requests, and what one in a hundred exceeds",
    "bursts": "How long a prefix takes to be at hand when several nodes ask for it at once",
    "sweeps": "Mean time to first token against no pool (below 1 is better), one setting changed at a time",
}
"""Of each plot, by file name."""
_MARKERS = "osv^Dx"
"""Of the options, in their order."""
_AXES = {
    "nodes": "nodes",
    "link": "link (100g: 100 Gbit/s)",
    "rate": "requests (times the trace's)",
    "model": "model, by KV bytes",
}


def hits(plan: PlanFigures) -> Figure:
    """Stacked bars: where tokens' KV came from."""
    figure = column_figure(2.2)
    axes = figure.subplots()
    names = [sharing.value for sharing in plan.replays]
    left = [0.0] * len(names)
    for source in ChunkSource:
        shares = [one.hits.get(source.label, 0.0) for one in plan.replays.values()]
        if any(shares):
            axes.barh(names, shares, left=left, color=palette.SOURCES[source.label], label=source.label)
            left = [before + share for before, share in zip(left, shares, strict=True)]
    axes.axvline(plan.trace.reusable, color="black", linewidth=0.8, linestyle="--", label="infinite shared cache")
    axes.invert_yaxis()
    axes.set_xlabel("share of tokens not computed")
    figure.legend(loc="outside upper center", ncols=3)
    return figure


def latency(plan: PlanFigures) -> Figure:
    """Bars: time to first token, mean and p99."""
    figure = column_figure(2.2)
    left, right = figure.subplots(1, 2, sharey=True)
    names = [sharing.value for sharing in plan.replays]
    colours = [COLOURS[sharing] for sharing in plan.replays]
    means = [one.ttft_mean_s * 1e3 for one in plan.replays.values()]
    p99s = [one.ttft_p99_s * 1e3 for one in plan.replays.values()]
    for axes, milliseconds, label in ((left, means, "mean time to first token"), (right, p99s, "99th percentile")):
        bars = axes.barh(names, milliseconds, color=colours)
        axes.bar_label(bars, fmt=lambda milliseconds: format_seconds(milliseconds / 1e3), fontsize=5.5, padding=1)
        axes.set_xlim(0, max(*milliseconds, 1e-3) * 1.25)
        axes.xaxis.set_major_locator(MaxNLocator(3))
        axes.set_xlabel(f"{label}, ms")
    left.invert_yaxis()
    return figure


def burst(plan: PlanFigures) -> Figure:
    """Lines: time until the same prefix is at hand, over the number of nodes that ask at once."""
    figure = column_figure(2.2)
    axes = figure.subplots()
    readers = [one.readers for one in plan.bursts]
    lines: list[tuple[str, list[float], str]] = [
        ("compute", [one.recompute_s for one in plan.bursts], COLOURS[Sharing.NONE]),
        ("unicast", [one.unicast_s for one in plan.bursts], COLOURS[Sharing.UNICAST]),
        ("replicas", [one.replicas_s for one in plan.bursts], COLOURS[Sharing.REPLICAS]),
        ("relays", [one.relay_s for one in plan.bursts], COLOURS[Sharing.RELAY]),
        ("cast", [one.cast_s for one in plan.bursts], COLOURS[Sharing.CAST]),
        ("switch", [one.switch_s for one in plan.bursts], COLOURS[Sharing.CAST_SWITCH]),
    ]
    for place, (name, seconds, colour) in enumerate(lines):
        milliseconds = [one * 1e3 for one in seconds]
        axes.plot(readers, milliseconds, marker=_MARKERS[place], markersize=2.5, color=colour, label=name)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xticks(readers, [str(count) for count in readers])
    axes.set_xlabel("nodes that ask at once")
    axes.set_ylabel("mean time until it is at hand, ms")
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.legend(ncols=2)
    return figure


def sweeps(plan: PlanFigures) -> Figure:
    """One panel for each setting that was varied: mean time to first token of each option, over that without a pool."""
    axes_names = list(dict.fromkeys(point.axis for point in plan.points))
    figure = column_figure(3.4)
    panels: Any = figure.subplots(2, 2).flat
    for place_of_panel, (panel, axis) in enumerate(zip(panels, axes_names, strict=False)):
        points = [point for point in plan.points if point.axis == axis]
        for place, sharing in enumerate(points[0].figures):
            panel.plot(
                range(len(points)),
                [
                    point.figures[sharing].ttft_mean_s / max(point.figures[Sharing.NONE].ttft_mean_s, 1e-9)
                    for point in points
                ],
                marker=_MARKERS[place],
                markersize=2.5,
                alpha=0.8,
                color=COLOURS[sharing],
                label=sharing.value,
            )
        panel.set_xticks(range(len(points)), [point.label for point in points], fontsize=5)
        panel.set_xlabel(_AXES.get(axis, axis))
        panel.tick_params(axis="y", labelsize=6)
        if place_of_panel % 2 == 0:
            panel.set_ylabel("mean TTFT / no pool's")
    figure.legend(*figure.axes[0].get_legend_handles_labels(), loc="outside upper center", ncols=3)
    return figure


def figures_of(plan: PlanFigures) -> dict[str, Figure]:
    """All plots by file name, without suffix. Call it inside `style.paper()`."""
    found = {"hits": hits(plan), "latency": latency(plan)}
    if plan.bursts:
        found["bursts"] = burst(plan)
    if plan.points:
        found["sweeps"] = sweeps(plan)
    return found


def draw(plan: PlanFigures, folder: Path) -> dict[str, str]:
    """Write each as SVG and PNG files; returns the SVG elements by name. Raises OSError."""
    with paper():
        return {name: save(figure, folder / name)[0] for name, figure in figures_of(plan).items()}
