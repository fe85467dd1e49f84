"""What a check finds. Checks read, they change nothing."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


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
