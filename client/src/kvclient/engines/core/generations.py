"""Which weights an engine computes with, as its workers tell it: those that it loaded, or others since. Pure.

Whatever may have changed the weights is a *question*, numbered from 1. Each worker answers it with the checksum of its
parameters, taken before it computes anything more. Until all have answered, and while the engine's own cache may hold
KV of other weights than those of now, nothing has a name: nothing is loaded and nothing is saved.
"""

from __future__ import annotations

import enum
import hashlib
from collections.abc import Hashable, Iterable


class Told(enum.Enum):
    """What an answer changed."""

    NOTHING = "nothing"
    NOTICED = "noticed"
    """A worker's weights changed, and nobody had asked: a question of its own follows."""
    UNCHANGED = "unchanged"
    """All have answered, and the weights are those of before."""
    CHANGED = "changed"
    """All have answered, and the weights are others."""


class Generations:
    """The weights of one engine over time."""

    def __init__(self, workers: Iterable[Hashable], *, has_cache: bool) -> None:
        """`has_cache`: the engine keeps KV of prompts itself, and computes on with it."""
        self._workers = tuple(workers)
        self._has_cache = has_cache
        self._loaded: dict[Hashable, str] = {}
        """By worker: the checksum of the weights that it loaded."""
        self._answers: dict[Hashable, tuple[int, str]] = {}
        """By worker: the last question that it answered, and its answer."""
        self._current = ""
        """Of all workers' answers together; empty until they have told what they loaded."""
        self._is_emptied = False
        """The engine has emptied its own cache since the last question but one was answered."""
        self._is_stale = False
        """The engine's own cache may hold KV of weights of before."""
        self._versions: dict[str, str] = {}
        """By the caller's own name of a version: the weights that it first named."""
        self.question = 0
        """The last one; 0: how the weights are at the start."""

    @property
    def is_settled(self) -> bool:
        """Whether all workers have answered the last question."""
        answered = (self._answers.get(worker, (-1, ""))[0] for worker in self._workers)
        return len(self._loaded) == len(self._workers) and all(number == self.question for number in answered)

    @property
    def is_stale(self) -> bool:
        """Whether the engine's own cache may hold KV of other weights. Emptying it and asking again ends that."""
        return self._is_stale

    def weights_may_have_changed(self, *, cache_emptied: bool) -> None:
        """A new question. `cache_emptied`: the engine's own cache holds nothing of before."""
        unanswered = all(number < self.question for number, _ in self._answers.values())
        self._is_emptied = cache_emptied or not self._has_cache or (self._is_emptied and unanswered)
        self.question += 1

    def worker_loaded(self, worker: Hashable, checksum: str) -> None:
        """What a worker loaded, before it computed anything. Raises KeyError for a worker that there is not."""
        if worker not in self._workers:
            raise KeyError(worker)
        self._loaded[worker] = checksum
        self._answers.setdefault(worker, (0, checksum))
        if self.is_settled:
            self._settle()

    def worker_told(self, worker: Hashable, question: int, checksum: str) -> Told:
        """A worker's answer, or the checksum of weights that it found changed. Raises KeyError for a worker that has
        not told what it loaded."""
        number, before = self._answers[worker]
        if question < self.question or (number == question and before == checksum):
            return Told.NOTHING
        self._answers[worker] = (question, checksum)
        if number == question:
            self.weights_may_have_changed(cache_emptied=False)
            return Told.NOTICED
        return self._settle() if self.is_settled else Told.NOTHING

    def _settle(self) -> Told:
        before = self._current or _together(self._loaded[worker] for worker in self._workers)
        self._current = _together(self._answers[worker][1] for worker in self._workers)
        changed = self._current != before
        self._is_stale = not self._is_emptied and (self._is_stale or changed)
        self._is_emptied = False
        return Told.CHANGED if changed else Told.UNCHANGED

    def name(self, version: str = "") -> str:
        """What tells the weights of now from those that were loaded; empty where they are those.

        `version`: the caller's own name for them, which engines of any layout share. One that has named other weights
        before names nothing, and neither does an empty one: then it is the checksum.
        """
        assert self._current, "the workers have not told their weights yet"
        if self._current == _together(self._loaded[worker] for worker in self._workers):
            return ""
        if version and self._versions.setdefault(version, self._current) == self._current:
            return f"version={version}"
        return f"checksum={self._current}"


def _together(checksums: Iterable[str]) -> str:
    return hashlib.blake2b("\n".join(checksums).encode(), digest_size=16, person=b"kvcast-weights").hexdigest()
