"""How quick the network and the hosts on it are, as far as this reader has measured: the clock of the rules.

Times of the rules are multiples of two things (`Span`). A *reaction* is how long it takes until a member has acted on
what left the switch: the way there and back, and how late its process runs. A *segment* is the time that the link needs
for one. Every member says its own reaction in the tags of its JOINs and GETs (`wire/control.py`).
"""

from collections import deque
from dataclasses import dataclass

from kvproto.ids import Member
from kvproto.wire.control import reaction_code, reaction_of

MUCH_QUICKER = 4
"""A member whose reaction is shorter by this factor goes before the others, whatever its index."""
_TRIPS = 16
"""The least of this many answers is taken: a path that became longer is believed after this many."""


@dataclass(frozen=True, slots=True, eq=False)
class Span:
    """A time of the rules: `reactions` reactions plus the time of `segments` segments, between floor and ceiling.

    It is the ceiling until everything that it depends on is measured. Compared by identity: `Pace` looks it up often.
    """

    reactions: float
    segments: float
    floor_ns: int
    ceiling_ns: int

    def of(self, reaction_ns: int | None, segment_ns: float | None) -> int:
        """Nanoseconds, given what was measured; None: nothing yet."""
        if (reaction_ns is None and self.reactions) or (segment_ns is None and self.segments):
            return self.ceiling_ns
        time_ns = self.reactions * (reaction_ns or 0) + self.segments * (segment_ns or 0.0)
        return max(self.floor_ns, min(self.ceiling_ns, int(time_ns)))


class Smoothed:
    """Mean and deviation of a time, as in RFC 6298."""

    __slots__ = ("_deviation_ns", "mean_ns")

    def __init__(self) -> None:
        self.mean_ns: int | None = None
        self._deviation_ns = 0

    def add(self, took_ns: int) -> None:
        """One more measurement."""
        if self.mean_ns is None:
            self.mean_ns, self._deviation_ns = took_ns, took_ns // 2
            return
        self._deviation_ns = (3 * self._deviation_ns + abs(took_ns - self.mean_ns)) // 4
        self.mean_ns = (7 * self.mean_ns + took_ns) // 8

    @property
    def spread_ns(self) -> int:
        """By how much it hardly ever exceeds the mean: four deviations. 0 as long as nothing was measured."""
        return 4 * self._deviation_ns


class Pace(dict[Span, int]):
    """Measurements of one reader. Times are nanoseconds.

    `pace[span]` is the span as this reader needs it. How late others run decides who goes first, in `before`. The rules
    ask for the same few spans at every event: each is worked out once after a measurement.
    """

    def __init__(self) -> None:
        super().__init__()
        self._answer = Smoothed()
        self._late = Smoothed()
        self._trips: deque[int] = deque(maxlen=_TRIPS)
        self._others: dict[Member, int] = {}
        self.reaction_ns: int | None = None
        """Own reaction; None: nothing measured yet.

        The least round trip, which includes the least lateness of this process, and how much later it runs at times.
        """
        self.segment_ns: float | None = None
        """What the link needs for a segment; None: not known yet."""

    @property
    def answer_ns(self) -> int | None:
        """How long answers to JOINs took of late, smoothed; None: none was measured yet."""
        return self._answer.mean_ns

    def code(self, queued_ns: int = 0) -> int:
        """Own reaction, for a tag; longer by `queued_ns`, the time spent in queues on the way."""
        return reaction_code(None if self.reaction_ns is None else self.reaction_ns + queued_ns)

    def note_answer(self, took_ns: int) -> None:
        """The first answer to a JOIN came. If a JOIN was repeated, nobody knows which one was answered (Karn)."""
        self._answer.add(took_ns)
        self._trips.append(took_ns)
        self._update()

    def note_late(self, late_ns: int) -> None:
        """A timer of this reader ran `late_ns` after it was due."""
        self._late.add(late_ns)
        self._update()

    def note_member(self, member: Member, tag: int) -> None:
        """A tag of another member says what its reaction is."""
        reaction_ns = reaction_of(tag)
        if reaction_ns is not None:
            self._others[member] = reaction_ns

    def note_link(self, segments_per_s: float) -> None:
        """The link takes so many segments per second."""
        segment_ns = 1e9 / segments_per_s if segments_per_s else None
        if segment_ns != self.segment_ns:
            self.segment_ns = segment_ns
            self.clear()

    def __missing__(self, span: Span) -> int:
        time_ns = self[span] = span.of(self.reaction_ns, self.segment_ns)
        return time_ns

    def least_ns(self, span: Span) -> int:
        """The span as far as it is known already: for sizes, where too small is safe."""
        return self[span] if self.segment_ns is not None else span.of(self.reaction_ns, 0.0)

    def before(self, me: Member | None) -> int:
        """Members that should act before this one, as a bitmap: much quicker ones, and of equals those before it."""
        if me is None:
            return 0
        before = (1 << me) - 1
        if self.reaction_ns is not None:
            for member, other_ns in self._others.items():
                if other_ns * MUCH_QUICKER < self.reaction_ns:
                    before |= 1 << member
                elif self.reaction_ns * MUCH_QUICKER < other_ns:
                    before &= ~(1 << member)
        return before

    def _update(self) -> None:
        if self._trips:
            spread = self._late if self._late.mean_ns is not None else self._answer
            self.reaction_ns = min(self._trips) + spread.spread_ns
            self.clear()
