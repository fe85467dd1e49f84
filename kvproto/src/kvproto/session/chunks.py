"""The chunks that a node's fetches want: which wait, which are open, and what ends when one is closed."""

from kvchunk.ids import ChunkKey
from kvproto.commands import AbortRead, DropChunk, ReaderCommand
from kvproto.errors import LocalProtocolError
from kvproto.events import ChunkWanted, HolderRef
from kvproto.ids import FetchId
from kvproto.limits import CHUNK_SEGMENTS_MAX, JOINED_MAX
from kvproto.session.chunk import Chunk
from kvproto.session.membership import Membership
from kvproto.session.phases import Cause, Phase
from kvproto.session.pull import Pull
from kvproto.session.schedule import Schedule
from kvproto.session.stripes import Stripe, Stripes


class Chunks:
    """All chunks of one reader. Commands go to `out`, which the reader hands over."""

    def __init__(
        self, schedule: Schedule, membership: Membership, pull: Pull, stripes: Stripes, out: list[ReaderCommand]
    ) -> None:
        self._schedule = schedule
        self._membership = membership
        self._pull = pull
        self._stripes = stripes
        self._out = out
        self._order = 0
        self.wanted: dict[ChunkKey, Chunk] = {}
        """Every chunk that some fetch wants."""
        self.open: dict[ChunkKey, Chunk] = {}
        """Those being fetched, at most JOINED_MAX."""
        self._waiting: dict[ChunkKey, Chunk] = {}

    def get(self, key: ChunkKey) -> Chunk | None:
        """The chunk, if some fetch wants it."""
        return self.wanted.get(key)

    def want(self, wanted: ChunkWanted, fetch: FetchId) -> None:
        """Add a chunk to what the node fetches, or the fetch to those that want it."""
        chunk = self.wanted.get(wanted.key)
        if chunk is None:
            chunk = self._add(wanted)
        elif chunk.segments != wanted.segments:
            raise LocalProtocolError(f"chunk {wanted.key.hex()} has {chunk.segments} segments, not {wanted.segments}")
        elif wanted.holders and chunk.phase is Phase.GONE:
            self.revive(chunk, wanted.holders)
        chunk.fetches.add(fetch)

    def _add(self, wanted: ChunkWanted) -> Chunk:
        if not 1 <= wanted.segments <= CHUNK_SEGMENTS_MAX:
            raise LocalProtocolError(f"chunk {wanted.key.hex()} has {wanted.segments} segments")
        self._order += 1
        chunk = Chunk(
            wanted.key,
            wanted.segments,
            wanted.size_bytes,
            self._order,
            wanted.holders,
            read_alone=wanted.read_alone,
        )
        self.wanted[wanted.key] = chunk
        if wanted.loading:
            chunk.move(Cause.LOAD)
        else:
            self._waiting[wanted.key] = chunk
        return chunk

    def unwant(self, key: ChunkKey, fetch: FetchId, now_ns: int) -> None:
        """A fetch no longer wants this chunk. Forget a chunk that none wants, and its memory unless it is whole."""
        chunk = self.wanted.get(key)
        if chunk is None:
            return
        chunk.fetches.discard(fetch)
        if not chunk.fetches:
            del self.wanted[key]
            self._waiting.pop(key, None)
            self.close(chunk, now_ns)
            if chunk.phase is not Phase.HERE:
                self._out.append(DropChunk(key))

    def is_fetched(self, chunk: Chunk) -> bool:
        """Whether holders still matter for it: it is open, or it waits."""
        return chunk.key in self.open or chunk.key in self._waiting

    def next_to_open(self) -> Chunk | None:
        """The next waiting chunk, open from now on; None: none waits, or too many are open already."""
        if not self._waiting or len(self.open) >= JOINED_MAX:
            return None
        chunk = self._waiting.pop(next(iter(self._waiting)))
        self.open[chunk.key] = chunk
        return chunk

    def queue(self, chunk: Chunk) -> None:
        """It waits until it may be opened."""
        self._waiting[chunk.key] = chunk

    def reopen(self, chunk: Chunk) -> None:
        """It is fetched once more, from its beginning."""
        self.open[chunk.key] = chunk

    def revive(self, chunk: Chunk, holders: tuple[HolderRef, ...]) -> None:
        """The directory names holders for a chunk that had none left."""
        chunk.provenance.offer(holders)
        chunk.provenance.relax()
        if chunk.provenance.usable():
            chunk.move(Cause.FOUND)
            self._waiting[chunk.key] = chunk

    def put(self, chunk: Chunk, now_ns: int) -> None:
        """It is here by other means: whatever is under way for it ends."""
        self._waiting.pop(chunk.key, None)
        chunk.move(Cause.PUT)
        chunk.provenance.note_put()
        self.close(chunk, now_ns)

    def exhaust(self, chunk: Chunk, now_ns: int) -> None:
        """No holder is left."""
        self._waiting.pop(chunk.key, None)
        chunk.move(Cause.EXHAUSTED)
        self.close(chunk, now_ns)

    def close(self, chunk: Chunk, now_ns: int) -> None:
        """Nothing more is asked for this chunk: end its reads, leave its interest set."""
        self.open.pop(chunk.key, None)
        self._schedule.deposed(chunk)
        self._pull.forget(chunk)
        for stripe in self._stripes.of_chunk(chunk):
            self.abort(stripe)
        if chunk.proof is not None:
            self._out.append(AbortRead(chunk.proof.read))
            chunk.proof = None
        self._out += self._membership.leave(chunk, now_ns)

    def abort(self, stripe: Stripe) -> None:
        """End a reliable read."""
        self._stripes.end(stripe)
        self._out.append(AbortRead(stripe.read))
