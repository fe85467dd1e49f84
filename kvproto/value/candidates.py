"""The orders that compete to decide a pool: what each would keep, as one number a chunk.

A score stays valid from one fetch of the chunk to its next (all of them shrink by one factor over time), so nothing has
to be worked out anew as time passes. Higher stays. Rates are carried back to time 0, as log2:

    lru          last fetch
    decay        log2(decayed fetches x worth) + t / H
    rate         log2((k + fetches) / (k / hits/s of the class + H / ln 2) x worth) + t / H
    reuse        log2(hits/s of the class x worth) + t / H

with t the last fetch, `fetches` decayed with the half-life of the table, `worth` the seconds saved per byte. `rate` is
the mean of a Poisson rate whose prior is the chunk's class. A candidate `filtered` lets into a full pool only what was
fetched before.
"""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]


class Rule(enum.Enum):
    LRU = "lru"
    DECAY = "decay"
    RATE = "rate"
    REUSE = "reuse"


@dataclass(frozen=True, slots=True)
class Candidate:
    """One order of a pool's chunks."""

    name: str
    rule: Rule
    half_life_s: float = 300.0
    horizon: int = 0
    """Which of the learned horizons."""
    filtered: bool = False


CANDIDATES: tuple[Candidate, ...] = (
    Candidate("rate-300s", Rule.RATE, 300.0, horizon=1),
    Candidate("lru", Rule.LRU),
    Candidate("lru-second-touch", Rule.LRU, filtered=True),
    Candidate("decay-300s", Rule.DECAY, 300.0),
    Candidate("reuse-20s", Rule.REUSE, 20.0, horizon=0),
    Candidate("reuse-60s", Rule.REUSE, 60.0, horizon=1),
)
"""Few, and far apart: 300 s suits chat, 20 s bursts; plain LRU is right when the pool holds nearly everything.
The first decides until the contest knows better."""


class Scorer:
    """Scores of all candidates. `memory_s` is the half-life with which fetches decay, over ln 2."""

    def __init__(self, candidates: tuple[Candidate, ...], rate_prior: float, half_life_s: float) -> None:
        self.candidates = candidates
        self._prior = rate_prior
        self._memory_s = half_life_s / math.log(2)

    def one(
        self, candidate: Candidate, last_s: float, weight: float, rates: tuple[float, ...], log_worth: float
    ) -> float:
        """Score of one chunk."""
        rule = candidate.rule
        if rule is Rule.LRU:
            return last_s
        base = log_worth + last_s / candidate.half_life_s
        if rule is Rule.DECAY:
            return base + math.log2(weight)
        rate = rates[candidate.horizon]
        if rule is Rule.RATE:
            rate = (self._prior + weight) / (self._prior / rate + self._memory_s)
        return base + math.log2(rate)

    def every(self, last_s: float, weight: float, rates: tuple[float, ...], log_worth: float) -> list[float]:
        """Scores of one chunk, by candidate."""
        return [self.one(candidate, last_s, weight, rates, log_worth) for candidate in self.candidates]

    def many(self, candidate: Candidate, last_s: Floats, weight: Floats, rates: Floats, log_worth: Floats) -> Floats:
        """Scores of many chunks; `rates` those of the candidate's horizon, by chunk."""
        if candidate.rule is Rule.LRU:
            return last_s
        base = log_worth + last_s / candidate.half_life_s
        if candidate.rule is Rule.DECAY:
            return base + np.log2(weight)
        if candidate.rule is Rule.RATE:
            rates = (self._prior + weight) / (self._prior / rates + self._memory_s)
        scores: Floats = base + np.log2(rates)
        return scores
