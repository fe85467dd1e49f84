"""What a node writes behind to the cold store, and which requests wait to learn what it has. Pure.

A chunk is stored when its copy is among the next to be evicted, no other copy is known, somebody may ask for it again
(its session has not ended), and reading it from the store is quicker than computing it. How often it will be asked for
decides nothing: writes go behind everything else, and a cold store is large.

A request waits for a look into the store while that takes a small share of computing what is looked for.
"""

from __future__ import annotations

from typing import Final

from kvpolicy.tiers.flow import PRESSURE_FREE_SHARE
from kvpolicy.value import SourceCosts, Tier

VICTIMS_LOOKED_AT: Final = 64
LOOK_SHARE: Final = 0.1
"""Of the time to compute chunks: a request waits no longer than this for the answer whether they are stored."""

__all__ = ["PRESSURE_FREE_SHARE", "VICTIMS_LOOKED_AT", "may_wait_s", "worth_storing"]


def worth_storing(costs: SourceCosts, size_bytes: int, uses_per_s: float, reckoned_bytes: int | None = None) -> bool:
    """Whether a last copy of `size_bytes` is to be written to the store before it is evicted; `uses_per_s`: as
    expected (`CacheValues.rate`), 0 for what nobody is expected to ask for; `reckoned_bytes`: what the store is
    reckoned with (`kvpolicy.tiers.form_costs`), None: the chunk's own."""
    read_s = costs.cost_s(Tier.COLD, size_bytes if reckoned_bytes is None else reckoned_bytes)
    return uses_per_s > 0 and read_s < costs.cost_s(Tier.RECOMPUTE, size_bytes)


def may_wait_s(lookup_s: float, compute_s: float | None, wait_max_s: float) -> float:
    """How long a request may wait for a look into the store that takes about `lookup_s`; 0: not at all.

    `compute_s`: what computing the request takes; None: its engine does not say, and takes chunks from wherever.
    """
    if compute_s is None:
        return wait_max_s
    patience_s = min(wait_max_s, LOOK_SHARE * compute_s)
    # One look at the first chunk, and one at those behind it.
    return patience_s if 2 * lookup_s <= patience_s else 0.0
