"""What leaves of a shadow score by age, in rows of arrays: a pass works out only those whose score has changed. Pure.

The index of a class holds for a bin of age (`ages`), so a score is written in a form that stays the same within one:

    base + index(class, age) + recency x last fetch

which is the score of that moment plus what all leaves lose alike as time passes. Owns the rows; who is a leaf is said
by others, who may say it late: `take` and `drop` need be called before a pass only.
"""

from __future__ import annotations

import math
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from kvpolicy.value.ages import RECENCY, Floats, Numbers, ReuseAges

_ROWS_FIRST: Final = 64
_COLUMNS: Final[dict[str, str]] = {
    "chunk": "i8",
    "group": "u2",
    "base": "f8",
    "last_s": "f8",
    "score": "f8",
    "until_s": "f8",
}
"""`until_s`: age at which the score changes next."""


class AgingScores:
    """Scores of chunks that get older, by the number of the chunk."""

    _chunk: npt.NDArray[np.int64]
    _group: npt.NDArray[np.uint16]
    _base: Floats
    _last_s: Floats
    _score: Floats
    _until_s: Floats
    _chunk_at: Any
    _group_at: Any
    _base_at: Any
    _last_s_at: Any
    _score_at: Any
    _until_s_at: Any

    def __init__(self, ages: ReuseAges) -> None:
        self._ages = ages
        self._rows: dict[int, int] = {}
        self._free: list[int] = []
        self._end = 0
        """All rows in use lie below it."""
        self._grow(_ROWS_FIRST)

    def __len__(self) -> int:
        return len(self._rows)

    def one(self, base: float, group: int, last_s: float, now_s: float) -> float:
        """Score of a chunk of this class, fetched last at `last_s`, whatever is in the rows."""
        return base + (self._ages.log_index(group, now_s - last_s) + RECENCY * last_s)

    def put(self, chunk: int, base: float, group: int, last_s: float) -> None:
        """There is this chunk, or something else is known of it now."""
        row = self._rows.get(chunk)
        if row is None:
            row = self._free.pop() if self._free else self._new_row()
            self._rows[chunk] = row
            self._chunk_at[row] = chunk
        self._base_at[row], self._group_at[row], self._last_s_at[row] = base, group, last_s
        self._score_at[row] = self._until_s_at[row] = -math.inf

    def drop(self, chunk: int) -> None:
        """The chunk is gone, if it was here."""
        row = self._rows.pop(chunk, None)
        if row is not None:
            self._score_at[row] = self._until_s_at[row] = math.inf
            self._free.append(row)

    def clear(self) -> None:
        """All are gone."""
        self._rows.clear()
        self._free.clear()
        self._end = 0

    def ages_changed(self) -> None:
        """The index says something else than before."""
        self._until_s[: self._end] = np.where(self._score[: self._end] < math.inf, -math.inf, math.inf)

    def grow_older(self, now_s: float) -> tuple[list[int], list[float]]:
        """It is `now_s`. Returns the chunks that were put, or score something else than before, and their scores."""
        end = self._end
        ages_s = now_s - self._last_s[:end]
        due = np.flatnonzero(ages_s >= self._until_s[:end])
        index, self._until_s[due] = self._ages.log_indices(self._group[due], ages_s[due])
        scores = self._base[due] + (index + RECENCY * self._last_s[due])
        self._score[due] = scores
        return self._chunk[due].tolist(), scores.tolist()

    def all(self) -> tuple[Floats, Numbers]:
        """Scores as of the last `grow_older`, and chunks."""
        scores, chunks = self._score[: self._end], self._chunk[: self._end]
        if not self._free:
            return scores, chunks
        here = scores < math.inf
        return scores[here], chunks[here]

    def _new_row(self) -> int:
        if self._end == len(self._chunk):
            self._grow(2 * self._end)
        self._end += 1
        return self._end - 1

    def _grow(self, rows: int) -> None:
        for name, kind in _COLUMNS.items():
            column = np.zeros(rows, kind)
            if self._end:
                column[: self._end] = getattr(self, f"_{name}")
            setattr(self, f"_{name}", column)
            setattr(self, f"_{name}_at", column.data)
