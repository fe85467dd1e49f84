"""Whether what others cast brings anything new. Looks at segments that became present, at nothing that anybody says."""

from kvproto.session.pace import Pace
from kvproto.session.timing import LIVENESS, LIVENESS_FRACTION, STRIPE_START_SEGMENTS


class Liveness:
    """One per reader. In each LIVENESS window a part of what the link takes has to come of the chunks that are joined.

    Announcements, NOTICEs and segments that are here already do not count: whoever sends them may mean harm. What comes
    by reliable reads does not count either: it says nothing of the casts that other chunks wait for.
    """

    __slots__ = ("_arrived_count", "_pace", "_since_ns", "_starved_count")

    def __init__(self, pace: Pace) -> None:
        self._pace = pace
        self._since_ns: int | None = None
        self._arrived_count = 0
        self._starved_count = 0

    def arrived(self, count: int) -> None:
        """So many segments of joined chunks became present."""
        self._arrived_count += count

    def next_timeout_ns(self) -> int | None:
        """When the window ends; None: nothing is waited for."""
        return None if self._since_ns is None else self._since_ns + self._pace.ns(LIVENESS)

    def starved(self, link: float | None, now_ns: int, *, waits: bool) -> int:
        """How many chunks to read reliably from now on, whatever anybody says: twice as many after each starved window.

        `waits`: a chunk is joined; `link`: what our link takes, segments per second, None: not known.
        """
        if not waits:
            self._since_ns, self._starved_count = None, 0
            return 0
        if self._since_ns is None:
            self._since_ns, self._arrived_count = now_ns, 0
            return 0
        elapsed_ns = now_ns - self._since_ns
        if elapsed_ns < self._pace.ns(LIVENESS):
            return 0
        enough = max(STRIPE_START_SEGMENTS, (link or 0.0) * elapsed_ns / 1e9 * LIVENESS_FRACTION)
        fed = self._arrived_count >= enough
        self._since_ns, self._arrived_count = now_ns, 0
        self._starved_count = 0 if fed else max(1, 2 * self._starved_count)
        return self._starved_count
