"""The orders that compete to decide a pool: what each would keep, as one number per chunk.

Higher stays. All scores but one stay valid from one fetch of the chunk to its next (they shrink by one factor over
time), so nothing has to be recomputed as time passes. Rates are carried back to time 0, as log2:

    lru          last fetch
    count        log2(all fetches x worth) + t / H
    rate         log2((k + fetches) / (k / hits/s of the class + H / ln 2) x worth) + t / H
    reuse        log2(hits/s of the class x worth) + t / H
    age          log2(index of class and age x worth)

with t the last fetch, `fetches` decayed with the half-life of the table, `worth` the seconds saved per byte. `rate` is
the mean of a Poisson rate whose prior is the chunk's class. The index of `age` (`ages`) changes as a chunk gets older:
whoever keeps that order works it out again now and then. A policy `filtered` lets into a full pool only what was
fetched before.
"""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass
from math import exp2, log2
from typing import Final

import numpy as np
import numpy.typing as npt

from kvpolicy.value.reuse import LEVEL_LOWEST, LEVEL_STEPS, log2_rate

Floats = npt.NDArray[np.float64]
Levels = npt.NDArray[np.uint16]
Counts = npt.NDArray[np.uint16]


class Rule(enum.Enum):
    """What a policy looks at; see the table above."""

    LRU = "lru"
    COUNT = "count"
    RATE = "rate"
    REUSE = "reuse"
    AGE = "age"


_LRU, _COUNT, _RATE, _REUSE, _AGE = Rule
"""Looking up a member of an enumeration costs as much as the rest of a score."""


@dataclass(frozen=True, slots=True)
class Policy:
    """One order of a pool's chunks."""

    name: str
    rule: Rule
    half_life_s: float = 300.0
    filtered: bool = False


MARGIN: Final = 0.002
"""To take over, a policy's recent hits must exceed the active one's by this share: a change of order costs hits."""

LEAD_CHUNKS: Final = 16
"""And by so many average chunks: a few hits more are chance. Four times as many cost bursts hits while a pool is
young (docs/research/policies.md)."""

POLICIES: tuple[Policy, ...] = (
    Policy("reuse-60s", Rule.REUSE, 60.0),
    Policy("age", Rule.AGE),
    Policy("lru", Rule.LRU),
    Policy("rate-300s", Rule.RATE, 300.0),
    Policy("lru-second-touch", Rule.LRU, filtered=True),
    Policy("count-1h", Rule.COUNT, 3600.0, filtered=True),
)
"""Few, and far apart: ages suit bursts and groups, 300 s chat, an hour documents that are asked about all day; plain
LRU learns nothing and is for streams that teach nothing. The first decides until the selector knows better."""


class Scorer:
    """Scores of all policies. A chunk's `level` is what its class said when it was fetched (`reuse`), its `log_index`
    what class and age say (`ages`)."""

    def __init__(self, policies: tuple[Policy, ...], rate_prior: float, half_life_s: float) -> None:
        """`half_life_s`: of the decayed fetches."""
        self.policies = policies
        self._plain = tuple((one.rule, one.half_life_s) for one in policies)
        self._prior = rate_prior
        self._memory_s = half_life_s / math.log(2)

    def mean_rate_per_s(self, level: int, weight: float) -> float:
        """Mean of a Poisson rate of which `weight` decayed fetches were seen, with the class as prior."""
        return (self._prior + weight) / (self._prior / exp2(log2_rate(level)) + self._memory_s)

    def one(self, policy: Policy, last_s: float, weight: float, touches: int, level: int, log_worth: float) -> float:
        """Score of one chunk by a policy whose scores do not age."""
        rule = policy.rule
        if rule is _LRU:
            return last_s
        if rule is _REUSE:
            log_rate = log2_rate(level)
        elif rule is _COUNT:
            log_rate = log2(touches or 1)
        else:
            log_rate = log2(self.mean_rate_per_s(level, weight))
        return log_worth + last_s / policy.half_life_s + log_rate

    def every(
        self, last_s: float, weight: float, touches: int, level: int, log_worth: float, log_index: float
    ) -> list[float]:
        """Scores of one chunk, by policy."""
        scores = []
        for rule, half_life_s in self._plain:
            if rule is _LRU:
                scores.append(last_s)
                continue
            if rule is _AGE:
                scores.append(log_worth + log_index)
                continue
            if rule is _REUSE:
                log_rate = log2_rate(level)
            elif rule is _COUNT:
                log_rate = log2(touches or 1)
            else:
                log_rate = log2(self.mean_rate_per_s(level, weight))
            scores.append(log_worth + last_s / half_life_s + log_rate)
        return scores

    def many(
        self, policy: Policy, last_s: Floats, weight: Floats, touches: Counts, level: Levels, log_worth: Floats
    ) -> Floats:
        """`one` of many chunks."""
        if policy.rule is _LRU:
            return last_s
        log_rates: Floats = level / LEVEL_STEPS - LEVEL_LOWEST
        if policy.rule is _COUNT:
            log_rates = np.log2(np.maximum(touches, 1))
        elif policy.rule is _RATE:
            log_rates = np.log2((self._prior + weight) / (self._prior / np.exp2(log_rates) + self._memory_s))
        return log_worth + last_s / policy.half_life_s + log_rates
