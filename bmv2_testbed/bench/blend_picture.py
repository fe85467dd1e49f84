"""The picture of blending, for a paper's column: quality over the share of tokens computed again."""

from __future__ import annotations

from pathlib import Path

from matplotlib.figure import Figure

from bmv2_testbed.bench.blend import BlendReport
from planner import palette
from planner.report.style import column_figure, paper, save


def draw(report: BlendReport, stem: Path) -> list[Path]:
    """Write STEM.svg and STEM.png; returns them. Raises OSError."""
    with paper():
        return save(figure(report), stem)[1]


def figure(report: BlendReport) -> Figure:
    """Above: perplexity, beside that of KV computed in full. Below: the divergence of the next token."""
    made = column_figure(3.0)
    perplexity, divergence = made.subplots(2, 1, sharex=True)
    shares = [100 * one.share for one in report.figures]
    look = {"color": palette.CAST, "marker": "o", "markersize": 3}
    perplexity.plot(shares, [one.perplexity for one in report.figures], **look)
    perplexity.axhline(report.full_perplexity, color=palette.LIMIT, linestyle="--", linewidth=0.8)
    perplexity.set_ylabel("perplexity")
    divergence.plot(shares, [one.divergence for one in report.figures], **look)
    divergence.set_ylabel("divergence (nats)")
    divergence.set_xlabel("tokens computed again (%)")
    for axes in (perplexity, divergence):
        axes.grid(axis="y", linewidth=0.3, color=palette.lighter(palette.COMPUTED, 0.4))
    divergence.set_ylim(bottom=0)
    return made
