"""How a write is taken back: ROLLBACK_ON_ERROR, and updates that fail half-way."""

from __future__ import annotations

from collections.abc import Callable


class Journal:
    """Inverse operations of what has been done, to be run backwards. Each must succeed."""

    def __init__(self, *, keeps_counters: bool = False) -> None:
        self.keeps_counters = keeps_counters
        """Whether the counters of deleted entries must come back, too (they cost a read each)."""
        self._inverses: list[Callable[[], object]] = []

    def record(self, inverse: Callable[[], object]) -> None:
        """Note how to undo the last operation."""
        self._inverses.append(inverse)

    def mark(self) -> int:
        """A point to roll back to."""
        return len(self._inverses)

    def roll_back(self, mark: int = 0) -> None:
        """Undo everything after `mark`, last first."""
        while len(self._inverses) > mark:
            self._inverses.pop()()
