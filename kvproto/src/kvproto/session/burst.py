"""How much a holder hands over at a time: enough to keep the shell busy until it hears again, and no more."""

from typing import Final

from kvproto.limits import MS

BURST_NS: Final = 2 * MS
"""A burst leaves within this time: several turns of a shell's event loop. A larger one would wait where it is no longer
merged with what others ask for."""
BURST_SEGMENTS_MAX: Final = 512


class Burst:
    """How many segments may be handed to the shell before it reports them sent, from its recent rate of sending."""

    __slots__ = ("_least", "_sent", "_since_ns", "segments")

    def __init__(self, least_segments: int) -> None:
        self._least = self.segments = least_segments
        self._sent = 0
        self._since_ns = 0

    def begins(self, now_ns: int) -> None:
        """The shell had nothing to send, and gets something."""
        self._sent, self._since_ns = 0, now_ns

    def sent(self, count: int, now_ns: int) -> None:
        """The shell reports that it has sent `count` segments."""
        self._sent += count
        span_ns = now_ns - self._since_ns
        if span_ns >= BURST_NS:
            self.segments = max(self._least, min(BURST_SEGMENTS_MAX, self._sent * BURST_NS // span_ns))
            self._sent, self._since_ns = 0, now_ns
