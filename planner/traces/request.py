"""A request of a trace, and arrivals whose times were rounded. Deterministic: arrivals are spread by a seed."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

BLOCK_TOKENS: Final = 512
TICK_MS: Final = 3000
"""Mooncake's published traces have their timestamps rounded to this."""

_TICK_SLACK_MS: Final = 5
"""The published ones are off by up to 3."""


@dataclass(frozen=True, slots=True)
class TraceRequest:
    """One request: arrival in ms since the trace began, lengths in tokens, prefix-chained block ids."""

    arrival_ms: float
    input_tokens: int
    output_tokens: int
    blocks: tuple[int, ...]


def is_quantised(requests: Sequence[TraceRequest]) -> bool:
    """Whether all arrivals sit on ticks of TICK_MS (within rounding)."""
    return len(requests) > 1 and all(
        min(request.arrival_ms % TICK_MS, -request.arrival_ms % TICK_MS) <= _TICK_SLACK_MS for request in requests
    )


def dequantise(requests: Sequence[TraceRequest], seed: int) -> list[TraceRequest]:
    """Spread the arrivals of each tick over the tick, at random but in order, as a Poisson process would have them.

    Without this, bursts of one tick would look like simultaneous readers that never were.
    """
    rng = random.Random(seed)
    ticks: dict[int, list[TraceRequest]] = {}
    for request in requests:
        ticks.setdefault(round(request.arrival_ms / TICK_MS), []).append(request)
    spread: list[TraceRequest] = []
    for tick, group in sorted(ticks.items()):
        offsets = sorted(rng.random() * TICK_MS for _ in group)
        spread += [
            replace(request, arrival_ms=tick * TICK_MS + offset) for request, offset in zip(group, offsets, strict=True)
        ]
    return spread
