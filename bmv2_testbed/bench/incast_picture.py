"""The picture of an incast, for a paper's column: bytes over time beside the limit."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from bmv2_testbed.bench.figures import Curves, IncastFigures
from planner import palette
from planner.report.style import column_figure, paper, save

_COLOURS: Final = {"unicast": palette.HOLDER, "cast": palette.CAST, "cache": palette.SWITCH}
_NAMES: Final = {"unicast": "unicast", "cast": "cast", "cache": "from the switch", "tcp": "TCP", "redis": "Redis"}
_STYLES: Final[Mapping[str, Any]] = {"tcp": ":", "redis": "-."}


def draw(cases: Mapping[str, IncastFigures], size_bytes: int, rate_bit_s: int, stem: Path) -> list[Path]:
    """Write STEM.svg and STEM.png; returns them. Raises OSError."""
    with paper():
        return save(figure(cases, size_bytes, rate_bit_s), stem)[1]


def figure(cases: Mapping[str, IncastFigures], size_bytes: int, rate_bit_s: int) -> Figure:
    """Above: what each reader has received, a dot where it has compared the last byte, and the rate of its link. Below:
    what the holder has sent. S is the size of the prefix; frames' headers count."""
    drawn = {name: case.curves for name, case in cases.items() if case.curves is not None}
    made = column_figure(3.3)
    readers, holder = made.subplots(2, 1, sharex=True, height_ratios=(3, 2))
    for name, curves in drawn.items():
        look: dict[str, Any] = {"color": _COLOURS.get(name, palette.PEER), "linestyle": _STYLES.get(name, "-")}
        for received in curves.readers_rx_bytes:
            readers.plot(curves.times_s, _in_sizes(received, size_bytes), alpha=0.55, linewidth=0.7, **look)
        ends_s = [start_s + took_s for start_s, took_s in zip(cases[name].offsets_s, cases[name].times_s, strict=True)]
        totals = [received[-1] / size_bytes for received in curves.readers_rx_bytes]
        readers.plot(ends_s, totals, "o", color=look["color"], markersize=2)
        holder.plot(curves.times_s, _in_sizes(curves.holder_tx_bytes, size_bytes), **look)
    end_s = max((curves.times_s[-1] for curves in drawn.values()), default=1.0)
    most = max((max(one[-1] for one in curves.readers_rx_bytes) for curves in drawn.values()), default=size_bytes)
    limit_s = most * 8 / rate_bit_s
    readers.plot([0, limit_s], [0, most / size_bytes], color=palette.LIMIT, linestyle="--", linewidth=0.8)
    readers.set_ylabel("received by each reader (S)")
    holder.set_ylabel("sent by the holder (S)")
    holder.set_xlabel("seconds")
    for axes in (readers, holder):
        axes.set_xlim(0, end_s * 1.02)
        axes.set_ylim(bottom=0)
        axes.grid(axis="y", linewidth=0.3, color=palette.lighter(palette.COMPUTED, 0.4))
        axes.yaxis.set_major_locator(MaxNLocator(4, steps=[1, 2, 5, 10]))
    lines = _legend(drawn)
    made.legend(handles=lines, loc="outside upper center", ncols=2 if len(lines) in (2, 4) else 3)
    return made


def _in_sizes(counts: Any, size_bytes: int) -> list[float]:
    return [count / size_bytes for count in counts]


def _legend(drawn: Mapping[str, Curves]) -> list[Line2D]:
    lines = [
        Line2D(
            [],
            [],
            color=_COLOURS.get(name, palette.PEER),
            linestyle=_STYLES.get(name, "-"),
            label=_NAMES.get(name, name),
        )
        for name in drawn
    ]
    return [*lines, Line2D([], [], color=palette.LIMIT, linestyle="--", linewidth=0.8, label="rate of a link")]
