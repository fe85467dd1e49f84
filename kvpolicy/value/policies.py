"""The orders that compete to decide a pool: what each would keep, as one number per chunk.

Higher stays. All scores but one stay valid from one fetch of the chunk to its next (they shrink by one factor over
time), so nothing has to be recomputed as time passes. Rates are carried back to time 0, as log2:

    lru          log2(worth) + turns until the last fetch
    count        log2(all fetches x worth) + t / H
    rate         log2((k + fetches) / (k / hits/s of the class + H / ln 2) x worth) + t / H
    age          log2(index of class and age x worth)
    turnover     log2(all fetches x worth) + turns until the last fetch

with t the last fetch, `fetches` decayed with the half-life of the table, `worth` the seconds saved per byte. `rate` is
the mean of a Poisson rate whose prior is the chunk's class. A *turn* is the time in which LRU misses as many bytes as
the pool has room for: a measure of time that suits small and large pools. Of chunks that are worth the same, `lru` is
plain LRU: of one turn, what was fetched longest ago goes first. The index of `age` (`ages`) changes as a
chunk gets older: whoever keeps that order works it out again now and then. A policy `filtered` lets into a full pool
only what was fetched before.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Sequence
from dataclasses import dataclass
from math import exp2, log2
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

from kvpolicy.value.reuse import LEVEL_LOWEST, LEVEL_STEPS

Floats = npt.NDArray[np.float64]
Levels = npt.NDArray[np.uint16]
Counts = npt.NDArray[np.uint16]


class Rule(enum.Enum):
    """What a policy looks at; see the table above."""

    LRU = "lru"
    COUNT = "count"
    RATE = "rate"
    AGE = "age"
    TURNOVER = "turnover"


_LRU, _COUNT, _RATE, _AGE, _TURNOVER = Rule
"""Looking up a member of an enumeration costs as much as the rest of a score."""


@dataclass(frozen=True, slots=True)
class Policy:
    """One order of a pool's chunks."""

    name: str
    rule: Rule
    half_life_s: float = 300.0
    filtered: bool = False


MARGIN: Final = 0.005
"""To take over, a policy's recent hits must exceed the active one's by this share: a change of order costs hits."""

LEAD_CHUNKS: Final = 16
"""And by so many average chunks: a few hits more are chance. Of leads of 16 to 64 and margins of 0.2 to 2 % these had
the best mean of 96 cases, with the fewest behind a published policy."""

POLICIES: tuple[Policy, ...] = (
    Policy("lru", Rule.LRU),  # decides first: it has nothing to learn; ages first cost short chats 20 % of their hits
    Policy("age", Rule.AGE),
    Policy("rate-300s", Rule.RATE, 300.0),
    Policy("lru-second-touch", Rule.LRU, filtered=True),
    Policy("count-1h", Rule.COUNT, 3600.0, filtered=True),
    Policy("turnover", Rule.TURNOVER),
)
"""Few, and far apart: LRU and ages suit bursts and groups, 300 s chat, an hour documents that are asked about all day,
turns what is popular for as long as it is popular. LRU learns nothing, so it decides until the selector knows better;
and it must be the first, because it is what turns are counted by."""


_TIE: Final = 1e-9
"""What a second adds to a score that does not count seconds: of equals, what was fetched longest ago goes first."""


Facts: TypeAlias = tuple[float, float, int, int, float, float]
"""What a chunk is scored by: its last fetch in s, decayed fetches, all fetches, the level of its class then (`reuse`),
log2 of its worth, and the turns of the pool until its last fetch."""


class Scorer:
    """Owns the scores that all policies give to chunks."""

    def __init__(self, policies: tuple[Policy, ...], rate_prior: float, half_life_s: float) -> None:
        """`half_life_s`: of the decayed fetches."""
        self.policies = policies
        self._prior = rate_prior
        self._memory_s = half_life_s / math.log(2)

    def mean_rate_per_s(self, level: int, weight: float) -> float:
        """Mean of a Poisson rate of which `weight` decayed fetches were seen, with the class as prior."""
        return (self._prior + weight) / (self._prior / exp2(level / LEVEL_STEPS - LEVEL_LOWEST) + self._memory_s)

    def one(self, policy: Policy, facts: Facts) -> float:
        """Score of one chunk. Of `age` only the part that stays as it is: the index comes on top."""
        return self.every(facts, (policy,))[0]

    def every(self, facts: Facts, policies: Sequence[Policy] = ()) -> list[float]:
        """`one` of all policies, or of these."""
        last_s, weight, touches, level, log_worth, turn = facts
        scores: list[float] = []
        for policy in policies or self.policies:
            rule = policy.rule
            if rule is _LRU:
                score = log_worth + turn + _TIE * last_s
            elif rule is _AGE:
                score = log_worth
            elif rule is _TURNOVER:
                score = log_worth + log2(touches or 1) + turn + _TIE * last_s
            elif rule is _COUNT:
                score = log_worth + last_s / policy.half_life_s + log2(touches or 1)
            else:
                score = log_worth + last_s / policy.half_life_s + log2(self.mean_rate_per_s(level, weight))
            scores.append(score)
        return scores

    def many(
        self,
        policy: Policy,
        last_s: Floats,
        weight: Floats,
        touches: Counts,
        level: Levels,
        log_worth: Floats,
        turn: Floats,
    ) -> Floats:
        """`one` of many chunks."""
        rule = policy.rule
        if rule is _LRU:
            return log_worth + turn + _TIE * last_s
        if rule is _AGE:
            return log_worth
        counts = np.maximum(touches, 1)
        if rule is _TURNOVER:
            return log_worth + np.log2(counts, dtype=np.float64) + turn + _TIE * last_s
        if rule is _COUNT:
            log_rates = np.log2(counts, dtype=np.float64)
        else:
            log_rates = level / LEVEL_STEPS - LEVEL_LOWEST
            log_rates = np.log2((self._prior + weight) / (self._prior / np.exp2(log_rates) + self._memory_s))
        return log_worth + last_s / policy.half_life_s + log_rates
