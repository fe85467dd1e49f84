"""Whether what others cast brings anything new. Looks at segments that became present, at nothing that anybody says."""

from kvproto.session.pace import Pace
from kvproto.session.timing import LIVENESS, LIVENESS_FRACTION, STRIPE_START_SEGMENTS


class Liveness:
    """One per reader. In each LIVENESS window a part of what the link takes has to come of the chunks that are joined.

    Announcements, NOTICEs and segments that are here already do not count: whoever sends them may mean harm. What comes
    by reliable reads does not count either: it says nothing of the casts that other chunks wait for.
    """

    __slots__ = ("_arrived_count", "_pace", "_starved_count", "since_ns")

    def __init__(self, pace: Pace) -> None:
        self._pace = pace
        self.since_ns: int | None = None
        """When the window began; None: nothing is waited for."""
        self._arrived_count = 0
        self._starved_count = 0

    def arrived(self, count: int) -> None:
        """So many segments of joined chunks became present."""
        self._arrived_count += count

    def rest(self) -> None:
        """No chunk is joined."""
        self.since_ns, self._starved_count = None, 0

    def starved(self, link: float | None, now_ns: int, *, waits: bool) -> int:
        """How many chunks to read reliably from now on, whatever anybody says: twice as many after each starved window.

        `waits`: a chunk is joined; `link`: what our link takes, segments per second, None: not known.
        """
        if not waits:
            self.rest()
            return 0
        if self.since_ns is None:
            self.since_ns, self._arrived_count = now_ns, 0
            return 0
        elapsed_ns = now_ns - self.since_ns
        if elapsed_ns < self._pace[LIVENESS]:
            return 0
        enough = max(STRIPE_START_SEGMENTS, (link or 0.0) * elapsed_ns / 1e9 * LIVENESS_FRACTION)
        fed = self._arrived_count >= enough
        self.since_ns, self._arrived_count = now_ns, 0
        self._starved_count = 0 if fed else max(1, 2 * self._starved_count)
        return self._starved_count
