"""By which way chunks come that several want: each reader reads them, or they are fanned out. Pure.

What is fanned out crosses the holder's link once, and costs more for each byte at every node: on a slow link that is
the sooner, on a quick one it may not be. So the way is chosen by what it brought: each reader measures both, by how
many shared them, and whoever would lead decides for all (`schedule`, `hostagent.core.relays`).

* A way is left when the other one brought MARGIN times as much.
* Reading that was never measured among so many brings no more than one reader alone was seen to get, and no less than
  its share of that. Where even the most would not be MARGIN times as much, it is not tried.
* Else one chunk, or some small ones, is tried by the other way, when that costs no more than TRIAL_SHARE of the time
  which the way in use has taken since the last trial, at the least that the other may bring; and again when what is
  known of it is old, half as often each time that nothing came of it.

As long as nothing is measured, chunks are fanned out.
"""

import enum
import math
from dataclasses import dataclass
from typing import Final

from kvproto.limits import MS

MARGIN: Final = 1.15
TRIAL_SHARE: Final = 1 / 64
OLD_NS: Final = 10_000 * MS
"""What was measured so long ago may be tried again,"""
OLD_NS_MAX: Final = 640_000 * MS
"""and after trials that changed nothing no earlier than this."""
SPELL_BYTES: Final = 1 << 20
"""Over so many bytes a rate is measured;"""
SPELL_BYTES_MIN: Final = 1 << 18
"""over no fewer where a way ends sooner."""
TRIAL_BYTES: Final = 4 << 20
"""A trial is no smaller. The quickest spell of it counts: in the others sizes and windows find their way, and what was
asked for by the way in use still comes. A way that looks too good so is measured as soon as it is in use."""
TRIAL_NS_MAX: Final = 1_000 * MS
"""A trial of which nothing was measured by then was none."""
PAUSE_NS: Final = 50 * MS
"""Casts that come after so long have not been under way in between."""
SMOOTHING: Final = 1 / 4
READERS_MAX: Final = 64
"""As many are counted."""


class Way(enum.Enum):
    """How a chunk comes that several want; the value is its name for people."""

    READ = "read"
    FANOUT = "fan out"

    __hash__ = object.__hash__

    @property
    def other(self) -> "Way":
        return Way.FANOUT if self is Way.READ else Way.READ


def crowd_of(readers: int) -> int:
    """Numbers of readers that count as one: 2, 3 to 4, 5 to 8, ... as 1, 2, 3, ..."""
    return (min(max(readers, 1), READERS_MAX) - 1).bit_length()


@dataclass(slots=True, eq=False)
class _Known:
    """What one reader got."""

    rate: float
    """Bytes per second."""
    at_ns: int
    wait_ns: int = OLD_NS


@dataclass(slots=True, eq=False)
class _Spell:
    """Bytes that came by one way among so many without a pause."""

    crowd: int
    since_ns: int
    last_ns: int
    size_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Standing:
    """How it stands with so many readers, two or more, for people."""

    readers: int
    """At most."""
    way: Way
    read_bytes_per_s: int
    """That one reader got; 0: not known."""
    fanout_bytes_per_s: int


class Chooser:
    """Of one node. Knows rates and numbers of readers, and no chunks."""

    def __init__(self, *, is_free: bool = True) -> None:
        """`is_free`: False: everything is fanned out, whatever was measured."""
        self.is_free = is_free
        self._known: dict[tuple[Way, int], _Known] = {}
        self._read_by: set[int] = set()
        """Crowds that read."""
        self.is_measuring = False
        """Bytes have come since it rested."""
        self._spells: dict[Way, _Spell] = {}
        self._spent_ns = 0
        """That ways in use have taken since the last trial."""
        self._trial: tuple[Way, int] | None = None
        """Made, and not measured: by which way, among how many,"""
        self._trial_ns = 0
        """and when."""
        self._trial_left_bytes = 0
        self._trial_came_bytes = 0
        self._trial_rate = 0.0
        """Of its quickest spell."""

    # --- measuring ---------------------------------------------------------------------------------------------------

    def came(self, way: Way, readers: int, size_bytes: int, since_ns: int, now_ns: int) -> None:
        """Bytes came that were asked for at `since_ns` (of casts: now), while so many wanted them."""
        crowd, spell = crowd_of(readers), self._spells.get(way)
        self.is_measuring = True
        cast = self._spells.get(Way.FANOUT)
        if way is Way.READ and cast is not None:
            self._end(Way.FANOUT, cast)  # casts paused meanwhile
        pause_ns = PAUSE_NS if way is Way.FANOUT else 0
        if spell is not None and (spell.crowd != crowd or since_ns > spell.last_ns + pause_ns):
            self._end(way, spell)
            spell = None
        if spell is None:
            began_with = 0 if since_ns >= now_ns else size_bytes
            self._spells[way] = _Spell(crowd, min(since_ns, now_ns), now_ns, began_with)
            return
        spell.last_ns = now_ns
        spell.size_bytes += size_bytes
        if spell.size_bytes >= SPELL_BYTES and now_ns > spell.since_ns:
            self._learn(way, spell)
            self._spells[way] = _Spell(crowd, now_ns, now_ns)

    def rest(self) -> None:
        """Nothing is wanted any more."""
        self.is_measuring = False
        for way, spell in list(self._spells.items()):
            self._end(way, spell)

    def _end(self, way: Way, spell: _Spell) -> None:
        del self._spells[way]
        if spell.size_bytes >= SPELL_BYTES_MIN and spell.last_ns > spell.since_ns:
            self._learn(way, spell)

    def _learn(self, way: Way, spell: _Spell) -> None:
        took_ns = spell.last_ns - spell.since_ns
        rate, at = spell.size_bytes * 1e9 / took_ns, (way, spell.crowd)
        known, is_over = self._known.get(at), False
        if at == self._trial:
            self._trial_came_bytes += spell.size_bytes
            rate = self._trial_rate = max(self._trial_rate, rate)
            if self._trial_came_bytes < TRIAL_BYTES // 2:
                return
            self._trial, is_over = None, True
        if known is None:
            self._known[at] = _Known(rate, spell.last_ns)
        elif is_over:
            known.rate, known.at_ns = rate, spell.last_ns
        else:
            # Of the time that a byte takes: after a pause of this process some come quickly.
            known.rate = 1 / ((1 - SMOOTHING) / known.rate + SMOOTHING / rate)
            known.at_ns = spell.last_ns
        if way is self._used_by(spell.crowd):
            self._spent_ns += took_ns

    # --- choosing ----------------------------------------------------------------------------------------------------

    def choose(self, readers: int, size_bytes: int, alone_bytes_per_s: float | None, now_ns: int) -> Way:
        """The way of a chunk of this size that so many want; `alone_bytes_per_s`: the most that this node was seen to
        get, None: not known. A trial is counted as made."""
        crowd = crowd_of(readers)
        if not self.is_free:
            return Way.FANOUT
        used = self._used_by(crowd)
        here = self._rate(used, crowd)
        if self._trial is not None and now_ns - self._trial_ns < TRIAL_NS_MAX:
            if self._trial[1] != crowd or self._trial_left_bytes <= 0:
                return used
            self._trial_left_bytes -= size_bytes
            return self._trial[0]
        if here is None:
            return used
        other = self._known.get((used.other, crowd))
        if other is not None and now_ns - other.at_ns < other.wait_ns:
            if other.rate <= MARGIN * here:
                return used
            self._read_by ^= {crowd}
            other.wait_ns = OLD_NS
            return used.other
        if used is Way.FANOUT and not crowd and other is None:
            least, most = here / 2, math.inf  # who comes meanwhile has it later
        else:
            least, most = self._bounds(used.other, crowd, alone_bytes_per_s)
        if most <= MARGIN * here:
            return used
        cost_ns = 1e9 * max(size_bytes, TRIAL_BYTES) * (1 / least - 1 / here)
        if cost_ns > TRIAL_SHARE * self._spent_ns:
            return used
        self._spent_ns, self._trial, self._trial_ns = 0, (used.other, crowd), now_ns
        self._trial_left_bytes, self._trial_came_bytes, self._trial_rate = TRIAL_BYTES - size_bytes, 0, 0.0
        if other is not None:
            other.wait_ns, other.at_ns = min(2 * other.wait_ns, OLD_NS_MAX), now_ns
        return used.other

    def is_read(self, readers: int) -> bool:
        """Whether what so many want is read by each."""
        return self.is_free and crowd_of(readers) in self._read_by

    def agrees(self, readers: int) -> bool:
        """Whether reading is worth a try where another node decided on it."""
        crowd = crowd_of(readers)
        read, fanout = self._known.get((Way.READ, crowd)), self._known.get((Way.FANOUT, crowd))
        return self.is_free and (read is None or fanout is None or MARGIN * read.rate >= fanout.rate)

    def standing(self) -> list[Standing]:
        """What is known, by number of readers."""
        crowds = sorted({crowd for _, crowd in self._known if crowd})
        return [
            Standing(
                1 << crowd,
                self._used_by(crowd),
                *(
                    int(known.rate) if (known := self._known.get((way, crowd))) is not None else 0
                    for way in (Way.READ, Way.FANOUT)
                ),
            )
            for crowd in crowds
        ]

    def _used_by(self, crowd: int) -> Way:
        return Way.READ if crowd in self._read_by else Way.FANOUT

    def _rate(self, way: Way, crowd: int) -> float | None:
        """What is known of a way among so many, or among the number that is nearest."""
        nearest = min((one for some, one in self._known if some is way), key=lambda one: abs(one - crowd), default=None)
        return None if nearest is None else self._known[way, nearest].rate

    def _bounds(self, way: Way, crowd: int, alone: float | None) -> tuple[float, float]:
        """The least and the most that a way may bring one reader. More who read share what fewer got; of casts nothing
        is known beyond what they brought."""
        single = self._known.get((Way.READ, 0))
        if single is not None:
            alone = max(alone or 0.0, single.rate)
        known = self._known.get((way, crowd))
        if known is not None:  # old
            return known.rate, max(known.rate, alone or known.rate)
        if way is Way.FANOUT or not alone:
            rate = self._rate(way, crowd)
            return (1.0, 0.0) if rate is None else (rate, rate)
        fewer = [one for some, one in self._known if some is way and one < crowd]
        most = min([alone, *(self._known[way, one].rate for one in fewer)])
        near = max(fewer, default=0)
        base = self._known[way, near].rate if fewer else alone
        return min(most, base / (1 << crowd - near)), most
