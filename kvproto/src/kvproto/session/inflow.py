"""What arrives at a reader: from casts that others lead and in all, and what its link was seen to take."""

import math

from kvproto.session.pace import Pace
from kvproto.session.timing import (
    INFLOW_SLOT,
    INFLOW_SLOT_FIRST,
    INFLOW_SLOT_MIN,
    INFLOW_SLOT_SEGMENTS,
    LINK_DECAY,
)


class Inflow:
    """Rates in segments per second over slots of time; only segments that were still wanted count.

    A slot lasts INFLOW_SLOT, which is long enough that a process that runs late does not make it look slow or fast.
    """

    __slots__ = (
        "_foreign",
        "_last_total",
        "_link",
        "_most",
        "_pace",
        "_rates",
        "_slot_ns",
        "_total",
        "following_since_ns",
        "foreign_last_ns",
        "last_ns",
    )

    def __init__(self, link_segments_per_s: float | None, pace: Pace) -> None:
        """`link_segments_per_s`: the link's rate if it is configured. What arrives may show that it takes less, but
        not that it takes more: bursts, after a shaper's pause or one of this process, look like a faster link."""
        self._pace = pace
        self._most = math.inf if link_segments_per_s is None else link_segments_per_s
        self._link: float | None = None
        if link_segments_per_s is not None:
            self._know(link_segments_per_s)
        self._slot_ns = 0
        """When the current slot began."""
        self._foreign = 0
        self._total = 0
        self._last_total = 0.0
        self._rates: tuple[float, float] = (0.0, 0.0)
        self.foreign_last_ns: int | None = None
        """When the last wanted segment came that somebody else had asked for."""
        self.last_ns: int | None = None
        """When the last wanted segment came, whoever asked for it."""
        self.following_since_ns: int | None = None
        """Since when such segments have come without a pause as long as a slot."""

    @property
    def link(self) -> float | None:
        """Most that was lately seen to arrive (segments per second), at most what is configured; None: unknown."""
        return self._link

    def add(self, foreign: int, total: int, now_ns: int) -> None:
        """`total` wanted segments arrived; others had asked for `foreign` of them."""
        if self.last_ns is None:
            self._slot_ns = now_ns
        self._roll(now_ns)
        self._foreign += foreign
        self._total += total
        if total:
            self.last_ns = now_ns
        if foreign:
            last = self.foreign_last_ns
            if last is None or now_ns - last > self._pace.ns(INFLOW_SLOT):
                self.following_since_ns = now_ns
            self.foreign_last_ns = now_ns

    def foreign_rate(self, now_ns: int) -> float:
        """The higher one of the last two full slots: a slot that was short of processor time is not slow."""
        self._roll(now_ns)
        return max(self._rates)

    def learn_link(self, segments_per_s: float) -> None:
        """A reliable read came at this rate: the link takes at least that."""
        if self._link is None or segments_per_s > self._link:
            self._know(segments_per_s)

    def _know(self, segments_per_s: float) -> None:
        segments_per_s = self._link = min(segments_per_s, self._most)
        self._pace.segment_ns = 1e9 / segments_per_s if segments_per_s else None

    def _roll(self, now_ns: int) -> None:
        """End the current slot if it is over; when more than one is, those in between brought nothing."""
        elapsed_ns = now_ns - self._slot_ns
        slot_ns = self._pace.ns(INFLOW_SLOT)
        if elapsed_ns < slot_ns:
            least = INFLOW_SLOT_MIN if self._link is not None else INFLOW_SLOT_FIRST
            if self._total < INFLOW_SLOT_SEGMENTS or elapsed_ns < self._pace.ns(least):
                return
            slot_ns = elapsed_ns
        gone = elapsed_ns // slot_ns
        per_s = 1e9 / slot_ns
        foreign, total = self._foreign * per_s, self._total * per_s
        if self._total:
            # Two slots together: segments that piled up while this process did not run make one of them too high.
            both = (total + self._last_total) / 2
            self._know(both if self._link is None else max(both, LINK_DECAY * self._link))
        self._rates = (self._rates[1], foreign) if gone == 1 else ((foreign, 0.0) if gone == 2 else (0.0, 0.0))
        self._last_total = total if gone == 1 else 0.0
        self._slot_ns, self._foreign, self._total = self._slot_ns + gone * slot_ns, 0, 0
