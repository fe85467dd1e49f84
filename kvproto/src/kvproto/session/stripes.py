"""Reliable reads of a reader: stripes under way, how large the next one should be."""

from collections import deque
from dataclasses import dataclass
from typing import Final, NamedTuple

from kvproto.events import HolderRef
from kvproto.ids import NodeId, ReadId
from kvproto.session.chunk import Chunk
from kvproto.session.pace import Pace
from kvproto.session.timing import (
    FRESH_STRIPE,
    HOLDER_FAILURES_MAX,
    READ_SILENCE,
    READ_STALL_NS,
    STRIPE,
    STRIPE_GROWTH,
    STRIPE_ROUND_SEGMENTS,
    STRIPE_SEGMENTS_MAX,
    STRIPE_START_SEGMENTS,
    STRIPES_AT_ONCE,
)

_ENDED_REMEMBERED = 4
"""Twice as many reads as are under way at a time, mostly."""


class ReadNumbers(NamedTuple):
    """How one of several readers of a node names its reads, so that no two are alike."""

    first: int
    step: int

    def has(self, read: ReadId) -> bool:
        """Whether it is one of them."""
        return (read - self.first) % self.step == 0


ONE_READER: Final = ReadNumbers(1, 1)


@dataclass(slots=True, eq=False)
class Stripe:
    """One reliable read: consecutive segments of one chunk from one holder."""

    read: ReadId
    chunk: Chunk
    holder: HolderRef
    first: int
    count: int
    started_ns: int
    progress_ns: int
    have: int = 0
    """So many of its segments, the first ones, lie in memory."""
    silent: bool = False
    """Nothing has come of it, nor of others from that holder, for READ_SILENCE."""


class Stripes:
    """All reliable reads of one reader that have not ended."""

    __slots__ = ("_ended", "_next", "_pace", "_rails", "_rate", "_size", "_step", "_tested", "health", "reads")

    def __init__(self, pace: Pace, rails: int = 1, numbers: ReadNumbers = ONE_READER) -> None:
        """`rails`: each is to have as much under way as if it were the only one."""
        self._pace = pace
        self._rails = rails
        self._step = numbers.step
        self.health = Health()
        self.reads: dict[ReadId, Stripe] = {}
        self._next = numbers.first
        self._size = STRIPE_START_SEGMENTS
        self._rate = 0.0
        """Segments per second of the last stripe that said something."""
        self._tested = False
        self._ended: deque[tuple[int, int]] = deque(maxlen=_ENDED_REMEMBERED + 1)
        """When the latest reads ended, and their segments, since when some have been under way all the time. Before the
        first of them: when it began, and none."""

    def next_size(self, *, fresh: bool) -> int:
        """Segments that the next stripe should have, 0: none may start now.

        About STRIPE of the rate that was seen. `fresh`: the fetch has only begun, others may be about to join; so
        only as much as does not hurt if they do.
        """
        budget = STRIPES_AT_ONCE * self._rails * self._size
        if fresh:
            budget = max(STRIPE_START_SEGMENTS, int(self._rate * self._pace[FRESH_STRIPE] / 1e9))
        size = min(self._size, budget)
        if size >= 8 * STRIPE_ROUND_SEGMENTS:
            size -= size % STRIPE_ROUND_SEGMENTS
        if not self.reads:
            return size
        if not self._tested:
            return 0
        outstanding = sum([stripe.count for stripe in self.reads.values()])
        return size if outstanding + size <= budget else 0

    def next_read(self) -> ReadId:
        """A name for a read that no other has."""
        self._next += self._step
        return ReadId(self._next - self._step)

    def start(self, chunk: Chunk, holder: HolderRef, first: int, count: int, now_ns: int) -> Stripe:
        """A read of free segments goes out."""
        if not self.reads:
            self._ended.clear()
            self._ended.append((now_ns, 0))
        self._next += self._step
        stripe = Stripe(ReadId(self._next - self._step), chunk, holder, first, count, now_ns, now_ns)
        self.reads[stripe.read] = stripe
        chunk.progress.begin_read(first, count)
        return stripe

    def progress(self, stripe: Stripe, now_ns: int) -> None:
        """Some of it came. A holder serves reads in order, so the others from there have not stalled either."""
        node = stripe.holder.node
        for each in self.reads.values():
            if each.holder.node == node:
                each.progress_ns, each.silent = now_ns, False

    def finish(self, stripe: Stripe, now_ns: int) -> float:
        """It is complete. Returns the rate, segments per second, at which reads came of late, and sizes the next ones.

        After a loss, or a pause of this process, several end together. The last one alone would seem to take no time,
        so the link is judged by several; sizes, which are bounded, follow each at once.
        """
        self.progress(stripe, now_ns)
        self.end(stripe)
        if self.health.has_failed:
            self.health.worked(stripe.holder.node)
        rate = stripe.count * 1e9 / max(1, now_ns - max(stripe.started_ns, self._ended[-1][0]))
        self._ended.append((now_ns, stripe.count))
        came = sum([count for _, count in self._ended]) - self._ended[0][1]
        wanted = rate * self._pace.least_ns(STRIPE) / 1e9
        # A stripe cut short by its chunk's end took its round trip all the same: it says nothing of larger ones.
        if wanted > self._size or stripe.count >= self._size:
            self._rate = rate
            size = min(wanted, STRIPE_GROWTH * self._size) if wanted > self._size else (self._size + wanted) / 2
            self._size = int(min(STRIPE_SEGMENTS_MAX, max(STRIPE_START_SEGMENTS, size)))
        self._tested = True
        return came * 1e9 / max(1, now_ns - self._ended[0][0])

    def end(self, stripe: Stripe) -> None:
        """It is over, one way or the other: its segments are no longer under a read."""
        del self.reads[stripe.read]
        stripe.chunk.progress.end_read(stripe.first, stripe.count)

    def of_chunk(self, chunk: Chunk) -> list[Stripe]:
        """Reads of one chunk."""
        return [stripe for stripe in self.reads.values() if stripe.chunk is chunk]

    def stalled(self, now_ns: int) -> list[Stripe]:
        """Reads that have made no progress for too long."""
        return [stripe for stripe in self.reads.values() if now_ns - stripe.progress_ns >= READ_STALL_NS]

    def fall_silent(self, now_ns: int) -> list[Stripe]:
        """Reads that have been silent for READ_SILENCE from now on."""
        silence_ns = self._pace[READ_SILENCE]
        fallen = [one for one in self.reads.values() if not one.silent and now_ns - one.progress_ns >= silence_ns]
        for stripe in fallen:
            stripe.silent = True
        return fallen

    @property
    def silent(self) -> list[Stripe]:
        """Reads of which nothing has come for READ_SILENCE."""
        return [stripe for stripe in self.reads.values() if stripe.silent]

    def next_timeout_ns(self) -> int:
        """When the next read may fall silent, or stall; there must be one."""
        silence_ns = self._pace[READ_SILENCE]
        return min([one.progress_ns + (READ_STALL_NS if one.silent else silence_ns) for one in self.reads.values()])


class Health:
    """Which holders have failed lately: connections that broke, with nothing from them since."""

    __slots__ = ("_failed_ns", "has_failed")

    def __init__(self) -> None:
        self.has_failed: dict[NodeId, int] = {}
        """How often, since something came from it."""
        self._failed_ns: dict[NodeId, int] = {}
        """When the last failure that counts was seen."""

    def failed(self, node: NodeId, started_ns: int, now_ns: int) -> bool:
        """A read from it that began at `started_ns` failed. Returns whether it counts as gone now.

        A connection takes all its reads with it when it breaks: reads that were under way together fail once.
        """
        if node in self.has_failed and started_ns < self._failed_ns[node]:
            return False
        self._failed_ns[node] = now_ns
        failures = self.has_failed[node] = self.has_failed.get(node, 0) + 1
        if failures < HOLDER_FAILURES_MAX:
            return False
        self.worked(node)
        return True

    def worked(self, node: NodeId) -> None:
        """Something came from it."""
        if node in self.has_failed:
            del self.has_failed[node], self._failed_ns[node]
