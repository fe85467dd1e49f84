"""The orders that compete to decide a pool: what each would keep, as one number per chunk.

A score stays valid from one fetch of the chunk to its next (all of them shrink by one factor over time), so nothing has
to be recomputed as time passes. Higher stays. Rates are carried back to time 0, as log2:

    lru          last fetch
    decay        log2(decayed fetches x worth) + t / H
    count        log2(all fetches x worth) + t / H
    rate         log2((k + fetches) / (k / hits/s of the class + H / ln 2) x worth) + t / H
    reuse        log2(hits/s of the class x worth) + t / H

with t the last fetch, `fetches` decayed with the half-life of the table, `worth` the seconds saved per byte. `rate` is
the mean of a Poisson rate whose prior is the chunk's class. A policy `filtered` lets into a full pool only what was
fetched before.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Sequence
from dataclasses import dataclass
from math import exp2, log2

import numpy as np
import numpy.typing as npt

from kvpolicy.value.reuse import LEVEL_LOWEST, LEVEL_STEPS, log2_rate

Floats = npt.NDArray[np.float64]
Levels = npt.NDArray[np.uint16]
Counts = npt.NDArray[np.uint16]


class Rule(enum.Enum):
    """What a policy looks at; see the table above."""

    LRU = "lru"
    DECAY = "decay"
    COUNT = "count"
    RATE = "rate"
    REUSE = "reuse"


_LRU, _DECAY, _COUNT, _RATE, _REUSE = Rule
"""Looking up a member of an enumeration costs as much as the rest of a score."""


@dataclass(frozen=True, slots=True)
class Policy:
    """One order of a pool's chunks."""

    name: str
    rule: Rule
    half_life_s: float = 300.0
    horizon: int = 0
    """Which of the learned horizons."""
    filtered: bool = False
    margin: float = 0.005
    """To take over, its recent hits must exceed the active policy's by this share: a change of order costs hits."""


POLICIES: tuple[Policy, ...] = (
    Policy("reuse-20s", Rule.REUSE, 20.0, horizon=0),
    Policy("rate-300s", Rule.RATE, 300.0, horizon=1),
    Policy("lru", Rule.LRU, margin=0.02),
    Policy("lru-second-touch", Rule.LRU, filtered=True),
    Policy("decay-300s", Rule.DECAY, 300.0),
    Policy("reuse-60s", Rule.REUSE, 60.0, horizon=1),
    Policy("count-1h", Rule.COUNT, 3600.0, filtered=True),
)
"""Few, and far apart: 300 s suits chat, 20 s bursts, an hour documents that are asked about all day; plain LRU learns
nothing and is for streams that teach nothing, so it must be well ahead. The first decides until the selector knows
better."""


class Scorer:
    """Scores of all policies. A chunk's `level` is what its class said when it was fetched (`reuse`)."""

    def __init__(self, policies: tuple[Policy, ...], rate_prior: float, half_life_s: float) -> None:
        """`half_life_s`: of the decayed fetches."""
        self.policies = policies
        self._plain = tuple((one.rule, one.half_life_s, one.horizon) for one in policies)
        self._prior = rate_prior
        self._memory_s = half_life_s / math.log(2)

    def mean_rate_per_s(self, level: int, weight: float) -> float:
        """Mean of a Poisson rate of which `weight` decayed fetches were seen, with the class as prior."""
        return (self._prior + weight) / (self._prior / exp2(log2_rate(level)) + self._memory_s)

    def one(self, policy: Policy, last_s: float, weight: float, touches: int, level: int, log_worth: float) -> float:
        """Score of one chunk."""
        rule = policy.rule
        if rule is _LRU:
            return last_s
        if rule is _REUSE:
            log_rate = log2_rate(level)
        elif rule is _COUNT:
            log_rate = log2(touches or 1)
        else:
            log_rate = log2(weight if rule is _DECAY else self.mean_rate_per_s(level, weight))
        return log_worth + last_s / policy.half_life_s + log_rate

    def every(self, last_s: float, weight: float, touches: int, levels: Sequence[int], log_worth: float) -> list[float]:
        """Scores of one chunk, by policy; `levels` by horizon. `one` for all of them, with what they share worked
        out once."""
        log_weight = log2(weight)
        log_rates = [log2_rate(level) for level in levels]
        scores = []
        for rule, half_life_s, horizon in self._plain:
            if rule is _LRU:
                scores.append(last_s)
                continue
            if rule is _REUSE:
                log_rate = log_rates[horizon]
            elif rule is _COUNT:
                log_rate = log2(touches or 1)
            else:
                log_rate = log_weight if rule is _DECAY else log2(self.mean_rate_per_s(levels[horizon], weight))
            scores.append(log_worth + last_s / half_life_s + log_rate)
        return scores

    def many(
        self, policy: Policy, last_s: Floats, weight: Floats, touches: Counts, level: Levels, log_worth: Floats
    ) -> Floats:
        """Scores of many chunks."""
        if policy.rule is _LRU:
            return last_s
        log_rates: Floats = level / LEVEL_STEPS - LEVEL_LOWEST
        if policy.rule is _DECAY:
            log_rates = np.log2(weight)
        elif policy.rule is _COUNT:
            log_rates = np.log2(np.maximum(touches, 1))
        elif policy.rule is _RATE:
            log_rates = np.log2((self._prior + weight) / (self._prior / np.exp2(log_rates) + self._memory_s))
        return log_worth + last_s / policy.half_life_s + log_rates
