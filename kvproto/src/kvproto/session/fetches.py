"""The fetches of a node: what each wants, how far it has come, when it is delivered.

A fetch in prefix order ends at the first chunk that does not come. One in any order ends when each of its chunks has
come or is gone.
"""

from dataclasses import dataclass, field

from kvchunk.ids import ChunkKey
from kvchunk.sources import ChunkSource
from kvproto.commands import DeliverFetch, FetchProgress, Outcome, ReaderCommand
from kvproto.errors import LocalProtocolError
from kvproto.events import FetchRequested
from kvproto.ids import FetchId
from kvproto.limits import FETCH_CHUNKS_MAX, FETCHES_MAX
from kvproto.session.chunk import Chunk
from kvproto.session.chunks import Chunks
from kvproto.session.phases import Phase


@dataclass(slots=True, eq=False)
class Fetch:
    """State of one fetch. `sources` grows with the leading chunks that are here."""

    fetch: FetchId
    keys: tuple[ChunkKey, ...]
    present: frozenset[ChunkKey]
    """Keys that were whole in memory when the fetch began."""
    deadline_ns: int
    sources: list[ChunkSource]
    wanted: int
    """Chunks still worth having: all of them until one is gone, then those before it."""
    outcome: Outcome | None = None
    any_order: bool = False
    scattered: dict[ChunkKey, ChunkSource] = field(default_factory=dict)
    """Of a fetch in any order: its chunks that are here."""
    gone: set[ChunkKey] = field(default_factory=set)
    """Of a fetch in any order: its chunks that nobody has any more."""

    @property
    def leading(self) -> int:
        """Leading chunks that are here and verified."""
        return len(self.sources)

    @property
    def over(self) -> bool:
        """Whether nothing more is worth waiting for."""
        if self.any_order:
            return len(self.scattered) + len(self.gone) >= len(self.keys)
        return self.leading >= self.wanted


class Fetches:
    """All fetches of one reader. Commands go to `out`, which the reader hands over."""

    def __init__(self, chunks: Chunks, out: list[ReaderCommand]) -> None:
        self._chunks = chunks
        self._out = out
        self._fetches: dict[FetchId, Fetch] = {}

    def __len__(self) -> int:
        return len(self._fetches)

    def begin(self, event: FetchRequested, now_ns: int) -> None:
        """An engine asks for chunks. Raises LocalProtocolError beyond the limits, or for a fetch known already."""
        if event.fetch in self._fetches:
            raise LocalProtocolError(f"fetch {event.fetch} is under way already")
        if len(self._fetches) >= FETCHES_MAX:
            raise LocalProtocolError(f"more than {FETCHES_MAX} fetches at a time")
        if len(event.chunks) > FETCH_CHUNKS_MAX:
            raise LocalProtocolError(f"more than {FETCH_CHUNKS_MAX} chunks in one fetch")
        keys = tuple(wanted.key for wanted in event.chunks)
        present = frozenset(wanted.key for wanted in event.chunks if wanted.present)
        fetch = Fetch(event.fetch, keys, present, event.deadline_ns, [], len(keys), any_order=event.any_order)
        self._fetches[event.fetch] = fetch
        for wanted in event.chunks:
            if not wanted.present:
                self._chunks.want(wanted, fetch.fetch)
        if fetch.any_order:
            self._count_scattered(fetch, keys, now_ns)
        else:
            self._advance(fetch, now_ns)

    def cancel(self, fetch: FetchId, now_ns: int) -> None:
        """The engine no longer wants it."""
        cancelled = self._fetches.pop(fetch, None)
        if cancelled is not None:
            self._release(cancelled, cancelled.keys, now_ns)

    def cut(self, number: FetchId, count: int, now_ns: int) -> None:
        """Only the first `count` chunks are still worth waiting for."""
        fetch = self._fetches.get(number)
        if fetch is not None and count < fetch.wanted and not fetch.any_order:
            behind = fetch.keys[max(count, fetch.leading) : fetch.wanted]
            fetch.wanted, fetch.outcome = max(count, fetch.leading), Outcome.LATE
            self._release(fetch, behind, now_ns)
            self._advance(fetch, now_ns)

    def chunk_here(self, chunk: Chunk, now_ns: int) -> None:
        """A chunk is whole and right."""
        for fetch in [self._fetches[fetch] for fetch in sorted(chunk.fetches)]:
            if fetch.any_order:
                self._count_scattered(fetch, (chunk.key,), now_ns)
            else:
                self._advance(fetch, now_ns)

    def chunk_gone(self, chunk: Chunk, now_ns: int) -> None:
        """No holder of a chunk is left: its fetches make do with what comes before it, or with all the others."""
        for fetch in [self._fetches[fetch] for fetch in sorted(chunk.fetches) if fetch in self._fetches]:
            if fetch.any_order:
                fetch.gone.add(chunk.key)
                self._count_scattered(fetch, (), now_ns)
                continue
            place = fetch.keys.index(chunk.key)
            if place < fetch.wanted:
                behind = fetch.keys[place + 1 : fetch.wanted]
                fetch.wanted, fetch.outcome = place, Outcome.GONE
                self._release(fetch, behind, now_ns)
                self._advance(fetch, now_ns)

    def expire(self, now_ns: int) -> None:
        """Deliver what is here of every fetch whose deadline has passed."""
        for fetch in [fetch for fetch in self._fetches.values() if fetch.deadline_ns <= now_ns]:
            self._deliver(fetch, Outcome.LATE, now_ns)

    def next_timeout_ns(self) -> int | None:
        """The next deadline."""
        return min((fetch.deadline_ns for fetch in self._fetches.values()), default=None)

    def _advance(self, fetch: Fetch, now_ns: int) -> None:
        """Count the leading chunks that are here; deliver when nothing more is worth waiting for."""
        keys, sources = fetch.keys, fetch.sources
        before = len(sources)
        while len(sources) < len(keys):
            source = self._source(fetch, keys[len(sources)])
            if source is None:
                break
            sources.append(source)
        if fetch.over:
            self._deliver(fetch, fetch.outcome or Outcome.COMPLETE, now_ns)
        elif len(sources) > before:
            self._out.append(FetchProgress(fetch.fetch, len(sources), tuple(sources[before:])))

    def _source(self, fetch: Fetch, key: ChunkKey) -> ChunkSource | None:
        """Where a chunk that is here came from; None: it is not here."""
        if key in fetch.present:
            return ChunkSource.LOCAL
        chunk = self._chunks.get(key)
        return chunk.provenance.source() if chunk is not None and chunk.phase is Phase.HERE else None

    def _count_scattered(self, fetch: Fetch, keys: tuple[ChunkKey, ...], now_ns: int) -> None:
        """Of a fetch in any order: count those of `keys` that are here; deliver when nothing more may come."""
        for key in keys:
            source = self._source(fetch, key)
            if source is not None:
                fetch.scattered[key] = source
                # The directory may have named new holders for a chunk that had none left.
                fetch.gone.discard(key)
        if fetch.over:
            self._deliver(fetch, Outcome.GONE if fetch.gone else Outcome.COMPLETE, now_ns)

    def _deliver(self, fetch: Fetch, outcome: Outcome, now_ns: int) -> None:
        del self._fetches[fetch.fetch]
        places = None
        sources = tuple(fetch.sources)
        if fetch.any_order:
            places = tuple(place for place, key in enumerate(fetch.keys) if key in fetch.scattered)
            sources = tuple(fetch.scattered[fetch.keys[place]] for place in places)
        self._out.append(DeliverFetch(fetch.fetch, outcome, len(sources), sources, places))
        self._release(fetch, fetch.keys, now_ns)

    def _release(self, fetch: Fetch, keys: tuple[ChunkKey, ...], now_ns: int) -> None:
        """The fetch no longer wants these chunks."""
        for key in keys:
            self._chunks.unwant(key, fetch.fetch, now_ns)
