"""What engines ask of the pool, and what each of them holds: leases, reservations, pins, fetches under way.

When an engine's connection ends, however it ends, the agent gives back all that the engine held.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

from hostagent import limits
from hostagent.core import effects, events
from hostagent.core.claims import Claims, Freed
from hostagent.core.clock import WINDOW, Work
from hostagent.core.cold import ColdIndex
from hostagent.core.events import NO_LEASE, DigestUse, EngineId, LeaseId
from hostagent.core.fetch import FetchObserver, FetchRequest, FetchResult, Purpose
from hostagent.core.fetches import Fetches
from hostagent.core.gathering import Gathered, Gathering, in_order
from hostagent.core.locks import LocalReads, Locks
from hostagent.core.membership import Interests
from hostagent.core.node import Node
from hostagent.core.parts import PartFetches, PartsFetch, PartsResult
from hostagent.core.reports import Reports
from hostagent.pool.chunks import Chunk, ChunkState, DropOutcome, Refusal
from hostagent.pool.tenants import NOBODY
from hostagent.tree import Hashed
from kvchunk.ids import ChunkKey
from kvchunk.sources import ChunkSource
from kvclient.messages import FetchedChunk, Kind, Status, Where
from kvproto.ids import FetchId
from kvproto.records import RecordError, check_chunk

_REFUSALS = {
    Refusal.EXISTS: Status.EXISTS,
    Refusal.FILLING: Status.FILLING,
    Refusal.FULL: Status.POOL_FULL,
    Refusal.TOO_LARGE: Status.TOO_LARGE,
}


@dataclass(slots=True)
class _Holdings:
    """What one engine holds."""

    tenant: str = NOBODY
    leases: dict[LeaseId, tuple[Chunk, ...]] = field(default_factory=dict)
    reservations: dict[LeaseId, Chunk] = field(default_factory=dict)
    fetches: dict[int, FetchId] = field(default_factory=dict)
    """By request."""
    gathered: dict[int, Gathered] = field(default_factory=dict)
    """By request: what is here of long fetches, until they are answered."""
    parts: dict[int, PartsFetch] = field(default_factory=dict)
    """By request."""
    pins: dict[ChunkKey, list[Chunk]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Commit:
    engine: EngineId
    request: int


class EngineObserver(FetchObserver, Protocol):
    """Of whoever keeps what concerns more than engines."""

    def chunk_put(self, chunk: Chunk) -> None:
        """An engine's chunk is whole."""

    def drop_everywhere(self, key: ChunkKey) -> DropOutcome:
        """Take a chunk out of the pool, off the disk and out of the cold store."""


class Engines:
    """Owns what each engine of this node holds, and what lasts for a time: locks, leases taken without asking, the
    namespaces in use. Where chunks come from, and where their copies go, it does not know."""

    def __init__(
        self,
        node: Node,
        fetches: Fetches,
        parts: PartFetches,
        claims: Claims,
        cold: ColdIndex,
        reports: Reports,
        observer: EngineObserver,
    ) -> None:
        self._clock = node.clock
        self._emit = node.emit
        self._pool = node.pool
        self._directory = node.directory
        self._disk = node.disk
        self._fetches = fetches
        self._parts = parts
        self._claims = claims
        self._cold = cold
        self._reports = reports
        self._observer = observer
        self._gathering = Gathering(node, fetches)
        self._windows = node.windows
        self.locks = Locks(node)
        self.interests = Interests(node)
        self.local_reads = LocalReads(node, observer)
        self._engines: dict[EngineId, _Holdings] = {}
        self._commits: dict[Chunk, _Commit] = {}
        """Written chunks whose digest is being computed; an engine that goes away does not stop them."""
        self._by_kind: Mapping[Kind, Callable[[events.KeysRequested], None]] = {
            Kind.CONTAINS: self._find_places,
            Kind.PIN: self._pin,
            Kind.UNPIN: self._unpin,
            Kind.LOCK: self._lock,
            Kind.UNLOCK: self._unlock,
            Kind.DROP: self._drop,
        }
        self._lease = 0
        self._fabric = node.fabric

    def _of(self, engine: EngineId) -> _Holdings:
        return self._engines.setdefault(engine, _Holdings())

    def _next_lease(self) -> LeaseId:
        self._lease += 1
        return LeaseId(self._lease)

    def engine_connected(self, event: events.EngineConnected) -> None:
        """A connection begins."""
        self._of(event.engine).tenant = event.tenant
        self._pool.tenants.engine_connected(event.tenant)
        self.interests.engine_connected(event.engine, event.tenant)
        self.local_reads.engine_connected()

    def tenant_of(self, engine: EngineId) -> str:
        """Whom the chunks of an engine count for; of one that is gone, nobody."""
        holdings = self._engines.get(engine)
        return holdings.tenant if holdings is not None else NOBODY

    def namespace(self, engine: EngineId, said: str) -> str:
        """What the fabric calls a namespace of this engine."""
        return self.interests.namespace(self._of(engine).tenant, said)

    # ------------------------------------------------------------------ writing

    def reserve(self, event: events.ReserveRequested) -> None:
        """Room for a chunk that an engine writes."""
        holdings = self._of(event.engine)
        if len(holdings.reservations) >= limits.API_REQUESTS_IN_FLIGHT_MAX:
            self._emit(effects.ReserveAnswered(event.engine, event.request, Status.BUSY))
            return
        position, namespace = event.position, self.interests.namespace(holdings.tenant, event.namespace)
        if position is None:
            before = (
                None if event.parent is None else self._pool.find(event.parent) or self._directory.find(event.parent)
            )
            position = before.position + 1 if before is not None else 0
        try:
            check_chunk(event.key, event.parent, event.size_bytes, position, namespace)
        except RecordError:
            self._emit(effects.ReserveAnswered(event.engine, event.request, Status.MALFORMED))
            return
        made = self._pool.reserve(event.key, event.parent, event.size_bytes, position, namespace, holdings.tenant)
        if made is Refusal.FILLING and self._fetches.is_arriving(event.key):
            # Its bytes are here, and those of the fetch may come late or never.
            beside = self._pool.reserve_beside(event.key, event.size_bytes, holdings.tenant)
            made = made if isinstance(beside, Refusal) else beside
        if isinstance(made, Refusal):
            if made is not Refusal.FILLING:
                self._claims.put_failed(event.key)
            self._emit(effects.ReserveAnswered(event.engine, event.request, _REFUSALS[made]))
            self._emit(effects.ReservationEnded(made.value))
            return
        lease = self._next_lease()
        holdings.reservations[lease] = made
        self._emit(effects.ReserveAnswered(event.engine, event.request, Status.OK, lease, made.offset))
        self._emit(effects.ReservationEnded("reserved"))
        self._reports.pool_changed()

    def commit(self, event: events.CommitRequested) -> None:
        """An engine's chunk is written."""
        holdings = self._engines.get(event.engine)
        chunk = None if holdings is None else holdings.reservations.pop(event.lease, None)
        if chunk is None:
            self._emit(effects.CommitAnswered(event.engine, event.request, Status.UNKNOWN_LEASE))
            return
        self._commits[chunk] = _Commit(event.engine, event.request)
        self._pool.pin(chunk)
        if event.region_offset is None:
            self._emit(effects.ComputeDigest(chunk, self._fabric.integrity, DigestUse.PUT))
        else:
            self._emit(effects.TakeChunk(chunk, event.engine, event.region_offset, self._fabric.integrity))

    def chunk_taken(self, event: events.ChunkTaken) -> None:
        """The chunk is in the pool, where no engine can change it any more."""
        self._pool.unpin(event.chunk)
        if event.hashed is not None:
            self.digest_computed(event.chunk, event.hashed)
            return
        commit = self._commits.pop(event.chunk)
        self._give_up(event.chunk)
        self._emit(effects.CommitAnswered(commit.engine, commit.request, Status.MALFORMED))

    def digest_computed(self, chunk: Chunk, hashed: Hashed) -> None:
        """The chunk is whole."""
        commit = self._commits.pop(chunk, None)
        if commit is None:
            return
        quicker = self._pool.find(chunk.key)
        if quicker is not None:
            # A fetch brought the chunk while the engine wrote it.
            self._pool.abort(chunk)
            self._claims.put_failed(chunk.key)
            self._emit(effects.CommitAnswered(commit.engine, commit.request, Status.OK, quicker.digest))
            return
        if chunk.key in self._fetches.arrivals.under_way:
            self._fetches.put_instead(chunk, hashed)
        else:
            self._pool.commit(chunk, hashed)
        self._emit(effects.CommitAnswered(commit.engine, commit.request, Status.OK, hashed.digest))
        self._observer.chunk_put(chunk)
        self._reports.pool_changed()

    def abort(self, event: events.AbortRequested) -> None:
        """An engine gave a chunk up."""
        chunk = self._of(event.engine).reservations.pop(event.lease, None)
        if chunk is not None:
            self._give_up(chunk)

    def _give_up(self, chunk: Chunk) -> None:
        """An engine does not write it any more."""
        self._pool.abort(chunk)
        self._claims.put_failed(chunk.key)
        self._fetches.waits.chunks_available((chunk.key,))
        self._fetches.waits.claims_ended((chunk.key,), Freed.WITHDRAWN)

    def claim(self, event: events.ClaimMade) -> None:
        """An engine computes chunks."""
        self._of(event.engine)
        refused = frozenset(self._claims.claim(event.engine, event.keys, event.size_bytes, event.etas_s))
        if refused:
            values = bytes(key not in refused for key in event.keys)
            self._emit(effects.KeysAnswered(event.engine, event.request, Kind.CLAIM, values))
        self._fetches.waits.claims_made(event.keys)

    # ------------------------------------------------------------------ reading

    def chunks_named(self, event: events.ChunksNamed) -> None:
        """Keep what is here of a slice of a long fetch."""
        holdings = self._of(event.engine)
        goes_on = False
        if event.request not in holdings.fetches:
            if not event.first and event.request not in holdings.gathered:
                holdings.gathered[event.request] = self._gathering.begin(event.deadline_s)
            gathered = holdings.gathered.get(event.request)
            goes_on = gathered is not None and self._gathering.chunks_named(gathered, event, holdings.tenant)
        self._emit(effects.ChunksKept(event.engine, event.request, goes_on))

    def fetch(self, event: events.ChunksRequested) -> None:
        """Chunks for an engine; of a long fetch, those that were named are looked for no more."""
        holdings = self._of(event.engine)
        if len(holdings.fetches) >= limits.API_REQUESTS_IN_FLIGHT_MAX:
            self._answer_at_once(event, Status.BUSY)
            return
        if not event.keys or len(set(event.keys)) != len(event.keys) or event.request in holdings.fetches:
            # All of nothing is here: a prompt shorter than a chunk.
            self._answer_at_once(event, Status.MALFORMED if event.keys else Status.OK)
            return
        gathered = holdings.gathered.get(event.request) if holdings.gathered else None
        request = FetchRequest(
            event.keys if gathered is None else gathered.rest(event.keys),
            Purpose.ENGINE,
            self._clock.now_ns + int(event.deadline_s * 1e9) if gathered is None else gathered.deadline_ns,
            event.prefill,
            event.expected_s,
            may_wait=True,
            any_order=event.any_order,
            tenant=holdings.tenant,
            traced=event.traced,
            kept=None if gathered is None else gathered.kept,
        )
        number = self._fetches.begin(
            request,
            partial(self._fetch_ended, holdings, event, gathered),
            partial(self._part_arrived, holdings, event, gathered) if event.streamed else None,
        )
        if number is not None:
            holdings.fetches[event.request] = number
            if gathered is not None and gathered.chunks and event.streamed:
                self._part_arrived(holdings, event, gathered, 0, ())

    def _answer_at_once(self, event: events.ChunksRequested, status: Status) -> None:
        holdings = self._of(event.engine)
        if event.request not in holdings.fetches and event.request in holdings.gathered:
            self._gathering.give_back(holdings.gathered.pop(event.request))
        self._emit(effects.FetchAnswered(event.engine, event.request, status, places=() if event.any_order else None))

    def _fetch_ended(
        self, holdings: _Holdings, event: events.ChunksRequested, gathered: Gathered | None, result: FetchResult
    ) -> None:
        """All that an engine gets of a fetch is here."""
        holdings.fetches.pop(event.request, None)
        for chunk, _ in result.chunks[: result.told_count]:
            self._pool.unpin(chunk)  # each part has a lease of its own
        lease, chunks = self._lease_of(holdings, result.chunks[result.told_count :], gathered)
        places = None
        if event.any_order:
            index = {key: place for place, key in enumerate(event.keys)} if result.chunks else {}
            places = tuple(index[chunk.key] for chunk, _ in result.chunks)
            if gathered is not None:
                places, chunks = in_order((*gathered.places, *places), chunks)
        if gathered is not None:
            del holdings.gathered[event.request]
            self._observer.chunks_used(gathered.uses)
        self._emit(effects.FetchAnswered(event.engine, event.request, result.status, lease, chunks, places))

    def _part_arrived(
        self,
        holdings: _Holdings,
        event: events.ChunksRequested,
        gathered: Gathered | None,
        _: int,
        came: Sequence[tuple[Chunk, ChunkSource]],
    ) -> None:
        """More leading chunks of a fetch that streams."""
        for chunk, _source in came:
            self._pool.pin(chunk)
        lease, chunks = self._lease_of(holdings, came, gathered)
        self._emit(effects.FetchPartAnswered(event.engine, event.request, lease, chunks))

    def _lease_of(
        self, holdings: _Holdings, came: Sequence[tuple[Chunk, ChunkSource]], gathered: Gathered | None
    ) -> tuple[LeaseId, tuple[FetchedChunk, ...]]:
        """A lease of pinned chunks, and of what was gathered before them."""
        leased: list[Chunk] = []
        told: list[FetchedChunk] = []
        if gathered is not None:
            leased, told = gathered.take()
        if not came and not leased:
            return NO_LEASE, ()
        for chunk, source in came:
            leased.append(chunk)
            told.append(FetchedChunk(chunk.offset, chunk.size_bytes, source))
        lease = self._next_lease()
        holdings.leases[lease] = tuple(leased)
        return lease, tuple(told)

    def fetch_parts(self, event: events.PartsRequested) -> None:
        """Ranges of chunks for an engine."""
        holdings = self._of(event.engine)
        status = Status.OK
        if len(holdings.parts) >= limits.API_REQUESTS_IN_FLIGHT_MAX:
            status = Status.BUSY
        elif not event.keys or len(set(event.keys)) != len(event.keys) or event.request in holdings.parts:
            status = Status.MALFORMED
        if status is not Status.OK:
            self._emit(effects.PartsAnswered(event.engine, event.request, status))
            return
        fetch = self._parts.begin(
            event.keys,
            event.ranges,
            self._clock.now_ns + int(event.deadline_s * 1e9),
            partial(self._parts_ended, event.engine, event.request),
            holdings.tenant,
        )
        if fetch is not None:
            holdings.parts[event.request] = fetch

    def _parts_ended(self, engine: EngineId, request: int, result: PartsResult) -> None:
        holdings = self._of(engine)
        holdings.parts.pop(request, None)
        lease = NO_LEASE
        if result.chunks:
            lease = self._next_lease()
            holdings.leases[lease] = result.chunks
        self._emit(effects.PartsAnswered(engine, request, result.status, lease, result.parts, result.outside))

    def cancel(self, event: events.CancelRequested) -> None:
        """A fetch is no longer wanted."""
        parts = self._of(event.engine).parts.pop(event.request, None)
        if parts is not None:
            self._parts.cancel(parts)
            self._emit(effects.PartsAnswered(event.engine, event.request, Status.CANCELLED))
            return
        holdings = self._of(event.engine)
        number, gathered = holdings.fetches.pop(event.request, None), holdings.gathered.get(event.request)
        if gathered is not None:
            self._gathering.give_back(gathered)
            gathered.status = Status.CANCELLED  # what is still being named is answered so when it is requested
        if number is not None:
            holdings.gathered.pop(event.request, None)
            self._fetches.cancel(number)
            self._emit(effects.FetchAnswered(event.engine, event.request, Status.CANCELLED))

    def release(self, event: events.LeaseReleased) -> None:
        """The engine has read what a fetch gave it."""
        leases = self._of(event.engine).leases
        chunks = leases.pop(event.lease, ())
        if event.count is not None and event.count < len(chunks):
            leases[event.lease], chunks = chunks[event.count :], chunks[: event.count]
            self._emit(effects.LeaseLeft(event.engine, event.lease))
        for chunk in chunks:
            self._pool.unpin(chunk)

    # ------------------------------------------------------------------ chunks by key

    def keys_requested(self, event: events.KeysRequested) -> None:
        """An engine wants something of each of some chunks."""
        self._of(event.engine)
        self._by_kind[event.kind](event)

    def _find_places(self, event: events.KeysRequested) -> None:
        """Where chunks are known to be."""

        def looked_up() -> None:
            if event.engine in self._engines:
                answer()

        def answer() -> None:
            self._answer(event, bytes(self._place(key) for key in event.keys))

        look_ups = self._fetches.look_ups
        nowhere = (key for key in event.keys if self._place(key) is Where.NOWHERE)
        if not look_ups.is_partial or not look_ups.look(nowhere, looked_up, *event.keys[:1]):
            answer()

    def _place(self, key: ChunkKey) -> Where:
        if self._pool.find(key) is not None or (self._disk is not None and self._disk.find(key) is not None):
            return Where.LOCAL
        entry = self._directory.find(key)
        if entry is not None and entry.served:
            return Where.SWITCH
        if self._cold.find(key) is not None or (entry is not None and any(self._directory.holders_elsewhere(key))):
            return Where.REMOTE
        return Where.NOWHERE if self._claims.find(key) is None else Where.COMPUTING

    def _pin(self, event: events.KeysRequested) -> None:
        """Keep the chunks that are in the pool."""
        holdings = self._of(event.engine)
        done = bytearray()
        for key in event.keys:
            chunk = self._pool.find(key)
            if chunk is not None and not self._pool.lend(chunk, holdings.tenant):
                chunk = None
            if chunk is not None:
                self._pool.retain(chunk)
                holdings.pins.setdefault(key, []).append(chunk)
            done.append(chunk is not None)
        self._answer(event, bytes(done))

    def _unpin(self, event: events.KeysRequested) -> None:
        """Take pins of this engine back."""
        pins = self._of(event.engine).pins
        done = bytearray()
        for key in event.keys:
            pinned = pins.get(key)
            if pinned:
                chunk = pinned.pop()
                if chunk.state is ChunkState.READY:
                    self._pool.release(chunk)
                if not pinned:
                    del pins[key]
            done.append(pinned is not None)
        self._answer(event, bytes(done))

    def _lock(self, event: events.KeysRequested) -> None:
        """Keep the chunks that are in the pool for a while."""
        self._answer(event, bytes(self.locks.lock(event.engine, key, event.hold_s) for key in event.keys))

    def _unlock(self, event: events.KeysRequested) -> None:
        """Take locks of this engine back."""
        self._answer(event, bytes(self.locks.unlock(event.engine, key) for key in event.keys))

    def _drop(self, event: events.KeysRequested) -> None:
        """Take chunks out of the pool and off the disk, the last one first: then a prefix goes from its end."""
        gone = (DropOutcome.DROPPED, DropOutcome.WAITING)
        dropped = bytes([self._observer.drop_everywhere(key) in gone for key in reversed(event.keys)])
        self._answer(event, dropped[::-1])

    def _answer(self, event: events.KeysRequested, values: bytes) -> None:
        self._emit(effects.KeysAnswered(event.engine, event.request, event.kind, values))

    # ------------------------------------------------------------------ the end

    def engine_disconnected(self, event: events.EngineDisconnected) -> None:
        """The connection ended: give back all that its engine held."""
        engine = event.engine
        self.interests.engine_disconnected(engine)
        holdings = self._engines.pop(engine, None)
        if holdings is None:
            return
        if holdings.tenant != NOBODY:
            self._pool.tenants.engine_disconnected(holdings.tenant)
            self.local_reads.engine_disconnected()
        for parts in holdings.parts.values():
            self._parts.cancel(parts)
        for chunk in holdings.reservations.values():
            self._give_up(chunk)
        self._claims.engine_disconnected(engine)
        self.locks.engine_disconnected(engine)
        leased_count = sum(len(chunks) for chunks in holdings.leases.values())
        gathered_count = sum(len(gathered.chunks) for gathered in holdings.gathered.values())
        fetches_count = WINDOW * max(0, len(holdings.fetches) - 1)
        count = leased_count + gathered_count + fetches_count + len(holdings.pins)
        self._windows.do(self._given_back(holdings), count)

    def _given_back(self, holdings: _Holdings) -> Work:
        """What an engine held that is gone. What ends of its fetches in the meantime is leased to it, too."""
        while holdings.fetches:
            self._fetches.cancel(holdings.fetches.popitem()[1])
            yield
        for gathered in holdings.gathered.values():
            holdings.leases[self._next_lease()] = tuple(gathered.take()[0])
        for leased in holdings.leases.values():
            for first in range(0, len(leased), WINDOW):
                for chunk in leased[first : first + WINDOW]:
                    self._pool.unpin(chunk)
                yield
        for number, pinned in enumerate(holdings.pins.values()):
            for chunk in pinned:
                if chunk.state is ChunkState.READY:
                    self._pool.release(chunk)
            if number % WINDOW == WINDOW - 1:
                yield
