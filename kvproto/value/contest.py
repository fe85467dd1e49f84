"""Shadow caches: each candidate's order run on a sample of the live stream, so that the best recent one decides.

A shadow holds keys and sizes only. The sample is one of keys (all fetches of a sampled chunk are seen), and halves
whenever the shadows grow beyond their bound, as SHARDS does with a fixed size (Waldspurger et al., FAST '15). Prefixes
need no care here: an ancestor is fetched whenever its descendants are, so its score is hardly ever below theirs.

Owns shadows and scores; which candidate is what is `candidates`' business.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence

from kvproto.value.candidates import Candidate

_SAMPLE_BITS = 32
FINISHED_SCORE = -1e18
"""Below any score: the session has ended."""


class ShadowCache:
    """One candidate's pool of sampled chunks."""

    __slots__ = ("_filtered", "_heap", "_scores", "_sizes", "capacity_bytes", "hits", "used_bytes")

    def __init__(self, capacity_bytes: float, filtered: bool) -> None:
        self.capacity_bytes = capacity_bytes
        self.used_bytes = 0.0
        self.hits = 0.0
        """Seconds saved, or bytes where nobody knows seconds, by what it had; recent ones count more."""
        self._filtered = filtered
        self._scores: dict[int, float] = {}
        self._sizes: dict[int, float] = {}
        self._heap: list[tuple[float, int]] = []
        """Lower bounds of scores: an entry is put right when it comes to the top."""

    def __len__(self) -> int:
        return len(self._scores)

    def fetched(self, chunk: int, score: float, size_bytes: float, saved: float, again: bool) -> None:
        """A sampled chunk was fetched; `saved`: what a hit is worth; `again`: fetched before.

        All in one piece: small pools call this six times for each chunk of each fetch.
        """
        scores, heap = self._scores, self._heap
        before = scores.get(chunk)
        if before is not None:
            self.hits += saved
            scores[chunk] = score
            if score < before:
                heapq.heappush(heap, (score, chunk))
            return
        used_bytes = self.used_bytes + size_bytes
        gone = False
        while used_bytes > self.capacity_bytes:
            if (self._filtered and not again) or size_bytes > self.capacity_bytes:
                return
            told, lowest = self._lowest()
            if told >= score:
                self.used_bytes = used_bytes - size_bytes
                return
            # Its entry stays at the top of the heap, for the newcomer's to take its place.
            del scores[lowest]
            used_bytes -= self._sizes.pop(lowest)
            gone = True
        self.used_bytes = used_bytes
        scores[chunk] = score
        self._sizes[chunk] = size_bytes
        if gone:
            heapq.heapreplace(heap, (score, chunk))
        else:
            heapq.heappush(heap, (score, chunk))

    def finished(self, chunk: int) -> None:
        """The chunk goes first."""
        if chunk in self._scores:
            self._scores[chunk] = FINISHED_SCORE
            heapq.heappush(self._heap, (FINISHED_SCORE, chunk))

    def shrink(self, odd: int) -> None:
        """Keep only chunks outside the half of the sample that `odd` names; capacity follows."""
        self._scores = {chunk: score for chunk, score in self._scores.items() if not chunk & odd}
        self._sizes = {chunk: self._sizes[chunk] for chunk in self._scores}
        self._heap = [(score, chunk) for chunk, score in self._scores.items()]
        heapq.heapify(self._heap)
        self.used_bytes = sum(self._sizes.values())
        self.capacity_bytes /= 2
        while self.used_bytes > self.capacity_bytes:
            lowest = self._lowest()[1]
            heapq.heappop(self._heap)
            del self._scores[lowest]
            self.used_bytes -= self._sizes.pop(lowest)

    def _lowest(self) -> tuple[float, int]:
        heap, scores = self._heap, self._scores
        while True:
            told, chunk = heap[0]
            score = scores.get(chunk)
            if score is None:
                heapq.heappop(heap)
            elif score > told:
                heapq.heapreplace(heap, (score, chunk))
            else:
                return heap[0]


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
        return ((1 << self._shift) - 1) << _SAMPLE_BITS

    def fetched(self, chunk: int, scores: Sequence[float], size_bytes: float, saved: float, again: bool) -> bool:
        """A sampled chunk was fetched; True if another candidate decides from now on."""
        saved *= self._unit
        self._total += saved
        for shadow, score in zip(self._shadows, scores, strict=True):
            shadow.fetched(chunk, score, size_bytes, saved, again)
        self._unit /= self._fade
        self._until_check -= 1
        if self._until_check > 0:
            return False
        self._until_check = 64
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
                shadow.shrink(1 << (_SAMPLE_BITS + self._shift - 1))
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
