"""Chunks of a long fetch that are here: kept in slices, before what is not here is planned as a whole. Pure.

To keep thousands of chunks takes as long as dozens of puts. So the shell names the chunks of a long fetch before it
requests them (`events.ChunksNamed`), a slice at a time, and handles what others ask in between. Of each slice what is
here is pinned at once: no eviction takes it any more. In a prefix that ends with the first chunk that is not here, for
how far the rest is worth bringing is decided for all of it at once (`hostagent.core.fetches`).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from hostagent.core.effects import ChunkUse
from hostagent.core.events import ChunksNamed
from hostagent.core.fetch import Kept
from hostagent.core.fetches import Fetches
from hostagent.core.node import Node
from hostagent.pool.chunks import Chunk, touch_of
from kvchunk.ids import ChunkKey
from kvchunk.sources import ChunkSource
from kvclient.messages import FetchedChunk, Status
from kvpolicy.value import Touch


@dataclass(slots=True)
class Gathered:
    """What is here of one fetch, pinned, in the order of its keys. How it goes on is another's business."""

    asked_ns: int
    deadline_ns: int
    status: Status = Status.OK
    """Why no more of the fetch is looked for, if so: its deadline has passed, or it was cancelled."""
    named_count: int = 0
    """Leading keys that were looked for."""
    chunks: list[Chunk] = field(default_factory=list)
    told: list[FetchedChunk] = field(default_factory=list)
    """The same chunks, for the engine."""
    uses: list[ChunkUse] = field(default_factory=list)
    """And for the controller."""
    places: list[int] = field(default_factory=list)
    """Of a fetch in any order: index of each chunk's key."""
    missing: list[ChunkKey] = field(default_factory=list)
    """Of a fetch in any order: keys whose chunks are not here."""
    size_bytes: int = 0

    def rest(self, keys: tuple[ChunkKey, ...]) -> tuple[ChunkKey, ...]:
        """What is to be brought of all keys of the fetch, in their order."""
        return () if self.status is not Status.OK else (*self.missing, *keys[self.named_count :])

    @property
    def kept(self) -> Kept:
        """For whoever brings the rest."""
        return Kept(tuple(self.chunks), self.size_bytes, self.asked_ns, self.status)

    def take(self) -> tuple[list[Chunk], list[FetchedChunk]]:
        """The chunks with their pins, which are the caller's then, and what the engine is told of them."""
        taken = self.chunks, self.told
        self.chunks, self.told = [], []
        return taken


class Gathering:
    """Keeps what is here. Whose fetches these are, it does not know."""

    def __init__(self, node: Node, fetches: Fetches) -> None:
        self._clock = node.clock
        self._pool = node.pool
        self._fetches = fetches

    def begin(self, deadline_s: float) -> Gathered:
        """Of a fetch whose chunks are about to be named."""
        now_ns = self._clock.now_ns
        return Gathered(now_ns, now_ns + int(deadline_s * 1e9))

    def chunks_named(self, gathered: Gathered, named: ChunksNamed, tenant: str) -> bool:
        """Keep what is here of a slice. Returns whether more of the fetch should be named."""
        if gathered.status is not Status.OK or gathered.named_count != named.first:
            return False
        now_ns = self._clock.now_ns
        if gathered.asked_ns < gathered.deadline_ns <= now_ns:
            gathered.status = Status.DEADLINE  # who gave no time at all gets what is here
            return False
        self._fetches.teach()
        pool, touches = self._pool, list[Touch]()
        for key in named.keys:
            chunk = pool.find(key)
            if chunk is not None and pool.lend(chunk, tenant):
                pool.pin(chunk)
                touches.append(touch_of(chunk))
                gathered.chunks.append(chunk)
                gathered.told.append(FetchedChunk(chunk.offset, chunk.size_bytes, ChunkSource.LOCAL))
                gathered.uses.append(ChunkUse(key, ChunkSource.LOCAL, 0, 0.0, 0, now_ns))
                gathered.size_bytes += chunk.size_bytes
                if named.any_order:
                    gathered.places.append(gathered.named_count)
            elif named.any_order:
                gathered.missing.append(key)
            else:
                break
            gathered.named_count += 1
        self._fetches.learn_soon(touches)
        return gathered.named_count == named.first + len(named.keys)

    def give_back(self, gathered: Gathered) -> None:
        """Nobody wants it any more."""
        chunks, _ = gathered.take()
        gathered.uses, gathered.size_bytes = [], 0
        for chunk in chunks:
            self._pool.unpin(chunk)


def in_order(
    places: tuple[int, ...], told: tuple[FetchedChunk, ...]
) -> tuple[tuple[int, ...], tuple[FetchedChunk, ...]]:
    """Chunks of a fetch in any order, as their keys were named."""
    if list(places) == sorted(places):
        return places, told
    order = sorted(range(len(places)), key=places.__getitem__)
    return tuple(places[at] for at in order), tuple(told[at] for at in order)
