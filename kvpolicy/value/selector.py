"""Which policy decides: the one whose shadow cache did best of late on a sample of the live stream.

The sample is one of keys (all fetches of a sampled chunk are seen), and halves whenever the shadows grow beyond their
bound, as SHARDS does with a fixed size (Waldspurger et al., FAST '15).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from kvpolicy.value.ages import ReuseAges
from kvpolicy.value.policies import LEAD_CHUNKS, MARGIN, Policy
from kvpolicy.value.shadows import EveryScore, ShadowCaches, ShownChunk
from kvpolicy.value.table import MIX_BITS

_CHECK_EVERY: Final = 64
"""Sampled chunks between two looks at who is ahead."""


class PolicySelector:
    """The policies' shadows, and who decides."""

    def __init__(
        self,
        policies: Sequence[Policy],
        capacity_bytes: float,
        ages: ReuseAges,
        every: EveryScore,
        shadow_chunks_max: int,
        half_touches: int,
    ) -> None:
        self._policies = tuple(policies)
        self._shadows = ShadowCaches(policies, capacity_bytes, ages, every)
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

    @property
    def turn(self) -> float:
        """See `ShadowCaches`."""
        return self._shadows.turn

    def fetched(self, chunks: Sequence[int], shown: Sequence[ShownChunk], now_s: float) -> bool:
        """Sampled chunks of one fetch, in its order. True if another policy decides from now on."""
        unit, count = self._unit, len(chunks)
        self._shadows.fetched(chunks, shown, unit, now_s)
        self._total += unit * sum([one.saved for one in shown])
        self._seen += unit * count
        self._unit = unit / self._fade**count
        self._until_check -= count
        if self._until_check > 0:
            return False
        self._until_check = _CHECK_EVERY
        return self._check()

    def finished(self, chunk: int) -> None:
        """The chunk goes first in every shadow."""
        self._shadows.finished(chunk)

    def ages_changed(self) -> None:
        """Ages say something else than before."""
        self._shadows.ages_changed()

    def shares(self) -> dict[str, float]:
        """Recent share of what was fetched that each policy would have had, by name."""
        total = self._total or 1.0
        return {
            policy.name: shadow.hits / total for policy, shadow in zip(self._policies, self._shadows.each, strict=True)
        }

    def _check(self) -> bool:
        shadows = self._shadows.each
        if max(map(len, shadows)) > self._chunks_max:
            self._shift += 1
            self._shadows.shrink(1 << (MIX_BITS - self._shift))
        if self._unit > 1e100:
            for shadow in shadows:
                shadow.hits /= self._unit
            self._total /= self._unit
            self._seen /= self._unit
            self._unit = 1.0
        best = max(range(len(shadows)), key=lambda at: shadows[at].hits)
        chance = LEAD_CHUNKS * self._unit * self._total / self._seen
        if shadows[best].hits > shadows[self.active].hits * (1 + MARGIN) + chance:
            self.active = best
            return True
        return False
