"""What an operator may tune of the value function, every limit of this package, and the value of a copy itself, which
nothing else says; docs/explanation/value.md explains it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

NS: Final = 1e-9
"""Seconds in a nanosecond."""

HALF_LIFE_S: Final = 300.0
"""Of a fetch's weight, unless an operator says otherwise."""

TRACKED_MAX: Final = 1_000_000
"""Chunks whose fetches are remembered by one pool, in it or not; about 70 bytes each, taken as they come."""

SHADOW_CHUNKS_MAX: Final = 4096
"""Chunks that one shadow cache holds at most: a larger pool is shadowed by a sample of its keys. With 512 conversations
lost 0.35 % of all fetches."""

POSITION_EARLY: Final = 12
"""Chunks before this position count as the beginning of a prefix."""

TOUCHES_EXACT: Final = 16
"""Up to this many fetches of a chunk, each count is a class of its own; beyond, there are two classes per octave."""

GAP_EDGES_S: Final = (1.0, 10.0, 60.0, 300.0)
"""Borders between classes of the time since the fetch before."""


@dataclass(frozen=True, slots=True)
class ValueParameters:
    """One configuration for all loads; the defaults are what docs/explanation/value.md reports."""

    half_life_s: float = HALF_LIFE_S
    """Of the decayed fetch rate."""
    second_touch_s: float = 60.0
    """Two fetches within this time are evidence of reuse, for the switch's admission."""
    tracked_max: int = TRACKED_MAX
    horizon_s: float = 600.0
    """Rates of classes are learned as hits per second of stay, up to this limit."""
    class_prior: float = 4.0
    """Observations that the coarser class counts for when a class is young."""
    rate_prior: float = 0.2
    """Fetches that the class of a chunk counts for, in addition to the chunk's own decayed ones."""
    learn_half_touches: int = 2_000_000
    """After this many fetched chunks, all that was learned counts half."""
    shadow_chunks_max: int = SHADOW_CHUNKS_MAX
    selector_half_touches: int = 32_768
    """A policy's hits count half after this many sampled chunks."""


assert TOUCHES_EXACT >= 1
assert list(GAP_EDGES_S) == sorted(GAP_EDGES_S)


def value(rate_per_s: float, saved_s: float, size_bytes: int, readers: float = 1.0, rooted: bool = True) -> float:
    """Seconds saved per byte and second by a copy; 0 for a chunk whose ancestors are gone.

    `rate_per_s`: fetches expected per second; `saved_s`: what the copy saves each reader, the next cheaper source less
    this one (`SourceCosts.saved_s`); `readers`: at once.
    """
    if not rooted:
        return 0.0
    return rate_per_s * readers * max(0.0, saved_s) / max(1, size_bytes)
