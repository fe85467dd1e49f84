"""Whether what others cast brings anything new. Looks at segments that became present, at nothing that anybody says.

Two things look like casts that bring nothing and are not: a machine or switch that does not run for a while, and one on
which everything is slow. Where reliable reads would come no sooner, they only add to what the holder has to send: all
who wait judge alike, and each of them would read every chunk for itself.
"""

from kvproto.session.pace import Pace
from kvproto.session.timing import (
    LIVENESS,
    LIVENESS_FRACTION,
    LIVENESS_STALLED,
    LIVENESS_WINDOWS_MAX,
    READS_NO_BETTER,
    SILENCE,
    STRIPE_START_SEGMENTS,
)


class Liveness:
    """One per reader. In each LIVENESS window a part of what the link takes has to come of the chunks that are joined.

    Announcements, NOTICEs and segments that are here already do not count: whoever sends them may mean harm. But while
    nothing at all is heard, the time does not count either: nobody lies, something stands still. What comes by reliable
    reads says nothing of the casts that other chunks wait for, only how much better reads are.
    """

    __slots__ = (
        "_cast_count",
        "_due_ns",
        "_heard_ns",
        "_live_ns",
        "_pace",
        "_patience",
        "_read_count",
        "_since_ns",
        "_starved_count",
    )

    def __init__(self, pace: Pace) -> None:
        self._pace = pace
        self._since_ns: int | None = None
        self._due_ns = 0
        self._heard_ns = 0
        self._live_ns = 0
        """Of the window, time in which something was heard."""
        self._cast_count = 0
        self._read_count = 0
        self._starved_count = 0
        self._patience = 1
        """Windows that are taken as one."""

    def heard(self, now_ns: int) -> None:
        """Something came, whatever it is. A pause counts as far as a living leader may be silent."""
        self._live_ns += max(0, min(now_ns - self._heard_ns, self._pace.ns(SILENCE)))
        self._heard_ns = now_ns

    def arrived(self, count: int) -> None:
        """So many segments of joined chunks became present."""
        self._cast_count += count

    def was_read(self, count: int) -> None:
        """So many segments came by reliable reads of chunks that `starved` had asked for."""
        self._read_count += count

    def next_timeout_ns(self) -> int | None:
        """When the window may end; None: nothing is waited for."""
        return None if self._since_ns is None else self._due_ns

    def starved(self, link: float | None, now_ns: int, *, waits: bool, reads: bool) -> int:
        """How many chunks to read reliably from now on, whatever anybody says: twice as many after each starved window.

        `waits`: a chunk is joined; `reads`: one that was to be read is still not here; `link`: what our link takes,
        segments per second, None: not known.
        """
        if not waits:
            self._since_ns, self._starved_count, self._patience = None, 0, 1
            return 0
        if self._since_ns is None:
            self._begin(now_ns)
            return 0
        window_ns = self._patience * self._pace.ns(LIVENESS)
        elapsed_ns = now_ns - self._since_ns
        left_ns = min(window_ns - self._live_ns, LIVENESS_STALLED * window_ns - elapsed_ns)
        if left_ns > 0:
            self._due_ns = now_ns + left_ns
            return 0
        counted_ns = min(self._live_ns, elapsed_ns)
        enough = max(STRIPE_START_SEGMENTS, (link or 0.0) * counted_ns / 1e9 * LIVENESS_FRACTION)
        more = 0
        if self._cast_count >= enough:
            self._starved_count, self._patience = 0, 1
        elif self._starved_count and self._reads_are_no_better(enough, reads=reads):
            self._patience = min(2 * self._patience, LIVENESS_WINDOWS_MAX)
        else:
            self._patience = 1
            if not reads:
                more = self._starved_count = max(1, 2 * self._starved_count)
        self._begin(now_ns)
        return more

    def _reads_are_no_better(self, enough: float, *, reads: bool) -> bool:
        """Whether more reads would help nobody; `reads`: what was asked for has not come yet."""
        slow = reads and self._read_count < enough
        return slow or self._read_count < READS_NO_BETTER * self._cast_count

    def _begin(self, now_ns: int) -> None:
        """Another window."""
        self._since_ns = self._heard_ns = now_ns
        self._due_ns = now_ns + self._patience * self._pace.ns(LIVENESS)
        self._live_ns = self._cast_count = self._read_count = 0
