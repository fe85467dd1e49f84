"""Which chunks of a pool engines find by themselves, and which of them they have leased. Pure.

Between `hostagent.pool.chunks`, which knows chunks, and `hostagent.pool.catalog`, which knows words.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Generic, Protocol, TypeVar

from hostagent.pool.catalog import NOT_SHOWN, Catalog, Hits


class Showable(Protocol):
    """A chunk."""

    @property
    def key(self) -> bytes:
        """Its name."""
        ...

    @property
    def offset(self) -> int:
        """In the pool."""
        ...

    @property
    def size_bytes(self) -> int:
        """Of its content."""
        ...

    shown: int
    """Its word in the catalog; NOT_SHOWN: it never was there."""


T = TypeVar("T", bound=Showable)


class Shown(Generic[T]):
    """Of one pool."""

    def __init__(self, catalog: Catalog | None) -> None:
        """None: engines find nothing by themselves."""
        self._catalog = catalog
        self._chunks: dict[int, T] = {}
        """Those that engines find, by their words."""
        self._leased: set[int] = set()
        """Words of chunks that engines had leased at the last look."""
        self._lingering: list[T] = []
        """Those that engines do not find any more, and had leased when they were hidden."""

    @property
    def is_on(self) -> bool:
        """Whether engines find anything."""
        return self._catalog is not None

    @property
    def lingering_count(self) -> int:
        """Chunks that stay although nobody finds them, because an engine has leased them."""
        return len(self._lingering)

    def show(self, chunk: T) -> None:
        """Engines find a chunk from now on, if there is an entry for it."""
        if self._catalog is not None:
            chunk.shown = self._catalog.show(chunk.key, chunk.offset, chunk.size_bytes)
            if chunk.shown != NOT_SHOWN:
                self._chunks[chunk.shown] = chunk

    def hide(self, chunks: Iterable[T]) -> list[T]:
        """Engines do not find these any more. Those that are leased at this moment: keep them until `look` has them."""
        hidden = [chunk for chunk in chunks if chunk.shown != NOT_SHOWN]
        if self._catalog is None or not hidden:
            return []
        for chunk in hidden:
            del self._chunks[chunk.shown]
        words = self._catalog.hide([chunk.shown for chunk in hidden])
        leased = [chunk for chunk in hidden if chunk.shown in words]
        self._lingering += leased
        return leased

    def is_leased(self, chunk: T) -> bool:
        """Whether an engine had leased a chunk at the last look."""
        return chunk.shown != NOT_SHOWN and chunk.shown in self._leased

    def look(self) -> list[T]:
        """Look at what engines have leased. Chunks that had to stay for them and are leased no more."""
        if self._catalog is None:
            return []
        self._leased = self._catalog.leased()
        over = [chunk for chunk in self._lingering if chunk.shown not in self._leased]
        self._lingering = [chunk for chunk in self._lingering if chunk.shown in self._leased]
        for chunk in over:
            self._catalog.forget(chunk.shown)
        return over

    def take_hits(self) -> Sequence[tuple[Hits, list[T]]]:
        """What engines have read without asking since the last call, and which chunks that was."""
        if self._catalog is None:
            return []
        return [
            (hits, [self._chunks[word] for word in hits.words if word in self._chunks])
            for hits in self._catalog.take_hits()
        ]
