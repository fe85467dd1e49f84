"""Plots of a plan, as matplotlib figures and as SVG text."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

from planner.cluster.options import Sharing
from planner.plan import PlanFigures
from planner.units import format_seconds

COLOURS = {
    Sharing.NONE: "#8c8c8c",
    Sharing.UNICAST: "#c44e52",
    Sharing.REPLICAS: "#dd8452",
    Sharing.RELAY: "#8172b3",
    Sharing.CAST: "#4c72b0",
    Sharing.CAST_SWITCH: "#55a868",
}
_TIERS = {"local": "#55a868", "holder": "#c44e52", "cast": "#4c72b0", "switch": "#8172b3", "disk": "#ccb974"}
CAPTIONS = {
    "hits": "Where tokens' KV came from, by option; the rest was computed",
    "latency": "Time to first token, by option: the mean of all requests, and what one in a hundred exceeds",
    "bursts": "How long a prefix takes to be at hand when several nodes ask for it at once",
    "sweeps": "Mean time to first token against no pool (below 1 is better), one setting changed at a time",
}
"""Of each plot, by file name."""
_AXES = {
    "nodes": "nodes",
    "link": "link (100g: 100 Gbit/s)",
    "rate": "requests, times those of the trace",
    "model": "model, by KV bytes a token",
}


def hits(plan: PlanFigures) -> Figure:
    """Stacked bars: where tokens' KV came from."""
    figure = _figure(6.4, 3.2)
    axes = figure.subplots()
    names = [sharing.value for sharing in plan.replays]
    left = [0.0] * len(names)
    for tier, colour in _TIERS.items():
        shares = [one.hits.get(tier, 0.0) for one in plan.replays.values()]
        if any(shares):
            axes.barh(names, shares, left=left, color=colour, label=tier)
            left = [before + share for before, share in zip(left, shares, strict=True)]
    axes.axvline(plan.trace.reusable, color="black", linewidth=0.8, linestyle="--", label="infinite shared cache")
    axes.invert_yaxis()
    axes.set_xlabel("share of tokens not computed")
    figure.legend(loc="outside upper center", ncols=6, fontsize=7)
    return figure


def latency(plan: PlanFigures) -> Figure:
    """Bars: time to first token, mean and p99."""
    figure = _figure(6.4, 3.2)
    left, right = figure.subplots(1, 2, sharey=True)
    names = [sharing.value for sharing in plan.replays]
    colours = [COLOURS[sharing] for sharing in plan.replays]
    means = [one.ttft_mean_s * 1e3 for one in plan.replays.values()]
    p99s = [one.ttft_p99_s * 1e3 for one in plan.replays.values()]
    for axes, milliseconds, label in ((left, means, "mean time to first token"), (right, p99s, "99th percentile")):
        bars = axes.barh(names, milliseconds, color=colours)
        axes.bar_label(bars, fmt=lambda milliseconds: format_seconds(milliseconds / 1e3), fontsize=7, padding=2)
        axes.set_xlim(0, max(*milliseconds, 1e-3) * 1.25)
        axes.xaxis.set_major_locator(MaxNLocator(5))
        axes.set_xlabel(f"{label}, ms")
    left.invert_yaxis()
    return figure


def burst(plan: PlanFigures) -> Figure:
    """Lines: time until the same prefix is at hand, over the number of nodes that ask at once."""
    figure = _figure(6.4, 3.2)
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
        axes.plot(readers, milliseconds, marker="osv^Dx"[place], markersize=4, color=colour, label=name)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xticks(readers, [str(count) for count in readers])
    axes.set_xlabel("nodes that ask at once")
    axes.set_ylabel("mean time until it is at hand, ms")
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.legend(fontsize=7)
    return figure


def sweeps(plan: PlanFigures) -> Figure:
    """One panel for each setting that was varied: mean time to first token of each option, over that without a pool."""
    axes_names = list(dict.fromkeys(point.axis for point in plan.points))
    figure = _figure(6.4, 5.0)
    panels: Any = figure.subplots(2, 2).flat
    for panel, axis in zip(panels, axes_names, strict=False):
        points = [point for point in plan.points if point.axis == axis]
        for place, sharing in enumerate(points[0].figures):
            panel.plot(
                range(len(points)),
                [
                    point.figures[sharing].ttft_mean_s / max(point.figures[Sharing.NONE].ttft_mean_s, 1e-9)
                    for point in points
                ],
                marker="osv^D"[place],
                markersize=4,
                alpha=0.8,
                color=COLOURS[sharing],
                label=sharing.value,
            )
        panel.set_xticks(range(len(points)), [point.label for point in points], fontsize=6)
        panel.set_xlabel(_AXES.get(axis, axis), fontsize=8)
        panel.tick_params(axis="y", labelsize=7)
        panel.set_ylabel("mean TTFT / without a pool", fontsize=7)
    figure.legend(*figure.axes[0].get_legend_handles_labels(), loc="outside upper center", ncols=6, fontsize=7)
    return figure


def figures_of(plan: PlanFigures) -> dict[str, Figure]:
    """All plots by file name, without suffix."""
    found = {"hits": hits(plan), "latency": latency(plan)}
    if plan.bursts:
        found["bursts"] = burst(plan)
    if plan.points:
        found["sweeps"] = sweeps(plan)
    return found


def svg(figure: Figure) -> str:
    """The plot as an SVG element, the same text for the same figures."""
    text = io.StringIO()
    with mpl.rc_context({"svg.hashsalt": "kvcast", "svg.fonttype": "none"}):
        figure.savefig(text, format="svg", metadata={"Date": None})
    return text.getvalue()[text.getvalue().index("<svg") :]


def save(figures: dict[str, Figure], folder: Path) -> dict[str, str]:
    """Each as SVG and PNG files; returns the SVG elements by name."""
    drawn = {name: svg(figure) for name, figure in figures.items()}
    for name, figure in figures.items():
        (folder / f"{name}.svg").write_text(drawn[name])
        figure.savefig(folder / f"{name}.png", dpi=150, metadata={"Software": None})
    return drawn


def _figure(width: float, height: float) -> Figure:
    return Figure(figsize=(width, height), layout="constrained")
