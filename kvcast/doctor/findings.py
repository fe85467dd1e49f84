"""What a check finds, and how that looks: a line for what was checked, remedies below it. Checks read, they change
nothing. Words are never broken: people copy them.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from rich.text import Text


class Level(StrEnum):
    """How much a finding matters; the values are shown."""

    OK = "ok"
    NOTE = "note"
    """Only something optional wants it."""
    SLOW = "slow"
    """It works, below what it could do."""
    MISSING = "missing"
    """It does not work without."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the table. `remedy` is empty exactly when the level is OK."""

    check: str
    found: str
    wanted: str
    level: Level = Level.OK
    remedy: str = ""

    def __post_init__(self) -> None:
        if (self.level is Level.OK) != (not self.remedy):
            raise ValueError(f"{self.check}: {self.level} with remedy {self.remedy!r}")


def has(
    check: str, good: bool, level: Level, remedy: str, words: tuple[str, str] = ("yes", "no"), why: str = ""
) -> Finding:
    """A finding about what is there or not; `words` for both; `why` it is wanted."""
    return judged(check, words[not good], words[0] + why, good, level, remedy)


def judged(check: str, found: str, wanted: str, good: bool, level: Level, remedy: str) -> Finding:
    """A finding that is OK when `good`, else of `level` with its remedy."""
    return Finding(check, found, wanted) if good else Finding(check, found, wanted, level, remedy)


_TEXT_MIN: Final = 40
"""Columns that what was found needs beside the rest; with fewer it begins on a line of its own."""
_INDENT: Final = 2


@dataclass(frozen=True, slots=True)
class Row:
    """One finding, as it is shown."""

    level: str
    style: str
    place: tuple[str, ...]
    """What was checked, and where."""
    found: str
    remedy: str


def laid_out(rows: Sequence[Row], width: int) -> Iterator[Text]:
    """The lines."""
    level_width = max((len(row.level) for row in rows), default=0)
    places = zip(*(row.place for row in rows), strict=True)
    widths = [max(map(len, column)) for column in places]
    indent = level_width + 1 + sum(one + 1 for one in widths)
    for row in rows:
        place = " ".join(word.ljust(one) for word, one in zip(row.place, widths, strict=True))
        head = Text.assemble((row.level.ljust(level_width), row.style), " ", place, no_wrap=True)
        if width - indent >= _TEXT_MIN:
            first, *more = _wrapped(row.found, width - indent) or [""]
            yield Text.assemble(head, " ", first, no_wrap=True)
            yield from (Text(" " * indent + line, no_wrap=True) for line in more)
        else:
            yield head
            yield from (Text(" " * _INDENT + line, no_wrap=True) for line in _wrapped(row.found, width - _INDENT))
        for number, line in enumerate(_wrapped(row.remedy, width - _INDENT - 3)):
            yield Text.assemble(" " * _INDENT, ("   " if number else "-> ", "dim"), line, no_wrap=True)


def _wrapped(text: str, width: int) -> list[str]:
    return textwrap.wrap(text, max(1, width), break_long_words=False, break_on_hyphens=False)
