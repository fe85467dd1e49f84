"""The attacks of docs/explanation/security.md, and the tests that the page names for them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "explanation" / "security.md"
_TEST = re.compile(r"`((?:p4switch/)?tests/[\w/]+\.py::test_\w+)`")


@dataclass(frozen=True, slots=True)
class Row:
    """One line of a table that names tests: an attack, or a defect."""

    words: str
    tests: tuple[str, ...]


def rows(page: str) -> list[Row]:
    """Of all tables whose last column is `tests`."""
    found: list[Row] = []
    inside = False
    for line in page.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")] if line.startswith("|") else []
        if not cells or set(line) <= set("|-"):
            inside = inside and bool(cells)
        elif cells[-1] == "tests":
            inside = True
        elif inside:
            found.append(Row(" | ".join(cells[:-1]), tuple(_TEST.findall(cells[-1]))))
    return found


def named_tests() -> list[str]:
    """Each once, in the order of the page."""
    return list(dict.fromkeys(test for row in rows(PAGE.read_text()) for test in row.tests))
