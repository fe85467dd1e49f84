"""Counts the words of the documentation, section by section, and fails above the budget.

A word is what `wc -w` counts: letters between spaces, so a `|` of a table is one as well. Counted are all Markdown
files that git knows, but for `p4switch/` (a house of its own) and the changelog. `python tools/count_words.py`.
"""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]
BUDGET: Final = 60_000
LEFT_OUT: Final = ("p4switch/", "CHANGELOG.md")


def pages(root: Path) -> list[str]:
    """Names of the pages that count, relative to the root of a checkout."""
    listed = subprocess.run(["git", "ls-files", "*.md"], cwd=root, check=True, capture_output=True, text=True)
    return [name for name in listed.stdout.splitlines() if not name.startswith(LEFT_OUT) and (root / name).exists()]


def section(page: str) -> str:
    """Where a page belongs: a folder of docs/, or everything outside of it."""
    parts = page.split("/")
    if parts[0] != "docs":
        return "outside docs/"
    return "/".join(parts[:2]) if len(parts) > 2 else "docs"


def words_by_section(root: Path) -> Counter[str]:
    """Words of each section."""
    words: Counter[str] = Counter()
    for page in pages(root):
        words[section(page)] += len((root / page).read_text(encoding="utf-8").split())
    return words


def report(words: Mapping[str, int], budget: int) -> str:
    """A line for each section, the largest first, and the total."""
    lines = [f"{count:7,}  {name}" for name, count in sorted(words.items(), key=lambda item: -item[1])]
    return "\n".join([*lines, f"{sum(words.values()):7,}  in all; the budget is {budget:,}"])


def main() -> int:
    """Print the report; 1 above the budget."""
    words = words_by_section(ROOT)
    print(report(words, BUDGET))
    if sum(words.values()) <= BUDGET:
        return 0
    print("make words: the documentation is longer than its budget: shorten a page, or drop one", file=sys.stderr)
    return 1


if __name__ == "__main__":
    raise SystemExit(main())
