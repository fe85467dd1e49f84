"""The value of a copy. The only place that says so; docs/explanation/value.md explains it."""

from __future__ import annotations


def value(rate_per_s: float, saved_s: float, size_bytes: int, readers: float = 1.0, rooted: bool = True) -> float:
    """Seconds saved per byte and second by a copy; 0 for a chunk whose ancestors are gone.

    `rate_per_s`: fetches expected per second; `saved_s`: what the copy saves each reader, the next cheaper source less
    this one (`SourceCosts.saved_s`); `readers`: at once.
    """
    if not rooted:
        return 0.0
    return rate_per_s * readers * max(0.0, saved_s) / max(1, size_bytes)
