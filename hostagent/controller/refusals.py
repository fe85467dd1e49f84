"""What a controller says and this agent does not take: each record by itself, the rest of its message counts. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Final, TypeVar

from kvproto.records import RecordError

TOLD_AGAIN_S: Final = 60.0
"""The log has one line of a kind in this time."""
TEXT_MAX: Final = 200

R = TypeVar("R")
V = TypeVar("V")


class Refusals:
    """Owns how many records of each kind were refused, and what the log is to say of them."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        """Of what this agent did not take, by what it is. To be read."""
        self._reasons: dict[str, str] = {}
        """The first of each kind that the log has not told of."""
        self._told_s: dict[str, float] = {}

    def add(self, what: str, reason: str) -> None:
        """A record is refused; `what` it is, in a word."""
        self.counts[what] += 1
        self._reasons.setdefault(what, reason[:TEXT_MAX])

    def taken(self, what: str, records: Iterable[R], take: Callable[[R], V]) -> tuple[V, ...]:
        """What `take` makes of records; those that it raises RecordError for are refused."""
        made: list[V] = []
        for record in records:
            try:
                made.append(take(record))
            except RecordError as error:
                self.add(what, str(error))
        return tuple(made)

    def news(self, now_s: float) -> list[tuple[str, str]]:
        """(what was refused, why), for the log: of each kind once in a while."""
        news: list[tuple[str, str]] = []
        for what, reason in self._reasons.items():
            if now_s - self._told_s.get(what, -TOLD_AGAIN_S) >= TOLD_AGAIN_S:
                self._told_s[what] = now_s
                news.append((what, reason))
        self._reasons.clear()
        return news
