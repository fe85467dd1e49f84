"""Shadow caches: each policy's order run on a sample of the live stream, so that the best recent one decides.

A shadow holds keys and sizes only. The sample is one of keys (all fetches of a sampled chunk are seen), and halves
whenever the shadows grow beyond their bound, as SHARDS does with a fixed size (Waldspurger et al., FAST '15). Prefixes
need no care here: an ancestor is fetched whenever its descendants are, so its score is hardly ever below theirs.

Owns shadows and scores; `policies` defines the policies.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from kvpolicy.value.ages import FINISHED_SCORE, NEVER, ReuseAges
from kvpolicy.value.lowest import LowestFirst
from kvpolicy.value.policies import LEAD_CHUNKS, MARGIN, Policy, Rule
from kvpolicy.value.table import MIX_BITS

_CHECK_EVERY: Final = 64
"""Sampled chunks between two looks at who is ahead."""
_PLACES_FIRST: Final = 64
_QUEUE_MIN: Final = 8
_QUEUE_SHARE: Final = 8


@dataclass(frozen=True, slots=True)
class Sampled:
    """Sampled chunks of one fetch, in its order."""

    chunks: Sequence[int]
    scores: Sequence[Sequence[float]]
    """By chunk and policy."""
    sizes: Sequence[float]
    saved: Sequence[float]
    """What a hit is worth."""
    again: Sequence[bool]
    """Fetched before."""
    aged: Sequence[tuple[int, float]]
    """Class and log2 of the worth of a byte."""
    now_s: float


class ShadowCache:
    """One policy's pool of sampled chunks.

    Scores stand in an array; `LowestFirst` says who goes next. Scores that depend on age are worked out now and then.
    """

    __slots__ = (
        "_ages", "_asks", "_chunks", "_facts", "_facts_at", "_filtered", "_order", "_places", "_scores", "_scores_at",
        "_sizes", "_vacant", "capacity_bytes", "hits", "used_bytes",
    )  # fmt: skip

    def __init__(self, capacity_bytes: float, filtered: bool, ages: ReuseAges | None = None) -> None:
        """`ages`: what scores come from that depend on age; `grow_older` and `note` go with each fetch then."""
        self._ages = ages
        self._asks = 0
        """Questions for the lowest that the last scores by age will do for."""
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
        order = self._order
        capacity_bytes, used_bytes, hits = self.capacity_bytes, self.used_bytes, self.hits
        refused = -math.inf
        """What scores no more than this would be refused again, whatever its size."""
        for chunk, score, size_bytes, worth, known in zip(chunks, scores, sizes, saved, again, strict=True):
            place = places.get(chunk)
            if place is not None:
                hits += worth
                scores_at[place] = score
                if score < order.border:
                    order.changed(score, chunk, place)
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
                    if score < order.border:
                        order.changed(score, chunk, place)
                    continue
            self.used_bytes = used_bytes
            if self._make_room(score, size_bytes):
                self._put(chunk, score, size_bytes)
                scores_at = self._scores_at
            used_bytes = self.used_bytes
        self.used_bytes, self.hits = used_bytes, hits

    def grow_older(self, now_s: float) -> None:
        """It is `now_s`, and the next fetch is still to be told of."""
        if self._ages is not None and self._asks <= 0:
            self._asks = max(_QUEUE_MIN, len(self._places) // _QUEUE_SHARE)
            places = np.array(list(self._places.values()), np.int64)
            groups, lasts_s, log_worths = self._facts[:, places]
            self._scores[places] = log_worths + self._ages.scores(groups.astype(np.int64), now_s - lasts_s)
            self._order.forget()

    def note(self, seen: Sampled) -> None:
        """Of the chunks of a fetch that was told of, what `grow_older` needs: classes, worths, and when this was."""
        now_s, places, facts_at = seen.now_s, self._places, self._facts_at
        for chunk, (group, log_worth) in zip(seen.chunks, seen.aged, strict=True):
            place = places.get(chunk)
            if place is not None:
                facts_at[0, place], facts_at[1, place], facts_at[2, place] = group, now_s, log_worth

    def finished(self, chunk: int) -> None:
        """The chunk goes first."""
        place = self._places.get(chunk)
        if place is not None:
            self._scores_at[place] = FINISHED_SCORE
            self._facts_at[0, place] = NEVER
            self._order.changed(FINISHED_SCORE, chunk, place)

    def shrink(self, odd: int) -> None:
        """Keep only chunks outside the half of the sample that `odd` names; capacity follows."""
        before, scores_at, sizes, facts = self._places, self._scores_at, self._sizes, self._facts
        self._clear()
        self.used_bytes = 0.0
        for chunk, place in before.items():
            if not chunk & odd:
                self._put(chunk, scores_at[place], sizes[place])
                self._facts[:, self._places[chunk]] = facts[:, place]
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
        self._keep_facts(np.zeros((3, _PLACES_FIRST)))
        self._order = LowestFirst(self._has, _QUEUE_MIN, _QUEUE_SHARE)

    def _keep_facts(self, facts: npt.NDArray[np.float64]) -> None:
        """Class, last fetch and log2 of the worth, by place."""
        self._facts = facts
        self._facts_at: Any = facts.data

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
                self._keep_facts(np.concatenate([self._facts, np.zeros((3, place))], axis=1))
        self._places[chunk] = place
        self._scores_at[place] = score
        self.used_bytes += size_bytes
        self._order.changed(score, chunk, place)

    def _drop(self, chunk: int, place: int) -> None:
        del self._places[chunk]
        self._scores_at[place] = math.inf
        self._vacant.append(place)
        self.used_bytes -= self._sizes[place]

    def _has(self, score: float, place: int) -> bool:
        return self._scores_at[place] == score  # type: ignore[no-any-return]  # a memoryview of floats

    def _lowest(self) -> tuple[float, int, int]:
        """Score, chunk and place of what goes next; there must be one.

        The chunk is who has the place now: an entry that outlived its chunk is true again if the next one there scores
        the same, as all finished ones do.
        """
        self._asks -= 1
        while (entry := self._order.first()) is None:
            scores = self._scores[: len(self._chunks)]
            places = np.flatnonzero(scores < math.inf)
            self._order.fill(scores[places], np.array(self._chunks, np.int64)[places], places)
        score, _, place = entry
        return score, self._chunks[place], place


class PolicySelector:
    """The policies' shadows, and who decides."""

    def __init__(
        self,
        policies: Sequence[Policy],
        capacity_bytes: float,
        ages: ReuseAges,
        shadow_chunks_max: int,
        half_touches: int,
    ) -> None:
        self._policies = tuple(policies)
        self._shadows = tuple(
            ShadowCache(capacity_bytes, policy.filtered, ages if policy.rule is Rule.AGE else None)
            for policy in policies
        )
        self._aged = tuple(
            shadow for shadow, policy in zip(self._shadows, policies, strict=True) if policy.rule is Rule.AGE
        )
        self._chunks_max = shadow_chunks_max
        self._fade = 0.5 ** (1 / half_touches)
        self._unit = 1.0
        """What a hit now counts for, against one at the start: grows instead of all others fading."""
        self._shift = 0
        self._until_check = 0
        self._total = 0.0
        self._seen = 0.0
        """Chunks, and what they were worth: recent ones count more, as hits do."""
        self.active = 0
        """Index of the policy that decides."""

    @property
    def sampled_share(self) -> float:
        """Share of keys that the shadows see."""
        return float(0.5**self._shift)

    @property
    def sample_mask(self) -> int:
        """A chunk is sampled if its mixed key has none of these bits."""
        return ((1 << self._shift) - 1) << (MIX_BITS - self._shift)

    def fetched(self, seen: Sampled) -> bool:
        """True if another policy decides from now on."""
        for shadow in self._aged:
            shadow.grow_older(seen.now_s)
        unit, fade, total, many = self._unit, self._fade, self._total, self._seen
        weighted = []
        for seconds in seen.saved:
            seconds *= unit
            total += seconds
            many += unit
            weighted.append(seconds)
            unit /= fade
        self._unit, self._total, self._seen = unit, total, many
        for shadow, own in zip(self._shadows, zip(*seen.scores, strict=True), strict=True):
            shadow.fetched(seen.chunks, own, seen.sizes, weighted, seen.again)
        for shadow in self._aged:
            shadow.note(seen)
        self._until_check -= len(seen.chunks)
        if self._until_check > 0:
            return False
        self._until_check = _CHECK_EVERY
        return self._check()

    def finished(self, chunk: int) -> None:
        """The chunk goes first in every shadow."""
        for shadow in self._shadows:
            shadow.finished(chunk)

    def shares(self) -> dict[str, float]:
        """Recent share of what was fetched that each policy would have had, by name."""
        total = self._total or 1.0
        return {policy.name: shadow.hits / total for policy, shadow in zip(self._policies, self._shadows, strict=True)}

    def _check(self) -> bool:
        if max(len(shadow) for shadow in self._shadows) > self._chunks_max:
            self._shift += 1
            for shadow in self._shadows:
                shadow.shrink(1 << (MIX_BITS - self._shift))
        if self._unit > 1e100:
            for shadow in self._shadows:
                shadow.hits /= self._unit
            self._total /= self._unit
            self._seen /= self._unit
            self._unit = 1.0
        best = max(range(len(self._shadows)), key=lambda at: self._shadows[at].hits)
        chance = LEAD_CHUNKS * self._unit * self._total / self._seen
        if self._shadows[best].hits > self._shadows[self.active].hits * (1 + MARGIN) + chance:
            self.active = best
            return True
        return False
