"""Chunks of the node's pool: states, pins, events. Pure: offsets and counts only, no memory, no clock.

A chunk is FILLING (being written by an engine or by arriving segments), READY (whole and verified), or EVICTING
(dropped while in use: nobody finds it any more, its memory goes when the last pin does). Pins belong to `Chunk`
objects, not to keys, so a key that is dropped and put again while the old copy is still being read is two chunks.
"""

from __future__ import annotations

import enum
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import islice

from hostagent.pool.catalog import NOT_SHOWN, Catalog, Hits, Shown
from hostagent.pool.extents import ExtentAllocator
from hostagent.pool.index import NO_SLOT, Found, PoolIndex
from hostagent.pool.records import Record
from hostagent.pool.tenants import NOBODY, Tenants, Turns
from hostagent.pool.victims import Victims
from hostagent.tree import Hashed
from kvchunk.ids import ChunkKey, Digest
from kvcodec.forms import StoredForm
from kvpolicy.value import CacheValues, EvictionCosts, Touch
from kvproto.integrity import NO_DIGEST

SCORE_RISE = 0.5
"""Rise of log2 of a value by which a fetch is recognized: nothing else makes it rise."""
ECHO_S = 2.0
"""For this long after a fetch here the controller's scores may still reflect that very fetch."""


class ChunkState(enum.Enum):
    """The state of a chunk in the pool."""

    FILLING = "filling"
    READY = "ready"
    EVICTING = "evicting"
    GONE = "gone"


class Refusal(enum.Enum):
    """Why a reservation was not made; nothing changed."""

    EXISTS = "exists"
    """The chunk is here, ready."""
    FILLING = "filling"
    """Somebody is filling this very chunk."""
    FULL = "full"
    """No room even after evicting all that may go; the chunk's own prefix may not."""
    TOO_LARGE = "too_large"
    """Larger than the whole pool."""


class DropOutcome(enum.Enum):
    """What became of dropping a chunk."""

    ABSENT = "absent"
    DROPPED = "dropped"
    WAITING = "waiting"
    """In use: invisible from now on, freed with the last pin."""
    HELD = "held"
    """Kept by the operator or an engine's pin, and not forced."""


@dataclass(slots=True, eq=False)
class Chunk:
    """One copy of a chunk in this pool. Fields are the pool's to write."""

    key: ChunkKey
    parent: ChunkKey | None
    position: int
    namespace: str
    offset: int
    size_bytes: int
    state: ChunkState
    digest: Digest = NO_DIGEST
    """Of its bytes; NO_DIGEST while an engine or the network writes them."""
    leaves: bytes = b""
    """Of its tree (`hostagent.tree`), where it has one and was hashed by this process."""
    pins: int = 0
    """Users of its bytes right now: leases, sends, reads."""
    holds: int = 0
    """Reasons to keep it: engines' pins, the operator's pin."""
    remote_score: float | None = None
    """The controller's last word on it (`ChunkPool.update_remote_score`)."""
    slot: int = NO_SLOT
    """Where the pool's index has it."""
    tenant: str = NOBODY
    """Whom it counts for (`hostagent.pool.tenants`)."""
    shown: int = NOT_SHOWN
    """Its word in the catalog that engines read, while it is READY."""
    stored: StoredForm | None = None
    """How it lies in the slab of a disk, where it lies there in fewer bytes; None: as it is."""
    extent_bytes: int = 0
    """What it takes of the pool: its room, rounded up to pages."""

    @property
    def room_bytes(self) -> int:
        """Of its extent, but for rounding up to pages."""
        return self.size_bytes if self.stored is None else self.stored.size_bytes

    @property
    def is_held(self) -> bool:
        """Whether it cannot be evicted."""
        return bool(self.state is ChunkState.FILLING or self.pins or self.holds)


def _record(chunk: Chunk) -> Record:
    return Record(
        chunk.key, chunk.parent, chunk.position, chunk.namespace, chunk.offset, chunk.size_bytes, chunk.digest, 0
    )


def touch_of(chunk: Chunk) -> Touch:
    """A chunk as policies know it."""
    return Touch(chunk.key, chunk.parent, chunk.position, chunk.size_bytes)


@dataclass(frozen=True, slots=True)
class PoolUsage:
    """Bytes of extents (chunks rounded up to pages) by what holds them."""

    size_bytes: int
    free_bytes: int
    ready_bytes: int
    filling_bytes: int
    pinned_bytes: int
    chunks_count: int


class ChunkPool:
    """The manager: owns reference counts and events. `kvpolicy.value` owns what chunks are worth, and so who goes."""

    def __init__(
        self,
        size_bytes: int,
        align_bytes: int,
        now_ns: Callable[[], int],
        eviction_costs: EvictionCosts | None = None,
        index: PoolIndex | None = None,
        tenants: Tenants | None = None,
        catalog: Catalog | None = None,
    ) -> None:
        """`now_ns`: the shell's monotonic clock; nothing but the value of chunks depends on it. `eviction_costs`: see
        `CacheValues`. `index`: is told of everything before it happens to the memory. `tenants`: by default there is
        none but nobody. `catalog`: shows READY chunks to engines, which lease them by themselves."""
        self._index = index
        self.tenants = tenants if tenants is not None else Tenants(size_bytes)
        self.shown: Shown[Chunk] = Shown(catalog)
        self._extents = ExtentAllocator(size_bytes, align_bytes)
        self._now_ns = now_ns
        self.values = CacheValues(size_bytes, eviction_costs=eviction_costs)
        self._chunks: dict[ChunkKey, Chunk] = {}
        self._beside: dict[ChunkKey, Chunk] = {}
        """Second copies that engines write of chunks which are FILLING otherwise (`reserve_beside`)."""
        self._apart: set[Chunk] = set()
        """Memory that is no chunk (`reserve_apart`)."""
        self._turns = Turns()
        self._victims = Victims(self._chunks, self._extents, self.tenants, self._turns, self.values, self._evictable)
        self._evicting: set[Chunk] = set()
        self._added: dict[ChunkKey, Chunk] = {}
        self._removed: set[ChunkKey] = set()
        self._filling_bytes = 0
        self._pinned_bytes = 0
        self.pins_count = 0
        """Pins of all chunks, those being evicted included: 0 on an idle node."""
        self.evicted_count = 0

    # -------------------------------------------------------------- filling

    def reserve(
        self,
        key: ChunkKey,
        parent: ChunkKey | None,
        size_bytes: int,
        position: int | None = None,
        namespace: str = "",
        tenant: str = NOBODY,
    ) -> Chunk | Refusal:
        """Room for a chunk, state FILLING, evicting what must go. Atomic: a Refusal leaves everything as it was (but
        for chunks that were to go when an engine leased them).
        Everybody who wants a chunk here needs its bytes in this memory, so the newcomer is never weighed against them.
        The chunks of its own prefix stay: without them nobody finds it.
        """
        if position is None:
            before = self._chunks.get(parent) if parent is not None else None
            position = before.position + 1 if before is not None else 0
        touch = Touch(key, parent, position, size_bytes)
        made = self._reserve(touch, namespace, tenant)
        if isinstance(made, Chunk):
            self.values.add((touch,), self._now_ns(), is_whole=False)
        return made

    def reserve_all(
        self, wanted: Sequence[tuple[Touch, str]], tenant: str = NOBODY, *, any_order: bool = False
    ) -> list[Chunk | Refusal]:
        """`reserve` for the chunks of a prefix and their namespaces, up to the first that is refused; `any_order`: for
        each of them."""
        if len(wanted) > 1:
            self._clear(wanted, tenant, any_order=any_order)
        made: list[Chunk | Refusal] = []
        filling: list[Touch] = []
        for touch, namespace in wanted:
            one = self._reserve(touch, namespace, tenant)
            made.append(one)
            if isinstance(one, Chunk):
                filling.append(touch)
            elif not any_order:
                break
        self.values.add(filling, self._now_ns(), is_whole=False)
        return made

    def _clear(self, wanted: Sequence[tuple[Touch, str]], tenant: str, *, any_order: bool) -> None:
        """Have those go that must for all of these, looked for at once. Where that cannot be, or others count, too,
        `_reserve` looks for each by itself."""
        fitting: list[Touch] = []
        for touch, _ in wanted:
            is_refused = touch.key in self._chunks or touch.size_bytes > self._extents.size_bytes
            if is_refused and not any_order:
                break
            if not is_refused:
                fitting.append(touch)
        sizes_bytes = [touch.size_bytes for touch in fitting]
        needed_bytes = sum(map(self._extents.extent_bytes, sizes_bytes))
        if needed_bytes <= self._extents.free_bytes or not self.tenants.has_alone(tenant):
            return
        if self.tenants.may_hold(tenant, needed_bytes):
            self.sweep()
            kept: set[ChunkKey] = set()
            for touch in fitting:
                if touch.parent not in kept:
                    kept |= self._prefix(touch.parent)
            victims = self._victims.plan_all(sizes_bytes, kept, self._now_ns())
            if victims:
                self._evict(victims)

    def _evict(self, victims: Sequence[Chunk]) -> None:
        self._retire(victims)
        self.evicted_count += len(victims)

    def _reserve(self, touch: Touch, namespace: str, tenant: str) -> Chunk | Refusal:
        """The values do not know the chunk yet: as long as it is FILLING they are not asked about it."""
        key, parent, size_bytes = touch.key, touch.parent, touch.size_bytes
        present = self._chunks.get(key)
        if present is not None:
            return Refusal.EXISTS if present.state is ChunkState.READY else Refusal.FILLING
        chunk = Chunk(key, parent, touch.position, namespace, 0, size_bytes, ChunkState.FILLING, tenant=tenant)
        refusal = self._begin_filling(chunk)
        if refusal is not None:
            return refusal
        self._enter(chunk)
        return chunk

    def reserve_beside(self, key: ChunkKey, size_bytes: int, tenant: str = NOBODY) -> Chunk | Refusal:
        """Room for an engine's own copy of a chunk that is FILLING by other means. Whichever is whole first is the
        chunk: when the first is given up, this one takes its place, and when that is READY, abort this one."""
        first = self._chunks.get(key)
        if first is None or first.state is not ChunkState.FILLING:
            raise ValueError(f"chunk {key.hex()} is not filling")
        if key in self._beside or first.size_bytes != size_bytes:
            return Refusal.FILLING
        chunk = Chunk(
            key, first.parent, first.position, first.namespace, 0, size_bytes, ChunkState.FILLING, tenant=tenant
        )
        refusal = self._begin_filling(chunk)
        if refusal is not None:
            return refusal
        self._beside[key] = chunk
        return chunk

    def reserve_apart(self, key: ChunkKey, size_bytes: int, tenant: str = NOBODY) -> Chunk | Refusal:
        """Room for parts of a chunk: FILLING, and never more than that. Nobody finds it, whatever its key; `abort` it,
        and its memory goes with the last pin."""
        chunk = Chunk(key, None, 0, "", 0, size_bytes, ChunkState.FILLING, tenant=tenant)
        refusal = self._begin_filling(chunk)
        if refusal is not None:
            return refusal
        self._apart.add(chunk)
        return chunk

    def _begin_filling(self, chunk: Chunk) -> Refusal | None:
        """Give a chunk its extent, for which others may have been evicted, and count it. Refused: there is none for its
        tenant."""
        extents, tenant, size_bytes = self._extents, chunk.tenant, chunk.size_bytes
        chunk.extent_bytes = extents.extent_bytes(size_bytes)
        if chunk.extent_bytes > extents.size_bytes:
            return Refusal.TOO_LARGE
        offset = None
        if self.tenants.may_hold(tenant, chunk.extent_bytes):
            offset = extents.allocate(chunk.extent_bytes)
            if offset is None:
                offset = self._make_room(chunk)
        if offset is None:
            self.tenants.refused_count[tenant] += 1
            return Refusal.FULL
        chunk.offset = offset
        if self._index is not None:
            chunk.slot = self._index.hold(_record(chunk))
        self._filling_bytes += chunk.extent_bytes
        self.tenants.use(tenant, chunk.extent_bytes, held=True)
        return None

    def _make_room(self, chunk: Chunk) -> int | None:
        """The offset of an extent after evicting others; None: all of them have to stay."""
        self.sweep()
        while (offset := self._extents.allocate(chunk.extent_bytes)) is None:
            victims = self._victims.plan(chunk.size_bytes, self._prefix(chunk.parent), chunk.tenant, self._now_ns())
            if victims is None:
                return None
            self._evict(victims)  # one that an engine has leased since `sweep` stays: then others go
        return offset

    def _enter(self, chunk: Chunk) -> None:
        """It is the chunk of its key from now on; the values are to hear of it."""
        self._chunks[chunk.key] = chunk
        self._turns.add(chunk.tenant, chunk.key, chunk.parent)

    def commit(self, chunk: Chunk, hashed: Hashed) -> None:
        """The chunk is whole, and this is what it is: READY, and an event for the directory."""
        if chunk.state is not ChunkState.FILLING:
            raise ValueError(f"chunk {chunk.key.hex()} is {chunk.state.value}, not filling")
        if self._chunks.get(chunk.key) is not chunk:
            raise ValueError(f"chunk {chunk.key.hex()} has another copy that is not given up")
        chunk.state = ChunkState.READY
        chunk.digest, chunk.leaves = hashed.digest, hashed.leaves
        if self._index is not None:
            self._index.ready(chunk.slot, _record(chunk))
        self._filling_bytes -= chunk.extent_bytes
        if not (chunk.pins or chunk.holds):
            self.tenants.hold(chunk.tenant, -chunk.extent_bytes)
        if not self.values.is_known(chunk.key):
            # An engine asks for a chunk before it computes it: the put is the chunk's first use.
            self.values.fetched((touch_of(chunk),), self._now_ns())
        self._added[chunk.key] = chunk
        self.shown.show(chunk)

    def shrink(self, chunk: Chunk, stored: StoredForm) -> None:
        """A FILLING chunk of a disk's slab took fewer bytes than it has: the end of its extent is free again."""
        if chunk.state is not ChunkState.FILLING or stored.size_bytes > chunk.room_bytes:
            raise ValueError(f"chunk {chunk.key.hex()} cannot shrink to {stored.size_bytes} bytes")
        before_bytes, chunk.extent_bytes = chunk.extent_bytes, self._extents.extent_bytes(stored.size_bytes)
        chunk.stored = stored
        freed_bytes = before_bytes - chunk.extent_bytes
        if freed_bytes:
            self._extents.free(chunk.offset + chunk.extent_bytes, freed_bytes)
            self._filling_bytes -= freed_bytes
            self._pinned_bytes -= freed_bytes * bool(chunk.pins or chunk.holds)
            self.tenants.use(chunk.tenant, -freed_bytes, held=True)

    def abort(self, chunk: Chunk) -> None:
        """A chunk being filled is given up; its memory is free again once nothing pins it."""
        if chunk.state is not ChunkState.FILLING:
            raise ValueError(f"chunk {chunk.key.hex()} is {chunk.state.value}, not filling")
        self._retire([chunk])

    def restore(self, found: Record) -> Chunk | None:
        """Add a chunk that was found in storage, READY; None when another one has its key or part of its place."""
        chunk = Chunk(
            found.key,
            found.parent,
            found.position,
            found.namespace,
            found.offset,
            found.size_bytes,
            ChunkState.READY,
            found.digest,
            stored=found.stored,
        )
        chunk.extent_bytes = self._extents.extent_bytes(chunk.room_bytes)
        if found.key in self._chunks or not self._extents.take(found.offset, chunk.extent_bytes):
            return None
        self._enter(chunk)
        self._added[found.key] = chunk
        self.tenants.use(NOBODY, chunk.extent_bytes)
        self.values.add([touch_of(chunk)], self._now_ns())
        return chunk

    def adopt(self, found: Found) -> Chunk | None:
        """Take over an extent that an agent before this one had given out; None: its place or its key is taken.

        A chunk that was READY is FILLING now, with its digest: compare it with the bytes, then `commit` or `abort`.
        Any other is EVICTING and pinned once, so that nobody gets the extent until `unpin`.
        """
        record = found.record
        double = found.ready and record.key in self._chunks
        if double or not self._extents.take(record.offset, record.size_bytes):
            if self._index is not None:
                self._index.free(found.slot)
            return None
        chunk = Chunk(
            record.key,
            record.parent,
            record.position,
            record.namespace,
            record.offset,
            record.size_bytes,
            ChunkState.FILLING,
            record.digest,
            slot=found.slot,
            extent_bytes=self._extents.extent_bytes(record.size_bytes),
        )
        self.tenants.use(NOBODY, chunk.extent_bytes, held=found.ready)
        if found.ready:
            self._enter(chunk)
            self._filling_bytes += chunk.extent_bytes
            self.values.add([touch_of(chunk)], self._now_ns())
        else:
            chunk.state = ChunkState.EVICTING
            self._evicting.add(chunk)
            self._keep(chunk, pins=1)
        return chunk

    # -------------------------------------------------------------- use

    def find(self, key: ChunkKey) -> Chunk | None:
        """The READY chunk of this key."""
        chunk = self._chunks.get(key)
        return chunk if chunk is not None and chunk.state is ChunkState.READY else None

    def is_filling(self, key: ChunkKey) -> bool:
        """Whether somebody is writing the chunk."""
        chunk = self._chunks.get(key)
        return chunk is not None and chunk.state is ChunkState.FILLING

    def pin(self, chunk: Chunk) -> None:
        """One more user of the chunk's bytes; they stay until as many `unpin`."""
        if chunk.state is ChunkState.GONE:
            raise ValueError(f"chunk {chunk.key.hex()} is gone")
        self._keep(chunk, pins=1)

    def unpin(self, chunk: Chunk) -> None:
        """One user fewer."""
        if chunk.pins <= 0:
            raise ValueError(f"chunk {chunk.key.hex()} has no pin to take back")
        self._keep(chunk, pins=-1)
        if chunk.pins == 0 and chunk.state is ChunkState.EVICTING:
            self._evicting.discard(chunk)
            self._free(chunk)

    def touch(self, keys: Iterable[ChunkKey]) -> None:
        """Chunks were of use to readers elsewhere, all at once. Those that follow on each other in a prefix are one
        fetch, as they were at the node that asked for them."""
        fetch: list[Touch] = []
        for key, readers in Counter(keys).items():
            chunk = self._chunks.get(key)
            if chunk is None:
                continue
            if fetch and chunk.parent != fetch[-1].key:
                self.values.fetched(fetch, self._now_ns())
                fetch = []
            fetch.append(Touch(key, chunk.parent, chunk.position, chunk.size_bytes, readers))
        if fetch:
            self.values.fetched(fetch, self._now_ns())

    def fetched(self, touches: Sequence[Touch]) -> None:
        """An engine asked for these, in prefix order, here or not: what the values learn from."""
        self.values.fetched(touches, self._now_ns())

    def finished(self, keys: Iterable[ChunkKey]) -> None:
        """A session ended: these and all that hangs on them here are not expected again."""
        named = set(keys)
        for chunk in self.ready_chunks():
            if chunk.parent in named:
                named.add(chunk.key)
        self.values.finished(named, self._now_ns())

    def expect(self, keys: Iterable[ChunkKey], within_s: float) -> None:
        """These will be asked for in about `within_s`."""
        self.values.expect(keys, within_s, self._now_ns())

    def update_remote_score(self, key: ChunkKey, score: float) -> None:
        """What a chunk is worth to all nodes, as the controller says (log2, any unit). When it rises although nobody
        asked for the chunk here lately, it was fetched elsewhere; that makes it likelier to be wanted here as well."""
        chunk = self._chunks.get(key)
        if chunk is None:
            return
        risen = chunk.remote_score is not None and score - chunk.remote_score >= SCORE_RISE
        chunk.remote_score = score
        now_ns = self._now_ns()
        if risen and self.values.idle_s(key, now_ns) > ECHO_S:
            self.values.fetched([touch_of(chunk)], now_ns)

    def lend(self, chunk: Chunk, tenant: str) -> bool:
        """Whether an engine of a tenant may pin or retain a chunk now. A chunk that was nobody's is the tenant's then:
        somebody here has asked for it."""
        owner = tenant if chunk.tenant == NOBODY else chunk.tenant
        if not chunk.is_held or owner != chunk.tenant:
            if not self.tenants.may_hold(owner, chunk.extent_bytes):
                self.tenants.refused_count[tenant] += 1
                return False
            if owner != chunk.tenant:
                self._move(chunk, owner)
        return True

    def _move(self, chunk: Chunk, tenant: str) -> None:
        """A chunk counts for another tenant."""
        for owner, change in ((chunk.tenant, -chunk.extent_bytes), (tenant, chunk.extent_bytes)):
            self.tenants.use(owner, change, held=chunk.is_held)
        if self._chunks.get(chunk.key) is chunk:
            self._turns.remove(chunk.tenant, chunk.key, chunk.parent)
            self._turns.add(tenant, chunk.key, chunk.parent)
        chunk.tenant = tenant

    def retain(self, chunk: Chunk) -> None:
        """One more reason not to evict a READY chunk."""
        if chunk.state is not ChunkState.READY:
            raise ValueError(f"chunk {chunk.key.hex()} is {chunk.state.value}, not ready")
        self._keep(chunk, holds=1)

    def release(self, chunk: Chunk) -> None:
        """One reason fewer. A forced drop ends all holds, so none left is no error."""
        if chunk.holds > 0:
            self._keep(chunk, holds=-1)

    def drop(self, key: ChunkKey, *, force: bool = False) -> DropOutcome:
        """Make a READY chunk invisible now and free it as soon as nobody uses it. `force` overrides holds."""
        chunk = self.find(key)
        if chunk is None:
            return DropOutcome.ABSENT
        if chunk.holds and not force:
            return DropOutcome.HELD
        self._retire([chunk])
        return DropOutcome.WAITING if chunk.pins else DropOutcome.DROPPED

    # -------------------------------------------------------------- order, events, figures

    def admits(self, chunk: Chunk) -> bool:
        """Whether a chunk of another pool should come in: there is room, or it is worth more than all that would go."""
        room = self._extents.copy().allocate(chunk.size_bytes) is not None
        touch = touch_of(chunk)
        return self.values.admits(touch, self._now_ns(), self._evictable, chunk.size_bytes if room else 0)

    def next_victims(self, count: int) -> list[ChunkKey]:
        """What would be evicted first, in this order, if room were needed."""
        order = self.values.victims(self._now_ns(), self._evictable)
        return list(islice(order, count))

    def dearest(self, count: int) -> list[ChunkKey]:
        """Chunks that would be evicted last, the very last one first."""
        last = deque(self.values.victims(self._now_ns(), self._evictable), maxlen=count)
        return list(reversed(last))

    def take_changes(self) -> tuple[list[Chunk], list[ChunkKey]]:
        """(chunks that became READY and still are, keys of those that were READY before and went) since the last call.
        A key in both went and came back."""
        added, removed = list(self._added.values()), sorted(self._removed)
        self._added.clear()
        self._removed.clear()
        return added, removed

    def ready_chunks(self) -> list[Chunk]:
        """All READY chunks, parents before children where positions say so."""
        return sorted(
            (chunk for chunk in self._chunks.values() if chunk.state is ChunkState.READY),
            key=lambda chunk: chunk.position,
        )

    def has_room(self, sizes_bytes: Iterable[int]) -> bool:
        """Whether there is so much room that, most likely, none of these has others evicted."""
        return sum(map(self._extents.extent_bytes, sizes_bytes)) <= self._extents.free_bytes

    def usage(self) -> PoolUsage:
        """Figures of this moment."""
        taken = self._extents.size_bytes - self._extents.free_bytes
        return PoolUsage(
            self._extents.size_bytes,
            self._extents.free_bytes,
            taken - self._filling_bytes,
            self._filling_bytes,
            self._pinned_bytes,
            len(self._chunks),
        )

    # -------------------------------------------------------------- inside

    def _keep(self, chunk: Chunk, *, pins: int = 0, holds: int = 0) -> None:
        """Change a chunk's counts, and the totals with them."""
        before = bool(chunk.pins or chunk.holds)
        chunk.pins += pins
        chunk.holds += holds
        self.pins_count += pins
        after = bool(chunk.pins or chunk.holds)
        if before is not after:
            change_bytes = (after - before) * chunk.extent_bytes
            self._pinned_bytes += change_bytes
            if chunk.state is not ChunkState.FILLING:
                self.tenants.hold(chunk.tenant, change_bytes)

    def _evictable(self, key: ChunkKey) -> bool:
        chunk = self._chunks[key]
        return (
            chunk.state is ChunkState.READY and not chunk.pins and not chunk.holds and not self.shown.is_leased(chunk)
        )

    def _prefix(self, parent: ChunkKey | None) -> set[ChunkKey]:
        """`parent` and those before it, as far back as they are here without a gap."""
        keys: set[ChunkKey] = set()
        while parent is not None and parent not in keys and (chunk := self._chunks.get(parent)) is not None:
            keys.add(parent)
            parent = chunk.parent
        return keys

    def _retire(self, chunks: Sequence[Chunk]) -> None:
        """Nobody finds these any more; the memory of those that nobody uses is free."""
        for chunk in chunks:
            self._forget(chunk)
        for chunk in self.shown.hide(chunks):
            self._keep(chunk, pins=1)
        for chunk in chunks:
            if chunk.pins:
                chunk.state = ChunkState.EVICTING  # held as before: by its pins
                self._evicting.add(chunk)
                if self._index is not None:
                    self._index.retire(chunk.slot)
            else:
                self._free(chunk)

    # -------------------------------------------------------------- engines that read without asking

    def sweep(self) -> None:
        """Look at what engines have leased without asking, and free what had to stay only for them."""
        for chunk in self.shown.sweep(anew=True):
            self.unpin(chunk)

    def look(self) -> list[tuple[Hits, list[Chunk]]]:
        """`sweep`, and what engines have read without asking since the last call, and which chunks that was; the values
        learn of each chunk once. A chunk that was nobody's is the tenant's then, as far as it may hold it."""
        taken = self.shown.look()
        for chunk in self.shown.sweep(anew=False):
            self.unpin(chunk)
        for hits, chunks in taken:
            distinct = list(dict.fromkeys(chunks))
            for chunk in distinct:
                if chunk.tenant == NOBODY:
                    self.lend(chunk, hits.tenant)
            self.values.fetched([touch_of(chunk) for chunk in distinct], self._now_ns())
        return taken

    def _forget(self, chunk: Chunk) -> None:
        if chunk in self._apart:
            self._apart.remove(chunk)
        elif self._beside.get(chunk.key) is chunk:
            del self._beside[chunk.key]
        else:
            del self._chunks[chunk.key]
            self._turns.remove(chunk.tenant, chunk.key, chunk.parent)
            self.values.remove(chunk.key)
            beside = self._beside.pop(chunk.key, None)
            if beside is not None:
                self._enter(beside)
                self.values.add([touch_of(beside)], self._now_ns())
        self._keep(chunk, holds=-chunk.holds)
        if chunk.state is ChunkState.FILLING:
            self._filling_bytes -= chunk.extent_bytes
        if chunk.state is ChunkState.READY and self._added.pop(chunk.key, None) is None:
            self._removed.add(chunk.key)

    def _free(self, chunk: Chunk) -> None:
        if self._index is not None:
            self._index.free(chunk.slot)
        self._extents.free(chunk.offset, chunk.extent_bytes)
        # One that was being written, and is given up, was held all the time.
        self.tenants.use(chunk.tenant, -chunk.extent_bytes, held=chunk.is_held)
        chunk.state = ChunkState.GONE
