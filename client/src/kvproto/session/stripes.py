"""Reliable reads of a reader: stripes under way, how large the next one should be."""

from dataclasses import dataclass

from kvproto.events import HolderRef
from kvproto.ids import NodeId, ReadId
from kvproto.session.chunk import Chunk
from kvproto.session.pace import Pace
from kvproto.session.timing import (
    FRESH_STRIPE,
    READ_STALL_NS,
    STRIPE,
    STRIPE_GROWTH,
    STRIPE_SEGMENTS_MAX,
    STRIPE_START_SEGMENTS,
    STRIPES_AT_ONCE,
)


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


class Stripes:
    """All reliable reads of one reader that have not ended."""

    __slots__ = ("_ended_ns", "_next", "_pace", "_rate", "_reads", "_size", "_tested")

    def __init__(self, pace: Pace) -> None:
        self._pace = pace
        self._reads: dict[ReadId, Stripe] = {}
        self._next = 1
        self._size = STRIPE_START_SEGMENTS
        self._rate = 0.0
        """Segments per second of the last stripe that said something."""
        self._tested = False
        self._ended_ns = 0

    def next_size(self, *, fresh: bool) -> int:
        """Segments that the next stripe should have, 0: none may start now.

        About STRIPE of the rate that was seen. `fresh`: the fetch has only begun, others may be about to join; so
        only as much as does not hurt if they do.
        """
        budget = STRIPES_AT_ONCE * self._size
        if fresh:
            budget = max(STRIPE_START_SEGMENTS, int(self._rate * self._pace.ns(FRESH_STRIPE) / 1e9))
        size = min(self._size, budget)
        if not self._reads:
            return size
        outstanding = sum(stripe.count for stripe in self._reads.values())
        return size if self._tested and outstanding + size <= budget else 0

    @property
    def count(self) -> int:
        """Reads under way."""
        return len(self._reads)

    def next_read(self) -> ReadId:
        """A name for a read that no other has."""
        self._next += 1
        return ReadId(self._next - 1)

    def start(self, chunk: Chunk, holder: HolderRef, first: int, count: int, now_ns: int) -> Stripe:
        """A read of free segments goes out."""
        stripe = Stripe(self.next_read(), chunk, holder, first, count, now_ns, now_ns)
        self._reads[stripe.read] = stripe
        chunk.progress.begin_read(first, count)
        return stripe

    def get(self, read: ReadId) -> Stripe | None:
        """A read that is under way."""
        return self._reads.get(read)

    def progress(self, stripe: Stripe, now_ns: int) -> None:
        """Some of it came. A holder serves reads in order, so the others from there have not stalled either."""
        for each in self.of_holder(stripe.holder.node):
            each.progress_ns = now_ns

    def finish(self, stripe: Stripe, now_ns: int) -> float:
        """It is complete. Returns the rate at which it came, segments per second, and sizes the next ones."""
        self.progress(stripe, now_ns)
        self.end(stripe)
        elapsed_ns = max(1, now_ns - max(stripe.started_ns, self._ended_ns))
        self._ended_ns = now_ns
        rate = stripe.count * 1e9 / elapsed_ns
        wanted = rate * self._pace.least_ns(STRIPE) / 1e9
        # A stripe cut short by its chunk's end took its round trip all the same: it says nothing of larger ones.
        if wanted > self._size or stripe.count >= self._size:
            self._rate = rate
            size = min(wanted, STRIPE_GROWTH * self._size) if wanted > self._size else (self._size + wanted) / 2
            self._size = int(min(STRIPE_SEGMENTS_MAX, max(STRIPE_START_SEGMENTS, size)))
        self._tested = True
        return rate

    def end(self, stripe: Stripe) -> None:
        """It is over, one way or the other: its segments are no longer under a read."""
        del self._reads[stripe.read]
        stripe.chunk.progress.end_read(stripe.first, stripe.count)

    def of_chunk(self, chunk: Chunk) -> list[Stripe]:
        """Reads of one chunk."""
        return [stripe for stripe in self._reads.values() if stripe.chunk is chunk]

    def of_holder(self, node: NodeId) -> list[Stripe]:
        """Reads from one holder."""
        return [stripe for stripe in self._reads.values() if stripe.holder.node == node]

    def stalled(self, now_ns: int) -> list[Stripe]:
        """Reads that have made no progress for too long."""
        return [stripe for stripe in self._reads.values() if now_ns - stripe.progress_ns >= READ_STALL_NS]

    def next_timeout_ns(self) -> int | None:
        """When the next read may stall."""
        return min((stripe.progress_ns + READ_STALL_NS for stripe in self._reads.values()), default=None)
