"""The picture that the demo ends with, as SVG and PNG: a panel for the incast and one for each workload."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import matplotlib as mpl
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from bmv2_testbed.bench import incast
from bmv2_testbed.bench.figures import IncastFigures
from bmv2_testbed.bench.peer_servers import Peer
from bmv2_testbed.demo.run import DemoFigures
from bmv2_testbed.workloads.rows import Row
from planner import palette
from planner.report.style import save
from planner.workloads.workload_catalog import Mode, Name

TITLES: Final[Mapping[Name, str]] = {
    Name.SCALE_OUT: "Scale-out: 7 nodes begin to serve\na system prompt of 30k tokens",
    Name.DOCUMENTS: "Documents: 8 nodes ask about\n20k tokens that one node has",
    Name.ROLLOUTS: "Rollouts: 16 samples of a prompt\nthat nobody has, on 8 loaded nodes",
    Name.CHATS: "Chats, each at its own node:\nthe gate leaves them alone",
    Name.SLOW_LINK: "Documents over a slow link:\nthe gate lets engines compute",
}
_COLOURS: Final[Mapping[str, str]] = {
    Mode.NONE.value: palette.COMPUTED,
    Mode.UNICAST.value: palette.HOLDER,
    Mode.CAST.value: palette.CAST,
    Mode.CAST_SWITCH.value: palette.SWITCH,
    Mode.MERGED.value: palette.MERGED,
    Peer.CHAIN.value: palette.REPLICAS,
    incast.Mode.CACHE.value: palette.SWITCH,
    incast.Mode.MULTICAST.value: palette.CAST,
    incast.Mode.RELAY.value: palette.RELAY,
    incast.Mode.AUTO.value: palette.CAST,
}
_LABELS: Final[Mapping[str, str]] = {
    Mode.NONE.value: "no pool",
    Mode.UNICAST.value: "unicast\npool",
    Mode.CAST.value: "cast",
    Mode.CAST_SWITCH.value: "cast +\nswitch cache",
    Mode.MERGED.value: "cast +\nmerging",
    Peer.CHAIN.value: "reader\nchain",
    incast.Mode.CACHE.value: "switch\ncache",
    incast.Mode.MULTICAST.value: "multi-\ncast",
    incast.Mode.RELAY.value: "relay",
    incast.Mode.AUTO.value: "auto",
}
_STYLE: Final[Any] = {
    "font.size": 11,
    "axes.titlesize": 12,
    "axes.labelsize": 11,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "hatch.linewidth": 1.2,
}
_COLUMNS: Final = 3
_LOSS_MIN: Final = 0.02
"""A mode that is slower than no pool by less is as quick."""
_CLEAR: Final = 0.03
"""Half of a mark's height, of the tallest bar's."""


def draw(figures: DemoFigures, directory: Path) -> list[Path]:
    """Draw everything; returns the files written, SVG first."""
    groups = figures.by_workload()
    panels = bool(figures.incast) + len(groups)
    rows = -(-panels // _COLUMNS)
    directory.mkdir(parents=True, exist_ok=True)
    with mpl.rc_context(_STYLE):
        canvas = Figure(figsize=(13.5, 4.2 * rows + 0.6), layout="constrained")
        axes = iter(canvas.subplots(rows, _COLUMNS, squeeze=False).flat)
        if figures.incast:
            _incast_panel(next(axes), figures.incast)
        for name, group in groups.items():
            _workload_panel(next(axes), name, group)
        for unused in axes:
            unused.set_visible(False)
        if groups:
            _legend(canvas)
        return save(canvas, directory / "demo")[1]


def _incast_panel(axis: Any, cases: Sequence[IncastFigures]) -> None:
    names = [case.mode for case in cases]
    heights = [case.mean_ratio for case in cases]
    _bars(axis, names, heights, [f"{height:.2f}" for height in heights])
    axis.axhline(1.0, color=palette.LIMIT, linestyle="--", linewidth=1)
    axis.set_title("Incast: 8 readers fetch the same\nprefix from one holder at once")
    axis.set_ylabel("time / time of one transfer")


def _workload_panel(axis: Any, name: Name, rows: Sequence[Row]) -> None:
    names = [row.mode.value for row in rows]
    heights = [row.mean_s * 1e3 for row in rows]
    none_ms = next((row.mean_s * 1e3 for row in rows if row.mode is Mode.NONE), None)
    labels = [f"{height:.0f} ms" for height in heights]
    if none_ms is not None:
        labels = [
            label if mode == Mode.NONE.value else f"{label}\n({_change(height / none_ms - 1)})"
            for mode, height, label in zip(names, heights, labels, strict=True)
        ]
        axis.axhline(none_ms, color=palette.LIMIT, linestyle="--", linewidth=1)
    planned = [row.predicted.mean_s * 1e3 for row in rows]
    _bars(axis, names, heights, labels, planned)
    for place, height in enumerate(heights):
        if none_ms is not None and height > none_ms * (1 + _LOSS_MIN):
            bottom = none_ms
            axis.bar(place, height - bottom, 0.62, bottom=bottom, facecolor="none", edgecolor="white", hatch="//")
    axis.plot(range(len(rows)), planned, "D", color="white", markeredgecolor=palette.LIMIT, markersize=7, zorder=5)
    axis.set_ylim(top=1.32 * max([*heights, *planned]))
    axis.set_title(TITLES[name])
    axis.set_ylabel("mean time until the KV is there, ms")


def _change(share: float) -> str:
    """Against no pool, in whole per cent."""
    percent = round(100 * share)
    return f"{percent:+d} %" if percent else "±0 %"


def _bars(
    axis: Any, names: Sequence[str], heights: Sequence[float], labels: Sequence[str], marks: Sequence[float] = ()
) -> None:
    """`marks`: of each bar, what will be marked on it; a label stays clear of a mark that is just above its bar."""
    axis.bar(range(len(names)), heights, 0.62, color=[_COLOURS[name] for name in names])
    for place, (height, label) in enumerate(zip(heights, labels, strict=True)):
        mark = marks[place] if marks else height
        above = mark > height - _CLEAR * max(heights)
        axis.annotate(
            label,
            (place, max(height, mark)),
            xytext=(0, 11 if marks and above else 5),
            textcoords="offset points",
            ha="center",
            va="bottom",
            zorder=6,
            bbox={"facecolor": "white", "edgecolor": "none", "pad": 1.0, "alpha": 0.9},
        )
    axis.set_xticks(range(len(names)), [_LABELS[name] for name in names])
    axis.set_xlim(-0.6, len(names) - 0.4)
    axis.set_ylim(0, 1.25 * max(heights, default=1.0))


def _legend(canvas: Figure) -> None:
    marks = [
        Line2D([], [], marker="D", color="white", markeredgecolor=palette.LIMIT, linestyle="", label="planned"),
        Line2D([], [], color=palette.LIMIT, linestyle="--", linewidth=1, label="without a pool; one transfer (incast)"),
        Patch(facecolor=palette.HOLDER, edgecolor="white", hatch="//", label="what the pool loses"),
    ]
    canvas.legend(handles=marks, loc="outside lower center", ncols=len(marks), frameon=False)
