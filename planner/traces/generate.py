"""What generators of traces share: arrivals, popularity, requests. Every draw comes from the caller's seed."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate
from typing import Final, TypeAlias

from planner.traces.request import BLOCK_TOKENS, TraceRequest

OUTPUT_TOKENS: Final = 128

Generator: TypeAlias = Callable[..., list[TraceRequest]]
"""(seed, duration_s) -> requests in order of arrival."""


def zipf(rng: random.Random, templates: Sequence[list[int]], exponent: float) -> Callable[[], list[int]]:
    """Draws one of `templates`, the first most often: rank r with a weight of r^-exponent."""
    weights = list(accumulate((rank + 1) ** -exponent for rank in range(len(templates))))
    return lambda: rng.choices(templates, cum_weights=weights)[0]


def arrivals(rng: random.Random, begin_s: float, end_s: float, mean_s: float) -> Iterator[float]:
    """A Poisson process between two moments, `mean_s` apart on average."""
    at_s = begin_s + rng.expovariate(1 / mean_s)
    while at_s < end_s:
        yield at_s
        at_s += rng.expovariate(1 / mean_s)


def request(at_s: float, blocks: Sequence[int]) -> TraceRequest:
    """A request for whole blocks."""
    return TraceRequest(round(at_s * 1000), len(blocks) * BLOCK_TOKENS, OUTPUT_TOKENS, tuple(blocks))


def ordered(requests: Sequence[TraceRequest], duration_s: float) -> list[TraceRequest]:
    """Those that arrive within the duration, by arrival."""
    return sorted((one for one in requests if one.arrival_ms < duration_s * 1000), key=lambda one: one.arrival_ms)


def side_by_side(parts: Sequence[Sequence[TraceRequest]], duration_s: float) -> list[TraceRequest]:
    """Loads that share one pool and no block."""
    return ordered([_apart(one, at, len(parts)) for at, part in enumerate(parts) for one in part], duration_s)


def _apart(one: TraceRequest, part: int, parts: int) -> TraceRequest:
    blocks = tuple(block * parts + part for block in one.blocks)
    return TraceRequest(one.arrival_ms, one.input_tokens, one.output_tokens, blocks)
