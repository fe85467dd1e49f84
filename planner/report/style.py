"""Figures that fit a paper: the width of a column, its letters, the same file for the same content."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any, Final

import matplotlib as mpl
from matplotlib.figure import Figure

COLUMN_IN: Final = 3.3
"""Width of a column of the usual two-column styles (ACM, IEEE, USENIX: 3.25 to 3.5)."""
PNG_DPI: Final = 300
_TEXT_PT: Final = 7
_PAPER: Final[Any] = {
    "font.size": _TEXT_PT,
    "axes.labelsize": _TEXT_PT,
    "axes.titlesize": _TEXT_PT,
    "xtick.labelsize": _TEXT_PT - 1,
    "ytick.labelsize": _TEXT_PT - 1,
    "legend.fontsize": _TEXT_PT - 1,
    "axes.linewidth": 0.6,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "lines.linewidth": 1.0,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "legend.frameon": False,
    "legend.handlelength": 1.4,
    "legend.columnspacing": 1.0,
}
_SVG: Final[Any] = {"svg.hashsalt": "kvcast", "svg.fonttype": "none"}


def paper() -> Any:
    """A context in which figures are made and drawn for a column."""
    return mpl.rc_context(_PAPER)


def column_figure(height_in: float) -> Figure:
    """As wide as a column. Make it, and all that is on it, inside `paper()`."""
    return Figure(figsize=(COLUMN_IN, height_in), layout="constrained")


def svg(figure: Figure) -> str:
    """The figure as an SVG element, the same text for the same content."""
    text = io.StringIO()
    with mpl.rc_context(_SVG):
        figure.savefig(text, format="svg", metadata={"Date": None})
    return text.getvalue()[text.getvalue().index("<svg") :]


def save(figure: Figure, stem: Path) -> tuple[str, list[Path]]:
    """Write STEM.svg and STEM.png. Returns the SVG element and the files. Raises OSError."""
    drawn = svg(figure)
    files = [stem.with_name(f"{stem.name}.{suffix}") for suffix in ("svg", "png")]
    files[0].write_text(drawn + "\n")
    figure.savefig(files[1], dpi=PNG_DPI, metadata={"Software": None})
    return drawn, files
