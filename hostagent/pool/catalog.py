"""Shows engines what is in the pool, and reads what they lease by themselves. Pure: the layout is `kvclient.catalog`.

`Catalog` knows words, `Shown` the chunks that they stand for.

Engines lease chunks in tables of their own, without a word to the agent. So before a chunk's memory is given to anybody
else the agent hides the chunk, and looks into all tables: a chunk that is leased there stays until the lease ends, or
its engine's connection.

An engine can write anything into its table. The agent believes only leases of chunks that it shows or has just hidden,
and of those no more bytes than the connection may lease. An engine that leases more loses the protection of the rest.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Generic, Protocol, TypeVar

from kvclient import catalog
from kvclient.barrier import ORDERS_WRITES
from kvclient.catalog import WAYS, Header, Tags, lease_word, of_lease_word, word_of

NOT_SHOWN: Final = 0
"""No lease's word."""
LOOKS_MAX: Final = 8
"""An engine that gives leases back and takes others may look, to one who reads its table meanwhile, as if it had both.
So a table that shows too much is read again."""
SHOWN_TWICE: Final = 2
"""And this many times its bytes count as too much."""
CONNECTION_SHARE: Final = 1 / 32
TENANT_SHARE: Final = 1 / 16
ALL_SHARE: Final = 1 / 8
"""Of the pool: what a connection, a tenant and all of them together may lease without asking. Beside what tenants hold:
one that holds as much as it may leaves a sixteenth of the pool to the next."""


class Table(Protocol):
    """What one connection leases."""

    tenant: str
    allowance_bytes: int

    def read(self) -> bytes:
        """TABLE_BYTES bytes, as they are now, or (the engine has made it unreadable) nothing."""


class Tables(Protocol):
    """Of all connections."""

    def all(self) -> Sequence[Table]:
        """Of those that may lease anything."""

    def fence(self) -> None:
        """What this process wrote before is seen by whatever engines do after it, and the other way round."""


@dataclass(frozen=True, slots=True)
class Hits:
    """What engines of a tenant have read without asking."""

    tenant: str
    count: int
    """Of the last look's hits, those that were still in the table: an engine may have more, and may lie."""
    words: tuple[int, ...]
    """Of chunks among them that are still shown, oldest first, as `Catalog.show` gave them out."""


@dataclass(frozen=True, slots=True)
class _Seen:
    """A table at the last look. One that has not changed says nothing new."""

    content: bytes
    hits_count: int
    leases: Sequence[int]


_UNSEEN: Final = _Seen(b"", 0, ())


class Grants:
    """How much connections may lease without asking."""

    def __init__(self, pool_bytes: int) -> None:
        self._pool_bytes = pool_bytes
        self._by_tenant: Counter[str] = Counter()

    def begin(self, tenant: str) -> int:
        """Bytes that one more connection may lease; 0: none. Give it back by `end`."""
        left_bytes = min(
            int(self._pool_bytes * CONNECTION_SHARE),
            int(self._pool_bytes * TENANT_SHARE) - self._by_tenant[tenant],
            int(self._pool_bytes * ALL_SHARE) - self._by_tenant.total(),
        )
        granted_bytes = max(0, left_bytes)
        self._by_tenant[tenant] += granted_bytes
        return granted_bytes

    def end(self, tenant: str, granted_bytes: int) -> None:
        """A connection ended."""
        self._by_tenant[tenant] -= granted_bytes
        if not self._by_tenant[tenant]:
            del self._by_tenant[tenant]


class Catalog:
    """Of one pool; this process is the only one that writes it."""

    def __init__(self, words: memoryview, sets: int, salt: bytes, tables: Tables) -> None:
        """`words`: a catalog of zeros, of format Q."""
        header = Header(sets, salt)
        header.write(words)
        self._words = words
        self._mask = sets - 1
        self._tags = Tags(salt)
        self._tables = tables
        self._sizes: dict[int, int] = {}
        """Bytes of each chunk that is shown, or hidden and still leased, by its word."""
        self._seen: dict[Table, _Seen] = {}
        """Each connection's table at the last look."""
        self.unshown_count = 0
        """Chunks for which there was no entry in their set: engines ask the agent for them."""

    def show(self, key: bytes, offset: int, size_bytes: int) -> int:
        """Engines find a chunk from now on. Its word, by which it is hidden; NOT_SHOWN: there is no entry free."""
        low, high = self._tags.of(key)
        words, first = self._words, (low & self._mask) * WAYS
        for entry in range(first, first + WAYS):
            at = word_of(entry)
            generation = words[at]
            if generation & 1:
                continue
            words[at + 1], words[at + 2], words[at + 3], words[at + 4] = low, high, offset, size_bytes
            if not ORDERS_WRITES:
                self._tables.fence()
            words[at] = generation + 1
            word = lease_word(entry, generation + 1)
            self._sizes[word] = size_bytes
            return word
        self.unshown_count += 1
        return NOT_SHOWN

    def hide(self, shown: Sequence[int]) -> set[int]:
        """Engines do not find these chunks any more. Those that are leased at this moment: call `forget` when they are
        no longer."""
        for word in shown:
            entry, _ = of_lease_word(word)
            self._words[word_of(entry)] += 1
        leased: set[int] = set()
        if self._tables.all():
            self._tables.fence()
            leased = self.leased() & set(shown)
        for word in shown:
            if word not in leased:
                del self._sizes[word]
        return leased

    def forget(self, word: int) -> None:
        """A chunk that was hidden while it was leased is not leased any more."""
        del self._sizes[word]

    def leased(self) -> set[int]:
        """Words of the chunks that engines read at this moment, of those shown and of those hidden before."""
        found: set[int] = set()
        for table in self._tables.all():
            found.update(self._honoured(table, catalog.leases_of(table.read())))
        return found

    def _honoured(self, table: Table, leases: Sequence[int]) -> list[int]:
        """Leases of one connection, as far as it may have them."""
        sizes, most_bytes = self._sizes, SHOWN_TWICE * table.allowance_bytes
        words = [word for word in leases if word in sizes]
        for _ in range(LOOKS_MAX):
            if sum(map(sizes.__getitem__, words)) <= most_bytes:
                return words
            words = [word for word in catalog.leases_of(table.read()) if word in sizes]
        honoured: list[int] = []
        for word in words:
            most_bytes -= sizes[word]
            if most_bytes < 0:
                break
            honoured.append(word)
        return honoured

    def look(self) -> tuple[list[Hits], set[int]]:
        """(what engines have read without asking since the last look, words of the chunks that they read now)."""
        hits: list[Hits] = []
        leased: set[int] = set()
        before, self._seen = self._seen, {}
        for table in self._tables.all():
            content, seen = table.read(), before.get(table, _UNSEEN)
            if content != seen.content:
                hits_count, words = catalog.hits_of(content, seen.hits_count)
                seen = _Seen(content, hits_count, catalog.leases_of(content))
                if words:
                    hits.append(Hits(table.tenant, len(words), tuple(filter(self._sizes.__contains__, words))))
            self._seen[table] = seen
            if seen.leases:
                leased.update(self._honoured(table, seen.leases))
        return hits, leased


class Showable(Protocol):
    """A chunk."""

    @property
    def key(self) -> bytes:
        """Its name."""

    @property
    def offset(self) -> int:
        """In the pool."""

    @property
    def size_bytes(self) -> int:
        """Of its content."""

    shown: int
    """Its word in the catalog; NOT_SHOWN: it never was there."""


T = TypeVar("T", bound=Showable)


class Shown(Generic[T]):
    """Which chunks of a pool engines find by themselves, and which of them they have leased."""

    def __init__(self, catalog: Catalog | None) -> None:
        """None: engines find nothing by themselves."""
        self._catalog = catalog
        self._chunks: dict[int, T] = {}
        """Those that engines find, by their words."""
        self._leased: set[int] = set()
        """Words of chunks that engines had leased at the last look."""
        self.lingering: list[T] = []
        """Those that engines do not find any more, and had leased when they were hidden."""

    @property
    def is_on(self) -> bool:
        """Whether engines find anything."""
        return self._catalog is not None

    def show(self, chunk: T) -> None:
        """Engines find a chunk from now on, if there is an entry for it."""
        if self._catalog is not None:
            chunk.shown = self._catalog.show(chunk.key, chunk.offset, chunk.size_bytes)
            if chunk.shown != NOT_SHOWN:
                self._chunks[chunk.shown] = chunk

    def hide(self, chunks: Iterable[T]) -> list[T]:
        """Engines do not find these any more. Those that are leased at this moment: keep them until `sweep` has
        them."""
        hidden = [chunk for chunk in chunks if chunk.shown != NOT_SHOWN]
        if self._catalog is None or not hidden:
            return []
        for chunk in hidden:
            del self._chunks[chunk.shown]
        words = self._catalog.hide([chunk.shown for chunk in hidden])
        leased = [chunk for chunk in hidden if chunk.shown in words]
        self.lingering += leased
        return leased

    def is_leased(self, chunk: T) -> bool:
        """Whether an engine had leased a chunk at the last look."""
        return chunk.shown != NOT_SHOWN and chunk.shown in self._leased

    def look(self) -> list[tuple[Hits, list[T]]]:
        """What engines have read without asking since the last call, and which chunks that was. `sweep` next."""
        if self._catalog is None:
            return []
        hits, self._leased = self._catalog.look()
        return [(one, [self._chunks[word] for word in one.words if word in self._chunks]) for one in hits]

    def sweep(self, *, anew: bool) -> list[T]:
        """Chunks that had to stay for engines and are leased no more; `anew`: as far as can be seen now, not as of the
        last look."""
        if self._catalog is None:
            return []
        if anew:
            self._leased = self._catalog.leased()
        if not self.lingering:
            return []
        over = [chunk for chunk in self.lingering if chunk.shown not in self._leased]
        self.lingering = [chunk for chunk in self.lingering if chunk.shown in self._leased]
        for chunk in over:
            self._catalog.forget(chunk.shown)
        return over
