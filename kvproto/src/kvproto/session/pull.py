"""What a reader has asked for by GET: batches under way, which of their segments are lost, the window."""

from collections import Counter
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from kvchunk.ids import ChunkKey
from kvproto.ids import NodeId
from kvproto.session.chunk import Chunk
from kvproto.session.pace import Pace
from kvproto.session.timing import (
    GAP,
    GAP_SEGMENTS,
    PULL_TIMEOUT_MIN,
    PULL_TIMEOUT_QUIET,
    WINDOW_DELAY,
    WINDOW_DELAY_MAX_NS,
    WINDOW_MIN,
    WINDOW_REACTION_NS,
)
from kvproto.session.window import Window


@dataclass(slots=True, eq=False)
class Batch:
    """One GET: consecutive segments of one chunk asked for together."""

    serial: int
    chunk: Chunk
    holder: NodeId
    first: int
    count: int
    sent_ns: int
    left: int
    """Segments that have not come, by whatever way."""
    progress_ns: int
    """When its last segment came; when it was sent, as long as none has."""
    early: bool
    """Another member may have asked for the same segments before: that they come says nothing of earlier GETs."""


class Pull:
    """All GETs of one reader that are under way. Path and holder keep order, so a segment that is overtaken is lost."""

    __slots__ = (
        "_batches",
        "_by_switch",
        "_ended",
        "_lost",
        "_overtaken",
        "_pace",
        "_progress_ns",
        "_serial",
        "outstanding",
        "quiet",
        "timeouts",
        "window",
    )

    def __init__(self, limit_segments: int, pace: Pace) -> None:
        self._pace = pace
        self.window = Window(limit_segments)
        self.outstanding = 0
        """Segments asked for and not yet here nor lost."""
        self._ended = 0
        self._lost = 0
        """Segments of GETs that ended, and how many of them were lost, both halved now and then."""
        self.quiet = False
        """No segments that others pull are under way to us."""
        self._serial = 0
        self._by_switch = False
        """The last GET was for a chunk that the switch serves."""
        self._batches: dict[int, Batch] = {}
        self._overtaken: dict[NodeId, int] = {}
        self._progress_ns = 0
        self.timeouts = 0
        """How many times in a row none of the requested segments came."""

    def keep_pace(self) -> None:
        """Bring the window's times in line with what was measured."""
        late_ns = 0 if self._by_switch else max(0, (self._pace.reaction_ns or 0) - WINDOW_REACTION_NS)
        self.window.target_ns = min(WINDOW_DELAY_MAX_NS, self._pace[WINDOW_DELAY] + late_ns)
        self.window.timeout_min_ns = self._pace[PULL_TIMEOUT_MIN]

    def ask(self, chunk: Chunk, holder: NodeId, first: int, count: int, now_ns: int, *, early: bool = False) -> None:
        """A GET for segments [first, first+count), all of them missing and asked for by no other, goes out.

        `early`: another member has been pulling the chunk, and they may come by what it asked for.
        """
        if not self._batches:
            self._progress_ns = now_ns
        self._serial += 1
        batch = Batch(self._serial, chunk, holder, first, count, now_ns, count, now_ns, early)
        self._batches[batch.serial] = batch
        chunk.progress.ask(first, count, batch.serial)
        self._by_switch = chunk.interest.cached
        self.outstanding += count

    def arrived(self, serials: npt.NDArray[np.int32], now_ns: int) -> None:
        """Missing segments have come that the GETs with these serials had asked for, one entry per segment."""
        if not len(serials):
            return
        self._progress_ns = now_ns
        self.timeouts = 0
        for serial, count in _counts(serials):
            batch = self._batches[serial]
            batch.left -= count
            batch.progress_ns = now_ns
            self.outstanding -= count
            if not batch.early and batch.count - batch.left >= min(GAP_SEGMENTS, batch.count):
                self._overtaken[batch.holder] = max(self._overtaken.get(batch.holder, 0), serial)
            if not batch.left:
                self._end(batch, now_ns)

    def shared(self, chunk: Chunk) -> None:
        """Another member pulls the chunk, too."""
        for batch in self._batches.values():
            if batch.chunk is chunk:
                batch.early = True

    def find_lost(self, now_ns: int) -> int:
        """Give up what later GETs have overtaken. Returns how many segments may be asked for again."""
        lost, gap_ns = 0, self._pace[GAP]
        for batch in list(self._batches.values()):
            newest = self._overtaken.get(batch.holder, 0)
            if batch.serial < newest and now_ns - batch.progress_ns >= gap_ns:
                lost += batch.left
                self._end(batch, now_ns)
        return lost

    def expire(self, now_ns: int) -> list[Chunk]:
        """If nothing has come for too long, give everything up. Returns the chunks concerned."""
        due = self._timeout_ns()
        if due is None or now_ns < due:
            return []
        chunks: dict[ChunkKey, Chunk] = {}
        for batch in list(self._batches.values()):
            chunks[batch.chunk.key] = batch.chunk
            self._count(batch)
            self._release(batch)
        self.timeouts += 1
        self.window.on_timeout(now_ns)
        return list(chunks.values())

    def forget(self, chunk: Chunk) -> None:
        """The chunk is whole, dropped or read otherwise: its segments under way no longer count."""
        for batch in [batch for batch in self._batches.values() if batch.chunk is chunk]:
            self._release(batch)

    def next_timeout_ns(self) -> int | None:
        """When `find_lost` or `expire` has something to do at the latest."""
        due, gap_ns = self._timeout_ns(), self._pace[GAP]
        for batch in self._batches.values():
            if batch.serial < self._overtaken.get(batch.holder, 0):
                gap = batch.progress_ns + gap_ns
                due = gap if due is None else min(due, gap)
        return due

    @property
    def loss(self) -> float:
        """Recent share of what was asked for that did not come; 0 while little was asked for."""
        return self._lost / self._ended if self._ended >= 32 else 0.0

    def forget_losses(self) -> None:
        """Losses so far say nothing about segments asked for from now on."""
        self._ended = self._lost = 0

    def _timeout_ns(self) -> int | None:
        if not self._batches:
            return None
        oldest = next(iter(self._batches.values()))
        few = self.quiet and self.outstanding <= WINDOW_MIN
        timeout_ns = (
            min(self._pace[PULL_TIMEOUT_QUIET] << min(8, self.timeouts), self.window.timeout_ns)
            if few
            else self.window.timeout_ns
        )
        return max(self._progress_ns, oldest.sent_ns) + timeout_ns

    def _end(self, batch: Batch, now_ns: int) -> None:
        """All of it has come or is lost: teach the window."""
        lost = batch.left
        self._count(batch)
        self._release(batch)
        self.window.on_batch(batch.count - lost, lost, batch.progress_ns - batch.sent_ns, now_ns)

    def _count(self, batch: Batch) -> None:
        """Keep the share of lost segments recent."""
        self._ended += batch.count
        self._lost += batch.left
        if self._ended > 256:
            self._ended //= 2
            self._lost //= 2

    def _release(self, batch: Batch) -> None:
        """Its segments may be asked for again."""
        del self._batches[batch.serial]
        self.outstanding -= batch.left
        if batch.left:
            batch.chunk.progress.end_ask(batch.first, batch.count, batch.serial)


def _counts(serials: npt.NDArray[np.int32]) -> list[tuple[int, int]]:
    """(serial, how often it is there), ascending. Mostly they are few: segments come batch by batch."""
    # Not np.unique: its first call imports numpy.ma, 8 ms of a core in the middle of a fetch.
    ends = [*((serials[1:] != serials[:-1]).nonzero()[0] + 1).tolist(), len(serials)]
    counts: Counter[int] = Counter()
    first = 0
    for end in ends:
        counts[int(serials[first])] += end - first
        first = end
    return sorted(counts.items())
