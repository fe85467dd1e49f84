"""Parts of chunks for engines: ranges of bytes, without the rest of the chunk crossing the network.

A chunk that is here gives views of itself. Of a chunk that another node has in DRAM the pieces that the ranges touch
are read from it, and the leaves of the chunk's tree (`hostagent.tree`): leaves that make the chunk's digest prove each
piece by itself, so no byte reaches an engine unproven. The pieces lie in memory that is no chunk of the pool: nobody
else finds it, and it goes with the engine's lease. Whatever cannot be had so (on a disk, in the cold store, from the
switch alone, without a tree, on its way already, or from holders that refuse) is fetched whole.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from hostagent.core import effects
from hostagent.core.chunk_entry import ChunkEntry
from hostagent.core.clock import WINDOW, Work
from hostagent.core.directory import NodeEntry
from hostagent.core.events import DigestUse, LeavesRead
from hostagent.core.fetch import FetchRequest, FetchResult, Purpose
from hostagent.core.fetches import Fetches
from hostagent.core.node import Node
from hostagent.pool.chunks import Chunk, Refusal
from hostagent.pool.tenants import NOBODY
from hostagent.tree import PIECE_BYTES, Hashed, PieceRun, leaves_bytes, leaves_in, piece_runs, root_of
from kvchunk.ids import ChunkKey, Digest
from kvchunk.parts import ByteRange
from kvchunk.sources import ChunkSource
from kvclient.messages import FetchedParts, Status
from kvproto import events
from kvproto.commands import AbortRead, Blame
from kvproto.ids import FetchId, NodeId, ReadId
from kvproto.integrity import NO_DIGEST, Integrity, algorithm_of


@dataclass(frozen=True, slots=True)
class PartsResult:
    """Chunks whose ranges are here, each pinned once for whoever asked, and why the first one missing is missing."""

    status: Status
    chunks: tuple[Chunk, ...] = ()
    parts: tuple[FetchedParts, ...] = ()
    """Of each of them."""
    outside: tuple[int, int] | None = None
    """With OUT_OF_CHUNK: index of a key, and the bytes that its chunk has."""


@dataclass(slots=True, eq=False)
class PartsFetch:
    """One request."""

    keys: Mapping[ChunkKey, int]
    """In order, each with its index."""
    ranges: tuple[ByteRange, ...]
    deadline_ns: int
    tenant: str
    ended: Callable[[PartsResult], None]
    here: dict[ChunkKey, tuple[Chunk, FetchedParts]] = field(default_factory=dict)
    """Chunks that are pinned for it."""
    coming: dict[ChunkKey, _Pieces] = field(default_factory=dict)
    whole: set[FetchId] = field(default_factory=set)
    missed: Status = Status.NOT_FOUND
    """Why something did not come."""
    busy: int = 0
    """Fetches of whole chunks that have not ended, and one while it is being begun."""

    @property
    def is_over(self) -> bool:
        """Whether nothing more is to come."""
        return not self.coming and not self.busy


@dataclass(slots=True, eq=False)
class _Pieces:
    """Of one chunk, on their way."""

    of: PartsFetch
    entry: ChunkEntry
    runs: list[PieceRun]
    into: Chunk
    """Memory for them, one behind the other; no chunk of the pool."""
    holders: list[NodeEntry]
    """To be asked; the first one next."""
    asked: NodeEntry | None = None
    reading: set[ReadId] = field(default_factory=set)
    leaves: bytes = b""
    """As the holder gave them."""

    @property
    def size_bytes(self) -> int:
        """Of all pieces."""
        return sum(run.size_bytes for run in self.runs)

    def place(self, offset: int) -> int:
        """Where a byte of the chunk lies in the pool."""
        at = self.into.offset
        for run in self.runs:
            if offset < run.offset + run.size_bytes:
                return at + offset - run.offset
            at += run.size_bytes
        raise ValueError(f"byte {offset} lies in no piece")


class PartFetches:
    """Of one node."""

    def __init__(self, node: Node, fetches: Fetches) -> None:
        self._clock = node.clock
        self._emit = node.emit
        self._pool = node.pool
        self._directory = node.directory
        self._disk = node.disk
        self._fetches = fetches
        self._windows = node.windows
        self._alarm = node.alarms.add(self._late)
        self._under_way: list[PartsFetch] = []
        self._reads: dict[ReadId, _Pieces] = {}
        self._hashing: dict[Chunk, _Pieces] = {}
        self._last_read = 0
        """Counts down: the reader's own reads count up."""

    def begin(
        self,
        keys: Sequence[ChunkKey],
        ranges: Sequence[ByteRange],
        deadline_ns: int,
        ended: Callable[[PartsResult], None],
        tenant: str = NOBODY,
    ) -> PartsFetch | None:
        """Bring `ranges` (in order, without overlap) of each of these chunks (distinct). `ended` comes once, unless it
        is cancelled. None: it has ended already."""
        end = ranges[-1].end
        for place, key in enumerate(keys):
            size_bytes = self._size_of(key)
            if size_bytes is not None and size_bytes < end:
                ended(PartsResult(Status.OUT_OF_CHUNK, outside=(place, size_bytes)))
                return None
        fetch = PartsFetch(
            dict(zip(keys, range(len(keys)), strict=True)), tuple(ranges), deadline_ns, tenant, ended, busy=1
        )
        self._under_way.append(fetch)
        self._windows.do(self._begun(fetch, keys), len(keys))
        return fetch if fetch in self._under_way else None

    def _begun(self, fetch: PartsFetch, keys: Sequence[ChunkKey]) -> Work:
        whole: list[ChunkKey] = []
        for first in range(0, len(keys), WINDOW):
            for key in keys[first : first + WINDOW]:
                chunk = self._pool.find(key)
                if chunk is None:
                    if not self._begin_pieces(fetch, key):
                        whole.append(key)
                elif self._pool.lend(chunk, fetch.tenant):
                    self._pool.pin(chunk)
                    self._have_whole(fetch, chunk, ChunkSource.LOCAL)
                else:
                    fetch.missed = Status.POOL_FULL
            self._arm()
            yield
            if fetch not in self._under_way:
                return
        if whole:
            self._fetch_whole(fetch, whole)
        fetch.busy -= 1
        self._end_if_over(fetch)

    def _size_of(self, key: ChunkKey) -> int | None:
        found = self._pool.find(key) or (self._disk.find(key) if self._disk is not None else None)
        known = found or self._directory.find(key)
        return known.size_bytes if known is not None else None

    # ------------------------------------------------------------------ pieces

    def _begin_pieces(self, fetch: PartsFetch, key: ChunkKey) -> bool:
        """Whether pieces of this chunk are on their way now."""
        entry = self._directory.find(key)
        if entry is None or entry.digest == NO_DIGEST or algorithm_of(entry.digest) is not Integrity.BLAKE3:
            return False
        on_disk = self._disk is not None and self._disk.find(key) is not None
        holders, _ = self._directory.holders_elsewhere(key)
        runs = piece_runs(fetch.ranges, entry.size_bytes)
        size_bytes = sum(run.size_bytes for run in runs)
        if on_disk or not holders or size_bytes == entry.size_bytes or self._fetches.is_arriving(key):
            return False
        into = self._pool.reserve_apart(key, size_bytes, fetch.tenant)
        if isinstance(into, Refusal):
            fetch.missed = Status.POOL_FULL
            return True
        pieces = fetch.coming[key] = _Pieces(fetch, entry, runs, into, list(holders))
        self._ask_next(pieces)
        return True

    def _ask_next(self, pieces: _Pieces) -> None:
        """Ask another holder for everything, or fetch the whole chunk where none is left."""
        self._stop_reading(pieces)
        key = pieces.entry.key
        if not pieces.holders:
            fetch = pieces.of
            del fetch.coming[key]
            self._pool.abort(pieces.into)
            self._fetch_whole(fetch, [key])
            self._end_if_over(fetch)
            return
        node = pieces.asked = pieces.holders.pop(0)
        read = self._new_read(pieces)
        self._emit(effects.ReadLeaves(read, node.name, node.read_endpoint, key, leaves_bytes(pieces.entry.size_bytes)))
        at = pieces.into.offset
        for run in pieces.runs:
            read = self._new_read(pieces)
            self._emit(
                effects.ReadPieces(
                    read,
                    node.name,
                    node.read_endpoint,
                    pieces.into,
                    at,
                    run.offset,
                    run.size_bytes,
                    pieces.size_bytes,
                )
            )
            at += run.size_bytes

    def _new_read(self, pieces: _Pieces) -> ReadId:
        self._last_read -= 1
        read = ReadId(self._last_read)
        self._reads[read] = pieces
        pieces.reading.add(read)
        return read

    def _stop_reading(self, pieces: _Pieces) -> None:
        for read in pieces.reading:
            del self._reads[read]
            self._emit(AbortRead(read))
        pieces.reading.clear()

    def read_event(self, event: events.ReadProgress | events.ReadDone | events.ReadFailed | LeavesRead) -> None:
        """A read for parts progressed or ended: their numbers are below 0."""
        pieces = self._reads.get(event.read)
        if pieces is None or isinstance(event, events.ReadProgress):
            return
        del self._reads[event.read]
        pieces.reading.discard(event.read)
        if pieces.of.coming.get(pieces.entry.key) is not pieces:
            return  # which are being given up
        if isinstance(event, events.ReadFailed):
            self._ask_next(pieces)
            return
        if isinstance(event, LeavesRead):
            pieces.leaves = event.leaves
        if not pieces.reading:
            self._judge(pieces)

    def _judge(self, pieces: _Pieces) -> None:
        """All of it came: leaves that do not make the chunk's digest prove nothing."""
        found = root_of(pieces.leaves, pieces.entry.size_bytes)
        if found != pieces.entry.digest:
            self._blame(pieces, found)
            return
        self._hashing[pieces.into] = pieces
        self._pool.pin(pieces.into)
        self._emit(effects.ComputeDigest(pieces.into, Integrity.BLAKE3, DigestUse.PARTS))

    def digest_computed(self, into: Chunk, hashed: Hashed) -> None:
        """The leaves of pieces: each is right when it has its leaf."""
        pieces = self._hashing.pop(into, None)
        if pieces is None:
            return
        fetch, key = pieces.of, pieces.entry.key
        if fetch.coming.get(key) is not pieces:
            return
        if hashed.leaves != leaves_in(pieces.leaves, pieces.runs):
            self._blame(pieces, hashed.digest)
            return
        del fetch.coming[key]
        self._pool.pin(into)
        self._pool.abort(into)  # it stays for its pins only
        offsets = tuple(pieces.place(one.offset) for one in fetch.ranges)
        fetch.here[key] = into, FetchedParts(fetch.keys[key], ChunkSource.HOLDER, offsets)
        self._end_if_over(fetch)

    def _blame(self, pieces: _Pieces, found: Digest) -> None:
        """A holder gave wrong bytes over its own connection: the controller hears of it, and the next one is asked."""
        node, entry = pieces.asked, pieces.entry
        if node is not None:
            self._emit(
                effects.ReportBadCopy(
                    entry.key, NodeId(node.name), node.node, Blame.DIGEST, entry.digest, found, from_switch=False
                )
            )
        self._ask_next(pieces)

    # ------------------------------------------------------------------ whole chunks

    def _fetch_whole(self, fetch: PartsFetch, keys: Sequence[ChunkKey]) -> None:
        started: list[FetchId] = []
        fetch.busy += 1

        def ended(result: FetchResult) -> None:
            fetch.busy -= 1
            fetch.whole.difference_update(started)
            if result.status is not Status.OK:
                fetch.missed = result.status
            for chunk, source in result.chunks:
                if chunk.size_bytes < fetch.ranges[-1].end:
                    fetch.missed = Status.OUT_OF_CHUNK
                    self._pool.unpin(chunk)
                else:
                    self._have_whole(fetch, chunk, source)
            self._end_if_over(fetch)

        number = self._fetches.begin(
            FetchRequest(tuple(keys), Purpose.ENGINE, fetch.deadline_ns, any_order=True, tenant=fetch.tenant), ended
        )
        if number is not None:
            started.append(number)
            fetch.whole.add(number)

    def _have_whole(self, fetch: PartsFetch, chunk: Chunk, source: ChunkSource) -> None:
        """A chunk that is here, and pinned for this."""
        offsets = tuple(chunk.offset + one.offset for one in fetch.ranges)
        fetch.here[chunk.key] = chunk, FetchedParts(fetch.keys[chunk.key], source, offsets)

    # ------------------------------------------------------------------ the end

    def _end_if_over(self, fetch: PartsFetch) -> None:
        if not fetch.is_over or fetch not in self._under_way:
            return
        self._under_way.remove(fetch)
        self._arm()
        found = [fetch.here[key] for key in fetch.keys if key in fetch.here]
        status = Status.OK if len(found) == len(fetch.keys) else fetch.missed
        fetch.ended(PartsResult(status, tuple(chunk for chunk, _ in found), tuple(parts for _, parts in found)))

    def cancel(self, fetch: PartsFetch) -> None:
        """Nobody wants it any more: `ended` is not called. Idempotent."""
        if fetch not in self._under_way:
            return
        self._under_way.remove(fetch)
        self._arm()
        self._give_up_pieces(fetch)
        for number in fetch.whole:
            self._fetches.cancel(number)
        self._windows.do(self._given_back([chunk for chunk, _ in fetch.here.values()]), len(fetch.here))
        fetch.here = {}

    def _given_back(self, chunks: Sequence[Chunk]) -> Work:
        for first in range(0, len(chunks), WINDOW):
            for chunk in chunks[first : first + WINDOW]:
                self._pool.unpin(chunk)
            yield

    def close(self) -> None:
        """End all without a word and give everything back."""
        for fetch in list(self._under_way):
            self.cancel(fetch)

    def _give_up_pieces(self, fetch: PartsFetch) -> None:
        coming, fetch.coming = list(fetch.coming.values()), {}
        self._windows.do(self._pieces_given_up(coming), len(coming))

    def _pieces_given_up(self, coming: Sequence[_Pieces]) -> Work:
        for first in range(0, len(coming), WINDOW):
            for pieces in coming[first : first + WINDOW]:
                self._stop_reading(pieces)
                self._pool.abort(pieces.into)
            yield

    def _late(self) -> None:
        """Whole chunks of a request end by their own deadline, which is the same."""
        for fetch in list(self._under_way):
            if fetch.deadline_ns <= self._clock.now_ns and fetch.coming:
                self._give_up_pieces(fetch)
                fetch.missed = Status.DEADLINE
                self._end_if_over(fetch)
        self._arm()

    def _arm(self) -> None:
        self._alarm.set(min((one.deadline_ns for one in self._under_way if one.coming), default=None))


assert PIECE_BYTES % 4096 == 0, "pieces one behind the other begin at pages"
