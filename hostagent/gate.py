"""Whether a fetch is worth its time: expected time from measured rates against the engine's own. Pure."""

from __future__ import annotations

from dataclasses import dataclass

SMOOTHING = 0.2
"""Weight of a new measurement: about five fetches forget an old network."""
OVERHEAD_S_INITIAL = 0.002


@dataclass(slots=True)
class FetchGate:
    """Remembers how fast fetches were. `expected_s` grows with what is already under way on this node's link."""

    rate_bytes_per_s: float
    overhead_s: float = OVERHEAD_S_INITIAL
    under_way_bytes: int = 0

    def expected_s(self, size_bytes: int) -> float:
        """Seconds until `size_bytes` more would be here."""
        return self.overhead_s + (self.under_way_bytes + size_bytes) / self.rate_bytes_per_s

    def allows(self, size_bytes: int, recompute_s: float | None) -> bool:
        """Whether fetching beats recomputing; always, when the engine does not say what that takes."""
        return recompute_s is None or self.expected_s(size_bytes) < recompute_s

    def started(self, size_bytes: int) -> None:
        """A fetch of so many bytes is under way."""
        self.under_way_bytes += size_bytes

    def ended(self, size_bytes: int, arrived_bytes: int, seconds: float) -> None:
        """A fetch ended; what arrived in which time teaches the rate."""
        alone = self.under_way_bytes == size_bytes
        self.under_way_bytes -= size_bytes
        if arrived_bytes <= 0 or seconds <= 0:
            return
        if arrived_bytes >= 1 << 20 or arrived_bytes / seconds > self.rate_bytes_per_s:
            # Small fetches measure the overhead, not the rate; crowded ones share the link and measure less than it.
            rate = arrived_bytes / seconds
            if alone or rate > self.rate_bytes_per_s:
                self.rate_bytes_per_s += SMOOTHING * (rate - self.rate_bytes_per_s)
        else:
            overhead_s = max(0.0, seconds - arrived_bytes / self.rate_bytes_per_s)
            self.overhead_s += SMOOTHING * (overhead_s - self.overhead_s)
