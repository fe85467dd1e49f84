"""By which rail each read from one peer goes. A rail is a network of its own: NIC k of every node is on rail k.

A read goes where it ends first, by what each rail has brought of late. A rail that brings nothing, or so little that
another one would be sooner, loses its reads to the others. One that is left is tried by a connection that carries
nothing until it answers: no read waits for it.
"""

import hashlib
import math
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from kvchunk.ids import ChunkKey
from kvproto.limits import MS, RAILS_MAX

LOOK_NS: Final = 50 * MS
"""Between two looks, while there are reads."""
QUIET_NS: Final = 200 * MS
"""A rail is left that brings nothing for so long while others do, or may, or for twice as long as the read in front
takes at its rate. With LOOK_NS less than the 0.3 s after which nothing waits for it any more."""
LATE_FACTOR: Final = 3
"""A rail of which the read in front is as old as that loses reads that take less than 1/LATE_FACTOR of the time on
another one. What is under way comes twice then: on shared links TCP is not fair, and a factor of 2 costs more."""
AGAIN_NS: Final = 250 * MS
AGAIN_NS_MAX: Final = 4_000 * MS
"""A rail is tried so long after it was left; twice as long each time that it is left before it has brought a read."""
TRY_NS: Final = 500 * MS
"""And so long after it could not be reached."""
FORGET_NS: Final = 1_000 * MS
"""A rail's rate counts as twice as much after each of these without a read, at most as the best one's: a rail that was
slow is tried."""
WEIGHT_EXPONENT_MIN: Final = -10
"""No rail is worth less than 1/1024 of the best."""
_ENDS: Final = 5


def rail_of(key: ChunkKey, weights: Sequence[float]) -> int:
    """The rail of a chunk that several nodes want, by rendezvous hashing: each rail has its share of all chunks, and
    when a weight changes, chunks move to or from that rail only. `weights`: of each rail, 0: none goes there."""
    if len(weights) == 1:
        return 0
    digest = hashlib.blake2b(key, digest_size=8 * len(weights)).digest()

    def score(index: int) -> float:
        drawn = (int.from_bytes(digest[8 * index : 8 * index + 8], "big") + 0.5) / 2**64
        return -math.log(drawn) / weights[index] if weights[index] else math.inf

    return min(range(len(weights)), key=score)


@dataclass(slots=True, eq=False)
class _Read:
    size_bytes: int
    rail: int
    since_ns: int
    tried: set[int] = field(default_factory=set)
    """Rails that broke under it."""


@dataclass(slots=True, eq=False)
class _Rail:
    index: int
    reads: OrderedDict[int, _Read] = field(default_factory=OrderedDict)
    """In the order of asking, in which they end."""
    queued_bytes: int = 0
    rate: float = 0.0
    """Bytes per second; 0: not known."""
    ends: deque[tuple[int, int]] = field(default_factory=lambda: deque(maxlen=_ENDS))
    """When the latest reads ended, and their bytes, since when there have been some all the time. Before the first of
    them: when it began, and none."""
    heard_ns: int = 0
    """When it last brought something, or got reads after it had none."""
    muted_ns: int = 0
    """How long reads, given up by their asker, waited since it brought something."""
    last: int = 0
    """The read that it got last."""
    left: bool = False
    again_ns: int = 0
    wait_ns: int = AGAIN_NS
    is_tried: bool = False

    def hear(self, now_ns: int) -> None:
        """It brought something."""
        self.heard_ns, self.muted_ns = now_ns, 0

    def learn(self, size_bytes: int, now_ns: int) -> None:
        """A read of so many bytes ended. Several may end together, so the rate is that of several."""
        self.wait_ns = AGAIN_NS
        self.hear(now_ns)
        self.ends.append((now_ns, size_bytes))
        came = sum(size for _, size in self.ends) - self.ends[0][1]
        self.rate = came * 1e9 / max(1, now_ns - self.ends[0][0])

    def is_quiet(self, for_ns: int, now_ns: int) -> bool:
        return bool(self.reads) and now_ns - self.heard_ns + self.muted_ns >= for_ns


class Rails:
    """Owns which read is on which rail, and what each rail is worth, of one peer."""

    def __init__(self, count: int, loads: list[int] | None = None, *, hears_all: bool = False) -> None:
        """`loads`: bytes under way on each rail, from all peers of this node, which share it; `hears_all`: `progress`
        tells of all that comes, not of whole reads alone. Raises ValueError for a number of rails that cannot be."""
        self._hears_all = hears_all
        if not 1 <= count <= RAILS_MAX:
            raise ValueError(f"{count} rails: 1 to {RAILS_MAX} are possible")
        self._loads = [0] * count if loads is None else loads
        self.each = [_Rail(index) for index in range(count)]
        """In their order, to be read."""
        self._reads: dict[int, _Read] = {}
        self._looked_ns = 0

    @property
    def left(self) -> tuple[int, ...]:
        """Rails that are not used at the moment."""
        return tuple(index for index, rail in enumerate(self.each) if rail.left)

    @property
    def is_busy(self) -> bool:
        """Whether there are reads."""
        return bool(self._reads)

    def begin(self, number: int, size_bytes: int, now_ns: int, wanted_bytes: int = 0) -> int:
        """A read is wanted: its rail. `wanted_bytes`: so much is still wanted of the peer, with this read; 0: no more
        than this. A slow rail without reads gets one that ends before all of that."""
        if not self._reads:
            self._looked_ns = now_ns
        read = self._reads[number] = _Read(size_bytes, 0, now_ns)
        rates = [(self._rate(rail, now_ns), i) for i, rail in enumerate(self.each) if not rail.left]
        all_s = wanted_bytes / sum(rate for rate, _ in rates) if rates else 0.0
        idle = [i for rate, i in rates if not self._loads[i] and size_bytes / rate <= all_s]
        read.rail = self._choose(read, idle or range(len(self.each)), now_ns)
        self._add(number, read, now_ns)
        return read.rail

    def place(self, number: int, size_bytes: int, rail: int, now_ns: int) -> int:
        """What others expect on this rail, too, is wanted: its rail, which is another one only if that is left."""
        if not self._reads:
            self._looked_ns = now_ns
        read = self._reads[number] = _Read(size_bytes, rail, now_ns)
        if self.each[rail].left:
            read.rail = self._choose(read, range(len(self.each)), now_ns)
        self._add(number, read, now_ns)
        return read.rail

    def steal(self, may: Callable[[int], bool], now_ns: int) -> list[tuple[int, int]]:
        """Rails without reads get the last ones of others that `may` go and end sooner there, each with that rail."""
        moved: list[tuple[int, int]] = []
        for idle in [one for one in self.each if not one.reads and not one.left]:
            busy = max(self.each, key=lambda one: one.queued_bytes)
            number = next((one for one in reversed(busy.reads) if may(one)), None) if len(busy.reads) > 1 else None
            if number is not None:
                read, rate = self._reads[number], self._rate(busy, now_ns)
                if self._needs_s(idle, read, now_ns) < busy.queued_bytes / rate:
                    moved.append((number, self._move(number, read, [idle.index], now_ns)))
        return moved

    def weights(self, now_ns: int) -> tuple[float, ...]:
        """What each rail is worth beside the best: powers of two, so that nodes which measure nearly the same agree."""
        rates = [self._rate(rail, now_ns) for rail in self.each]
        best = max(rates)
        return tuple(2.0 ** max(WEIGHT_EXPONENT_MIN, round(math.log2(rate / best))) for rate in rates)

    def progress(self, number: int, now_ns: int) -> None:
        """Some of a read came."""
        self.each[self._reads[number].rail].hear(now_ns)

    def end(self, number: int, now_ns: int) -> None:
        """All of it came."""
        rail = self.each[self._reads[number].rail]
        rail.left = False
        rail.learn(self._reads[number].size_bytes, now_ns)
        self.forget(number, now_ns)

    def forget(self, number: int, now_ns: int) -> None:
        """It is not wanted any more, or cannot be had."""
        read = self._reads.pop(number)
        self._drop(number, read)
        rail = self.each[read.rail]
        if not rail.reads:
            rail.muted_ns += now_ns - rail.heard_ns

    def fail(self, number: int, now_ns: int) -> int | None:
        """Its connection broke, or could not be made: the rail that it goes by now; None: all broke under it, and it is
        forgotten."""
        read = self._reads[number]
        read.tried.add(read.rail)
        others = set(range(len(self.each))) - read.tried
        if not others:
            self.forget(number, now_ns)
            return None
        self._leave(self.each[read.rail], now_ns)
        return self._move(number, read, others, now_ns)

    def look(self, now_ns: int) -> list[tuple[int, int]]:
        """Reads that go by another rail from now on, each with that rail."""
        late, self._looked_ns = now_ns - self._looked_ns > 2 * LOOK_NS, now_ns
        if late or len(self.each) == 1:
            return []  # this process did not run: what came meanwhile has not been seen
        moved: list[tuple[int, int]] = []
        for index, rail in enumerate(self.each):
            others = [other for other, one in enumerate(self.each) if other != index and not one.left]
            alive = [other for other in others if not self.each[other].is_quiet(QUIET_NS // 2, now_ns)]
            if alive and rail.is_quiet(QUIET_NS if self._hears_all else _patience_ns(rail), now_ns):
                self._leave(rail, now_ns)
                moved += [(one, self._move(one, read, alive, now_ns)) for one, read in list(rail.reads.items())]
            elif alive:
                moved += self._late(rail, alive, now_ns)
        return moved

    def others_work(self, number: int, now_ns: int) -> bool:
        """Whether a read would be moved if nothing came of it."""
        here = self._reads[number].rail
        others = [rail for rail in self.each if rail.index != here and not rail.left]
        return any(not rail.is_quiet(QUIET_NS // 2, now_ns) for rail in others)

    def to_try(self, now_ns: int) -> list[int]:
        """Rails to which a connection is to be tried now; `tried` says how that ended."""
        due = [i for i, one in enumerate(self.each) if one.left and not one.is_tried and one.again_ns <= now_ns]
        for index in due:
            self.each[index].is_tried = True
        return due

    def tried(self, index: int, reached: bool, now_ns: int) -> None:
        """A connection to a rail that was left could be made, or not."""
        rail = self.each[index]
        rail.is_tried = False
        rail.left, rail.muted_ns = not reached, 0
        rail.again_ns = now_ns + TRY_NS

    def next_ns(self, now_ns: int) -> int | None:
        """When to look, and to try, next; None: not before the next read."""
        dues = [one.again_ns for one in self.each if one.left and not one.is_tried]
        return min([*dues, *([now_ns + LOOK_NS] if self._reads else [])], default=None)

    # -- inside

    def _choose(self, read: _Read, among: Iterable[int], now_ns: int) -> int:
        """Where it ends first; of several the one that has had no read for longest. Those that are left come last."""

        def order(index: int) -> tuple[bool, float, int]:
            rail = self.each[index]
            return rail.left, self._needs_s(rail, read, now_ns), rail.last

        return min(among, key=order)

    def _needs_s(self, rail: _Rail, read: _Read, now_ns: int) -> float:
        return (self._loads[rail.index] + read.size_bytes) / self._rate(rail, now_ns)

    def _rate(self, rail: _Rail, now_ns: int) -> float:
        """What it is taken to bring."""
        best = max(one.rate for one in self.each) or 1.0
        if rail.reads or not rail.rate:
            return rail.rate or best
        return min(best, rail.rate * 2.0 ** min(64, (now_ns - rail.heard_ns) // FORGET_NS))

    def _late(self, rail: _Rail, others: list[int], now_ns: int) -> list[tuple[int, int]]:
        """The last ones first: they would wait for those before them."""
        moved: list[tuple[int, int]] = []
        reads = list(rail.reads.items())
        for number, read in reversed(reads):
            front = reads[0][1]
            age_ns = now_ns - max(front.since_ns, rail.ends[-1][0])
            if age_ns < _patience_ns(rail):
                break
            # It has not come in all that time: the rail brings no more than that.
            rate = max(1.0, min(rail.rate or math.inf, front.size_bytes * 1e9 / age_ns))
            best = self._choose(read, others, now_ns)
            if LATE_FACTOR * self._needs_s(self.each[best], read, now_ns) >= rail.queued_bytes / rate:
                break
            rail.rate = rate
            moved.append((number, self._move(number, read, [best], now_ns)))
        if reads and not rail.reads:
            self._leave(rail, now_ns)
        return moved

    def _move(self, number: int, read: _Read, among: Iterable[int], now_ns: int) -> int:
        self._drop(number, read)
        read.rail, read.since_ns = self._choose(read, among, now_ns), now_ns
        self._add(number, read, now_ns)
        return read.rail

    def _add(self, number: int, read: _Read, now_ns: int) -> None:
        rail = self.each[read.rail]
        if not rail.reads:
            rail.heard_ns = now_ns
            rail.ends.clear()
            rail.ends.append((now_ns, 0))
        rail.reads[number], rail.last = read, number
        rail.queued_bytes += read.size_bytes
        self._loads[read.rail] += read.size_bytes

    def _drop(self, number: int, read: _Read) -> None:
        rail = self.each[read.rail]
        del rail.reads[number]
        rail.queued_bytes -= read.size_bytes
        self._loads[read.rail] -= read.size_bytes

    def _leave(self, rail: _Rail, now_ns: int) -> None:
        if not rail.left:
            rail.left = True
            rail.again_ns, rail.wait_ns = now_ns + rail.wait_ns, min(2 * rail.wait_ns, AGAIN_NS_MAX)


def _patience_ns(rail: _Rail) -> int:
    """How old the read in front may be."""
    if not (rail.reads and rail.rate):
        return QUIET_NS
    front = next(iter(rail.reads.values()))
    return max(QUIET_NS, int(2e9 * front.size_bytes / rail.rate))
