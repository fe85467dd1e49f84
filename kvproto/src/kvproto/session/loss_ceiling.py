"""How large a window may be on a path that has lost packets: CUBIC, on the clock. Pure.

After a loss the window is a part BETA of what it was, comes back near to that within seconds, stays there a while, and
then probes beyond, ever faster (RFC 9438, 4.2). Its growth depends on time alone: a window that grows by round trips
would be back at once for a reader that learns of losses only now and then, as from a NIC's counters.
"""

from typing import Final

BETA: Final = 0.7
"""What a loss leaves of the window (RFC 9438, 4.6)."""
SCALE: Final = 0.4
"""Blocks per second cubed (RFC 9438, 5.1, in segments): half of 4 MiB in blocks of 16 KiB is back after 7 s."""


class LossCeiling:
    """A limit that no loss has touched, until one does."""

    __slots__ = ("_before", "_least", "_limit", "_lost_ns", "_recovery_s")

    def __init__(self, limit: int, least: int) -> None:
        """In blocks: never more than `limit`, never less than `least`, however much is lost."""
        self._limit = limit
        self._least = min(least, limit)
        self._before = 0.0
        """Where the last loss struck: growth is slowest there (RFC 9438's W_max)."""
        self._lost_ns = -1
        self._recovery_s = 0.0

    @property
    def lowered(self) -> bool:
        """Whether a loss is remembered; otherwise the ceiling is the limit."""
        return self._lost_ns >= 0

    def blocks(self, now_ns: int) -> int:
        """The window's limit now; only `lost` makes it fall."""
        if self._lost_ns < 0:
            return self._limit
        elapsed_s = (now_ns - self._lost_ns) / 1e9
        size = self._before + SCALE * (elapsed_s - self._recovery_s) ** 3
        if size >= self._limit:
            self._lost_ns = -1
            return self._limit
        return max(self._least, int(size))

    def lost(self, size: int, now_ns: int) -> None:
        """A window of `size` blocks was too large."""
        size = min(size, self.blocks(now_ns))
        # A window that loses before it is back where it lost last makes room for others (RFC 9438, 4.7).
        self._before = size * (1 + BETA) / 2 if self.lowered and size < self._before else float(size)
        self._recovery_s = ((self._before - size * BETA) / SCALE) ** (1 / 3)
        self._lost_ns = now_ns
