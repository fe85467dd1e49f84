"""Shadow caches: each candidate's order run on a sample of the live stream, so that the best recent one decides.

A shadow holds keys and sizes only. The sample is one of keys (all fetches of a sampled chunk are seen), and halves
whenever the shadows grow beyond their bound, as SHARDS does with a fixed size (Waldspurger et al., FAST '15). Prefixes
need no care here: an ancestor is fetched whenever its descendants are, so its score is hardly ever below theirs.

Owns shadows and scores; which candidate is what is `candidates`' business.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from kvproto.value.candidates import Candidate
from kvproto.value.table import MIX_BITS

FINISHED_SCORE = -1e18
"""Below any score: the session has ended."""
_CHECK_EVERY: Final = 64
"""Sampled chunks between two looks at who is ahead."""
_PLACES_FIRST: Final = 64
_QUEUE_MIN: Final = 8
_QUEUE_SHARE: Final = 8
"""A pass queues one in so many chunks."""
_SIDE_SLACK: Final = 4
"""Entries of the heap, outdated ones too, for each chunk; then the next pass begins early."""


class ShadowCache:
    """One candidate's pool of sampled chunks.

    Scores stand in an array. Who goes next is worked out for an eighth of the chunks at once, as `EvictionOrder` does:
    a pass queues those below a border, and a small heap holds whatever has since come below it. Both may hold outdated
    entries; an entry is true if the chunk has that score still.
    """

    __slots__ = (
        "_border", "_chunks", "_filtered", "_places", "_queue", "_scores", "_scores_at", "_side", "_side_max", "_sizes",
        "_vacant", "capacity_bytes", "hits", "used_bytes",
    )  # fmt: skip

    def __init__(self, capacity_bytes: float, filtered: bool) -> None:
        self.capacity_bytes = capacity_bytes
        self.used_bytes = 0.0
        self.hits = 0.0
        """Seconds saved, or bytes where nobody knows seconds, by what it had; recent ones count more."""
        self._filtered = filtered
        self._clear()

    def __len__(self) -> int:
        return len(self._places)

    def fetched(
        self,
        chunks: Sequence[int],
        scores: Sequence[float],
        sizes: Sequence[float],
        saved: Sequence[float],
        again: Sequence[bool],
    ) -> None:
        """Sampled chunks were fetched, one after the other; `saved`: what a hit is worth; `again`: fetched before.

        One loop, because small pools run it six times for each chunk of each fetch.
        """
        places, occupants, sizes_at, scores_at = self._places, self._chunks, self._sizes, self._scores_at
        capacity_bytes, used_bytes, hits = self.capacity_bytes, self.used_bytes, self.hits
        refused = -math.inf
        """What scores no more than this would be refused again, whatever its size."""
        for chunk, score, size_bytes, worth, known in zip(chunks, scores, sizes, saved, again, strict=True):
            place = places.get(chunk)
            if place is not None:
                hits += worth
                scores_at[place] = score
                if score < self._border:
                    self._sank(score, chunk, place)
                    refused = -math.inf
                continue
            if used_bytes + size_bytes > capacity_bytes:
                if score <= refused or (self._filtered and not known):
                    continue
                told, lowest, place = self._lowest() if size_bytes <= capacity_bytes else (math.inf, 0, 0)
                if told >= score:
                    refused = score
                    continue
                left_bytes = used_bytes - sizes_at[place]
                if left_bytes + size_bytes <= capacity_bytes:  # as a rule one goes, and its place is taken
                    used_bytes = left_bytes + size_bytes
                    del places[lowest]
                    places[chunk] = place
                    scores_at[place], occupants[place], sizes_at[place] = score, chunk, size_bytes
                    if score < self._border:
                        self._sank(score, chunk, place)
                    continue
            self.used_bytes = used_bytes
            if self._make_room(score, size_bytes):
                self._put(chunk, score, size_bytes)
                scores_at = self._scores_at
            used_bytes = self.used_bytes
        self.used_bytes, self.hits = used_bytes, hits

    def finished(self, chunk: int) -> None:
        """The chunk goes first."""
        place = self._places.get(chunk)
        if place is not None:
            self._scores_at[place] = FINISHED_SCORE
            self._sank(FINISHED_SCORE, chunk, place)

    def shrink(self, odd: int) -> None:
        """Keep only chunks outside the half of the sample that `odd` names; capacity follows."""
        kept = [(chunk, self._scores_at[place], self._sizes[place]) for chunk, place in self._places.items()]
        self._clear()
        self.used_bytes = 0.0
        for chunk, score, size_bytes in kept:
            if not chunk & odd:
                self._put(chunk, score, size_bytes)
        self.capacity_bytes /= 2
        while self.used_bytes > self.capacity_bytes:
            self._drop(*self._lowest()[1:])

    def _clear(self) -> None:
        self._places: dict[int, int] = {}
        """Of each chunk its place in the following."""
        self._scores = np.full(_PLACES_FIRST, math.inf)
        self._scores_at: Any = self._scores.data
        self._chunks: list[int] = []
        self._sizes: list[float] = []
        self._vacant: list[int] = []
        self._queue: list[tuple[float, int, int]] = []
        """Score, chunk, place; the lowest last."""
        self._side: list[tuple[float, int, int]] = []
        self._border = -math.inf
        """Chunks that score less are in the queue or in the heap."""
        self._side_max = 0

    def _make_room(self, score: float, size_bytes: float) -> bool:
        """Drop what scores less than a newcomer until that fits; False if it does not."""
        while self.used_bytes + size_bytes > self.capacity_bytes:
            told, chunk, place = self._lowest()
            if told >= score:
                return False
            self._drop(chunk, place)
        return True

    def _put(self, chunk: int, score: float, size_bytes: float) -> None:
        if self._vacant:
            place = self._vacant.pop()
            self._chunks[place], self._sizes[place] = chunk, size_bytes
        else:
            place = len(self._sizes)
            self._chunks.append(chunk)
            self._sizes.append(size_bytes)
            if place == len(self._scores):
                self._scores = np.concatenate([self._scores, np.full(place, math.inf)])
                self._scores_at = self._scores.data
        self._places[chunk] = place
        self._scores_at[place] = score
        self.used_bytes += size_bytes
        if score < self._border:
            self._sank(score, chunk, place)

    def _drop(self, chunk: int, place: int) -> None:
        del self._places[chunk]
        self._scores_at[place] = math.inf
        self._vacant.append(place)
        self.used_bytes -= self._sizes[place]

    def _sank(self, score: float, chunk: int, place: int) -> None:
        """A chunk scores less than the border."""
        if self._border == -math.inf:
            return
        heapq.heappush(self._side, (score, chunk, place))
        if len(self._side) > self._side_max:
            self._queue, self._side, self._border = [], [], -math.inf

    def _lowest(self) -> tuple[float, int, int]:
        """Score, chunk and place of what goes next; there must be one.

        The chunk is who has the place now: an entry that outlived its chunk is true again if the next one there scores
        the same, as all finished ones do.
        """
        scores_at, queue, side = self._scores_at, self._queue, self._side
        while True:
            while queue and scores_at[queue[-1][2]] != queue[-1][0]:
                queue.pop()
            while side and scores_at[side[0][2]] != side[0][0]:
                heapq.heappop(side)
            if queue and side:
                told, _, place = min(queue[-1], side[0])
            elif queue:
                told, _, place = queue[-1]
            elif side:
                told, _, place = side[0]
            else:
                self._work_out()
                queue, side = self._queue, self._side
                continue
            return told, self._chunks[place], place

    def _work_out(self) -> None:
        """Queue the lowest chunks anew."""
        count = max(_QUEUE_MIN, len(self._places) // _QUEUE_SHARE)
        scores = self._scores[: len(self._chunks)]
        self._border = math.inf
        if count < len(self._places):
            self._border = float(np.partition(scores, count)[count])
        below = np.flatnonzero(scores < self._border)
        if not len(below):  # too many score the same
            self._border = math.nextafter(self._border, math.inf)
            below = np.flatnonzero(scores < self._border)
        chunks, cheap = self._chunks, below.tolist()
        self._queue = sorted(zip(scores[below].tolist(), [chunks[place] for place in cheap], cheap, strict=True))
        self._queue.reverse()
        self._side = []
        self._side_max = _SIDE_SLACK * (len(self._places) + _PLACES_FIRST)


class Contest:
    """The candidates' shadows, and who decides."""

    def __init__(
        self,
        candidates: Sequence[Candidate],
        capacity_bytes: float,
        shadow_chunks_max: int,
        half_touches: int,
    ) -> None:
        self._candidates = tuple(candidates)
        self._shadows = tuple(ShadowCache(capacity_bytes, candidate.filtered) for candidate in candidates)
        self._chunks_max = shadow_chunks_max
        self._fade = 0.5 ** (1 / half_touches)
        self._unit = 1.0
        """What a hit now counts for, against one at the start: grows instead of all others fading."""
        self._shift = 0
        self._until_check = 0
        self._total = 0.0
        self.decider = 0
        """Index of the candidate that decides."""

    @property
    def sampled_share(self) -> float:
        """Share of keys that the shadows see."""
        return float(0.5**self._shift)

    @property
    def sample_mask(self) -> int:
        """A chunk is sampled if its mixed key has none of these bits."""
        return ((1 << self._shift) - 1) << (MIX_BITS - self._shift)

    def fetched(
        self,
        chunks: Sequence[int],
        scores: Sequence[Sequence[float]],
        sizes: Sequence[float],
        saved: Sequence[float],
        again: Sequence[bool],
    ) -> bool:
        """Sampled chunks of one fetch, in its order; `scores` by chunk and candidate. True if another candidate decides
        from now on."""
        unit, fade, total = self._unit, self._fade, self._total
        weighted = []
        for seconds in saved:
            seconds *= unit
            total += seconds
            weighted.append(seconds)
            unit /= fade
        self._unit, self._total = unit, total
        for shadow, own in zip(self._shadows, zip(*scores, strict=True), strict=True):
            shadow.fetched(chunks, own, sizes, weighted, again)
        self._until_check -= len(chunks)
        if self._until_check > 0:
            return False
        self._until_check = _CHECK_EVERY
        return self._check()

    def finished(self, chunk: int) -> None:
        """The chunk goes first in every shadow."""
        for shadow in self._shadows:
            shadow.finished(chunk)

    def shares(self) -> dict[str, float]:
        """Recent share of what was fetched that each candidate would have had, by name."""
        total = self._total or 1.0
        return {
            candidate.name: shadow.hits / total
            for candidate, shadow in zip(self._candidates, self._shadows, strict=True)
        }

    def _check(self) -> bool:
        if max(len(shadow) for shadow in self._shadows) > self._chunks_max:
            self._shift += 1
            for shadow in self._shadows:
                shadow.shrink(1 << (MIX_BITS - self._shift))
        if self._unit > 1e100:
            for shadow in self._shadows:
                shadow.hits /= self._unit
            self._total /= self._unit
            self._unit = 1.0
        to_beat = self._shadows[self.decider].hits
        leads = [
            shadow.hits - to_beat * (1 + candidate.margin)
            for shadow, candidate in zip(self._shadows, self._candidates, strict=True)
        ]
        best = max(range(len(leads)), key=leads.__getitem__)
        if leads[best] > 0.0:
            self.decider = best
            return True
        return False
