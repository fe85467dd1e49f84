"""What arrives at a reader: from casts that others lead and in all, and what its link was seen to take."""

from kvproto.session.timing import INFLOW_SLOT_NS, LINK_DECAY


class Inflow:
    """Rates in segments per second over slots of INFLOW_SLOT_NS; only segments that were still wanted count."""

    __slots__ = (
        "_foreign",
        "_last_total",
        "_link",
        "_rates",
        "_slot",
        "_total",
        "following_since_ns",
        "foreign_last_ns",
        "last_ns",
    )

    def __init__(self, link_segments_per_s: float | None) -> None:
        self._link = link_segments_per_s
        self._slot = 0
        self._foreign = 0
        self._total = 0
        self._last_total = 0.0
        self._rates: tuple[float, float] = (0.0, 0.0)
        self.foreign_last_ns: int | None = None
        """When the last wanted segment came that somebody else had asked for."""
        self.last_ns: int | None = None
        """When the last wanted segment came, whoever asked for it."""
        self.following_since_ns: int | None = None
        """Since when such segments have come without a pause of a slot."""

    @property
    def link(self) -> float | None:
        """Most that was seen to arrive (segments per second), or what the configuration says; None: not known yet."""
        return self._link

    def add(self, foreign: int, total: int, now_ns: int) -> None:
        """So many wanted segments arrived, `foreign` of them asked for by others."""
        self._roll(now_ns)
        self._foreign += foreign
        self._total += total
        if total:
            self.last_ns = now_ns
        if foreign:
            last = self.foreign_last_ns
            if last is None or now_ns - last > INFLOW_SLOT_NS:
                self.following_since_ns = now_ns
            self.foreign_last_ns = now_ns

    def foreign_rate(self, now_ns: int) -> float:
        """The higher one of the last two full slots: a slot that was short of processor time is not slow."""
        self._roll(now_ns)
        return max(self._rates)

    def learn_link(self, segments_per_s: float) -> None:
        """A reliable read moved so fast: the link takes at least that."""
        if self._link is None or segments_per_s > self._link:
            self._link = segments_per_s

    def _roll(self, now_ns: int) -> None:
        slot = now_ns // INFLOW_SLOT_NS
        if slot == self._slot:
            return
        per_s = 1e9 / INFLOW_SLOT_NS
        foreign, total = self._foreign * per_s, self._total * per_s
        if self._total:
            # Two slots together: what piled up while this process was not run makes one of them too high.
            both = (total + self._last_total) / 2
            self._link = both if self._link is None else max(both, LINK_DECAY * self._link)
        gone = slot - self._slot
        self._rates = (self._rates[1], foreign) if gone == 1 else ((foreign, 0.0) if gone == 2 else (0.0, 0.0))
        self._last_total = total if gone == 1 else 0.0
        self._slot, self._foreign, self._total = slot, 0, 0
