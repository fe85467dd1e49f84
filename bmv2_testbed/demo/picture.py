"""The picture that the demo ends with, as SVG and PNG."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from bmv2_testbed.bench.figures import IncastFigures
from bmv2_testbed.demo.run import DemoFigures
from bmv2_testbed.workloads.replay_run import ReplayFigures
from planner import palette


def draw(figures: DemoFigures, directory: Path) -> list[Path]:
    """Draw everything; returns the files written, SVG first."""
    rows = 1 + len(figures.replays)
    canvas = Figure(figsize=(16, 4.2 * rows), layout="constrained")
    axes = canvas.subplots(rows, 3, squeeze=False)
    _incast_row(axes[0], figures.incast)
    for row, (title, group) in zip(axes[1:], figures.replays, strict=True):
        _replay_row(row, title, group)
    directory.mkdir(parents=True, exist_ok=True)
    files = [directory / "demo.svg", directory / "demo.png"]
    for file in files:
        canvas.savefig(file, dpi=110, metadata={"Date": None} if file.suffix == ".svg" else None)
    return files


def _incast_row(axes: Sequence[Any], cases: Sequence[tuple[str, IncastFigures]]) -> None:
    labels = [label for label, _ in cases]
    times, uplink, share = axes
    for position, (_, case) in enumerate(cases):
        times.plot([position] * len(case.times_s), case.times_s, "o", color=palette.HOLDER, alpha=0.6)
    if cases:
        times.axhline(cases[0][1].ideal_s, color=palette.LIMIT, linestyle="--", label="S/B: the prefix over one link")
        times.legend()
    times.set_ylim(bottom=0)
    times.set_title("incast: time to the last byte, each reader")
    times.set_ylabel("seconds from its own start")
    uplink.bar(range(len(cases)), [case.holder_tx_S for _, case in cases], color=palette.HOLDER)
    uplink.set_title("bytes on the holder's uplink")
    uplink.set_ylabel("times the prefix' size S")
    share.bar(range(len(cases)), [case.readers_tx_S for _, case in cases], color=palette.RELAY)
    share.set_title("bytes that all readers sent")
    share.set_ylabel("times the prefix' size S")
    for axis in axes:
        axis.set_xticks(range(len(labels)), labels, rotation=20, ha="right")


def _replay_row(axes: Sequence[Any], title: str, group: Sequence[ReplayFigures]) -> None:
    labels = [figures.mode for figures in group]
    ready, uplink, sources = axes
    ready.boxplot([list(figures.ready_s) for figures in group], showfliers=False, whis=(5, 95))
    ready.set_xticks(range(1, len(labels) + 1), labels, rotation=15, ha="right")
    ready.set_ylabel("seconds")
    ready.set_title(f"{textwrap.fill(title, 56)}\ntime to a prompt's KV (computing is modelled)", fontsize=9)
    uplink.bar(
        labels,
        [sum(figures.uplink_bytes) / 2**20 for figures in group],
        color=palette.lighter(palette.HOLDER),
        label="all nodes",
    )
    uplink.bar(
        labels, [figures.busiest_uplink_bytes / 2**20 for figures in group], color=palette.HOLDER, label="busiest"
    )
    uplink.set_ylabel("MiB sent on uplinks")
    uplink.legend()
    uplink.tick_params(axis="x", rotation=15)
    bottom = [0.0] * len(group)
    for name, colour in palette.SOURCES.items():
        shares = [figures.sources.get(name, 0) / figures.blocks for figures in group]
        sources.bar(labels, shares, bottom=bottom, color=colour, label=name)
        bottom = [low + share for low, share in zip(bottom, shares, strict=True)]
    sources.set_ylabel("share of blocks")
    sources.set_title("where blocks came from")
    sources.legend(loc="upper center", bbox_to_anchor=(0.5, -0.18), ncols=len(palette.SOURCES), fontsize=8)
    sources.tick_params(axis="x", rotation=15)
