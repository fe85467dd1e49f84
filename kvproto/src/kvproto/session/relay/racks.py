"""Which rack has a chunk from which, and who of a rack reads it there: one tree for each chunk, at its keeper. Pure.

The keeper's rack is the root and has one child, the others have two at most; who is where turns from chunk to chunk, so
each rack's link to the others carries a chunk about once each way. In each rack one reader, its *entry*, reads from the
members of the rack above; the others read from it and from each other. Where the keeper's rack has no reader, the entry
below it reads from the keeper. With one rack all of it is the root: everybody reads from everybody.

Nobody is blamed: who should have pieces and has not says so. If its rack's entry misses them, too, that rack reads from
one further up, beside; if not, it becomes the entry itself.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from math import gcd
from typing import Final, NamedTuple

from kvproto.limits import MS

SOURCES_MAX: Final = 8
"""Members of the rack above that an entry is told of."""
PATIENCE_NS: Final = 150 * MS
"""Some reactions: what is missed for so long counts, and nothing is changed twice within it."""
FORGOTTEN_NS: Final = 1_000 * MS
MISSED_MAX: Final = 64
"""Pieces that a rack may miss at a time."""
NEAR: Final = 8
"""Members that are no further apart in the order of their coming read from each other, and those at powers of two."""


def are_peers(one: int, other: int) -> bool:
    """Whether the members of these places in the order of coming read a chunk from each other. With few it is
    everybody; with many each has some tens of peers, and no piece has far to go."""
    apart = abs(one - other)
    return apart > 0 and (apart <= NEAR or not apart & (apart - 1))


class Meeting(NamedTuple):
    """`reader` may read from `sources`: endpoints."""

    reader: str
    sources: tuple[str, ...]


@dataclass(slots=True, eq=False)
class _Rack:
    members: list[str] = field(default_factory=list)
    """In the order of their coming; one that has the chunk whole stays."""
    entry: str = ""
    """Empty: it has none, or needs none."""
    changed_ns: int = 0
    """When its entry, or whom that one reads from, last changed."""
    climbed: int = 0
    """It reads from so many racks above the one above, too."""
    missed_ns: dict[tuple[str, int], int] = field(default_factory=dict)
    """When (a reader, a piece) was first missed, of late."""


class RackTree:
    """Of one chunk."""

    def __init__(self, home: str, turn: int) -> None:
        """`home`: the keeper's rack; `turn`: another one for each chunk."""
        self._home = home
        self._turn = turn
        self._racks: dict[str, _Rack] = {home: _Rack()}
        self._unfit: set[str] = set()
        """Who is entry only where there is nobody else."""
        self._below: list[str] = []
        """Racks below the root, while nothing is granted as they would be: those below the one at n are at 2n + 1 and
        2n + 2."""
        self._has_begun = False
        self._is_fed_from_below = False
        """The root had no reader when all began."""

    # --- who is there ------------------------------------------------------------------------------------------------

    def join(self, endpoint: str, name: str, now_ns: int) -> list[Meeting]:
        """One more reader, in the rack of this name."""
        rack = self._racks.setdefault(name, _Rack())
        if endpoint not in rack.members:
            rack.members.append(endpoint)
        if not self._has_begun:
            self._settle()
        elif name != self._home and name not in self._below:
            self._below.append(name)
        place = rack.members.index(endpoint)
        peers = [one for at, one in enumerate(rack.members) if are_peers(at, place)]
        made = [Meeting(endpoint, tuple(sorted(peers))), *(Meeting(peer, (endpoint,)) for peer in peers)]
        if self._has_begun:
            if len(rack.members) <= SOURCES_MAX:
                made += [Meeting(one.entry, (endpoint,)) for one in self._readers_of(name)]
            if not rack.entry and (name != self._home or self._is_fed_from_below):
                made += self._lead(name, endpoint, now_ns)
        return made

    def leave(self, endpoint: str, name: str, now_ns: int) -> list[Meeting]:
        """It is gone, and what it had."""
        rack = self._racks[name]
        if endpoint in rack.members:
            rack.members.remove(endpoint)
        self._unfit.discard(endpoint)
        return self._changed(endpoint, rack, name, now_ns)

    def set_fit(self, endpoint: str, name: str, now_ns: int, *, is_fit: bool) -> list[Meeting]:
        """Whether it may be an entry rather than others."""
        if is_fit:
            self._unfit.discard(endpoint)
        else:
            self._unfit.add(endpoint)
        return self._changed(endpoint, self._racks[name], name, now_ns) if not (is_fit and self._has_begun) else []

    def _changed(self, endpoint: str, rack: _Rack, name: str, now_ns: int) -> list[Meeting]:
        """It may be no entry any more."""
        if not self._has_begun:
            self._settle()
        elif rack.entry == endpoint:
            rack.entry = self._entry_of(rack)
            if rack.entry not in ("", endpoint):
                return self._lead(name, rack.entry, now_ns)
        return []

    def _entry_of(self, rack: _Rack) -> str:
        members = [one for one in rack.members if one not in self._unfit] or rack.members
        return members[self._turn % len(members)] if members else ""

    def _settle(self) -> None:
        """Work out who would be where."""
        below = sorted(name for name, rack in self._racks.items() if rack.members and name != self._home)
        first = self._turn * _stride(len(below)) % len(below) if below else 0
        self._below = below[first:] + below[:first]
        for name in below:
            self._racks[name].entry = self._entry_of(self._racks[name])

    # --- the tree ----------------------------------------------------------------------------------------------------

    def begin(self, now_ns: int) -> list[Meeting]:
        """The first piece is about to be granted: from now on it is settled who is where."""
        if self._has_begun:
            return []
        self._has_begun = True
        self._is_fed_from_below = not self._racks[self._home].members
        return [one for name in self._below for one in self._lead(name, self._racks[name].entry, now_ns)]

    def is_granted(self, endpoint: str, name: str) -> bool:
        """Whether the keeper itself gives it pieces."""
        if name == self._home:
            return True
        if endpoint != self._racks[name].entry:
            return False
        place = self._below.index(name)
        return self._racks[name].climbed > _depth(place) or (not place and not self._racks[self._home].members)

    def _above(self, name: str) -> list[str]:
        """Racks that this one reads from, the nearest first."""
        if name == self._home:  # what was granted before its first reader came is below
            return self._below[:1] if self._is_fed_from_below else []
        place, above = self._below.index(name), []
        while place > 0:
            place = (place - 1) // 2
            above.append(self._below[place])
        return [*above, self._home][: 1 + self._racks[name].climbed]

    def _readers_of(self, name: str) -> Iterator[_Rack]:
        """Racks whose entry reads from this one."""
        for other, rack in self._racks.items():
            if rack.entry and name in self._above(other):
                yield rack

    def _lead(self, name: str, endpoint: str, now_ns: int) -> list[Meeting]:
        """It reads from outside."""
        rack = self._racks[name]
        rack.entry, rack.changed_ns = endpoint, now_ns
        rack.missed_ns.clear()
        found = [self._some(self._racks[other].members) for other in self._above(name)]
        return [Meeting(endpoint, sources) for sources in found if sources]

    def _some(self, members: list[str]) -> tuple[str, ...]:
        first = self._turn % len(members) if members else 0
        return tuple((members[first:] + members[:first])[:SOURCES_MAX])

    # --- faults ------------------------------------------------------------------------------------------------------

    def missed(self, endpoint: str, name: str, piece: int, now_ns: int) -> tuple[str, list[Meeting]]:
        """A reader that the keeper gives nothing misses a piece that somebody was granted: the entry that is replaced,
        if one is, and who reads from whom now."""
        rack = self._racks[name]
        rack.missed_ns = {one: at for one, at in rack.missed_ns.items() if now_ns - at < FORGOTTEN_NS}
        if len(rack.missed_ns) < MISSED_MAX:
            rack.missed_ns.setdefault((endpoint, piece), now_ns)
        first_ns = rack.missed_ns.get((endpoint, piece), now_ns)
        if now_ns - max(first_ns, rack.changed_ns) < PATIENCE_NS:
            return "", []
        if endpoint == rack.entry:
            rack.climbed += 1
            return "", self._lead(name, endpoint, now_ns)
        if (rack.entry, piece) in rack.missed_ns:
            return "", []
        return rack.entry, self._lead(name, endpoint, now_ns)


def _depth(place: int) -> int:
    """Racks between the root and one below it."""
    return (place + 1).bit_length() - 1


def _stride(count: int) -> int:
    """About half of it, and without a common divisor: who has others below it for one chunk has none for the next."""
    return next(one for one in range(count // 2 + 1, count + 2) if gcd(one, count) == 1)
