"""The report as one page of HTML that needs nothing else. Pure but for the plots it is given."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

from planner.report.tables import Grid

_STYLE = """
body { font: 15px/1.45 system-ui, sans-serif; max-width: 62rem; margin: 2rem auto; padding: 0 1rem; color: #222 }
h1 { font-size: 1.5rem } h2 { font-size: 1.1rem; margin-top: 2rem }
table { border-collapse: collapse; font-size: 0.85rem; margin: 0.5rem 0 }
th, td { padding: 0.2rem 0.7rem; text-align: right; border-bottom: 1px solid #ddd; vertical-align: top }
th:first-child, td:first-child { text-align: left }
.verdict { font-size: 1.15rem; font-weight: 600; border-left: 4px solid #c8553d; padding-left: 0.8rem }
.note { color: #666; font-size: 0.8rem } figure { margin: 1rem 0 } svg { max-width: 100%; height: auto }
li { margin: 0.3rem 0 }
"""


def page(
    title: str,
    verdict: str,
    said: Sequence[str],
    grids: Sequence[Grid],
    plots: Mapping[str, str],
    limits: Sequence[str],
) -> str:
    """`verdict`: the sentence that it opens with; `plots`: caption -> SVG element."""
    parts = [
        "<!DOCTYPE html>",
        f'<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>',
        f"<style>{_STYLE}</style></head><body>",
        f"<h1>{escape(title)}</h1>",
        f"<p class='verdict'>{escape(verdict)}</p>",
        _list("What it says", said),
        *map(_table, grids[:1]),
        *(
            f"<figure>{svg}<figcaption class='note'>{escape(caption)}</figcaption></figure>"
            for caption, svg in plots.items()
        ),
        *map(_table, grids[1:]),
        _list("What the model leaves out", limits),
        "</body></html>",
    ]
    return "\n".join(parts) + "\n"


def _list(title: str, lines: Sequence[str]) -> str:
    items = "".join(f"<li>{escape(line)}</li>" for line in lines if line)
    return f"<h2>{escape(title)}</h2><ul>{items}</ul>"


def _table(grid: Grid) -> str:
    head = "".join(f"<th>{escape(cell)}</th>" for cell in grid.head)
    rows = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in grid.rows)
    note = f"<p class='note'>{escape(grid.note)}</p>" if grid.note else ""
    return f"<h2>{escape(grid.title)}</h2><table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>{note}"
