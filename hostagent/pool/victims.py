"""Who leaves the pool for a newcomer: what is worth least, of tenants that may lose it. Pure: plans change nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Generic, Protocol, TypeVar

from hostagent.pool.extents import ExtentAllocator
from hostagent.pool.tenants import Spared, SparedTooManyError, Tenants, Turns
from kvchunk.ids import ChunkKey
from kvpolicy.value import CacheValues


class Placed(Protocol):
    """What a plan looks at: a chunk's place, and for whom it counts."""

    key: ChunkKey
    parent: ChunkKey | None
    offset: int
    extent_bytes: int
    tenant: str


C = TypeVar("C", bound=Placed)


class Victims(Generic[C]):
    """Of one pool."""

    def __init__(
        self,
        chunks: Mapping[ChunkKey, C],
        extents: ExtentAllocator,
        tenants: Tenants,
        turns: Turns,
        values: CacheValues,
        evictable: Callable[[ChunkKey], bool],
    ) -> None:
        """All of these are the pool's; `evictable(key)`: nobody uses the chunk at this moment."""
        self._chunks = chunks
        self._extents = extents
        self._tenants = tenants
        self._turns = turns
        self._values = values
        self._evictable = evictable

    def plan(self, size_bytes: int, kept: set[ChunkKey], tenant: str, now_ns: int) -> list[C] | None:
        """The victims whose eviction makes room for `size_bytes`; None when even evicting all but `kept` does not."""
        if not self._tenants.is_shared:
            return self.plan_all([size_bytes], kept, now_ns)
        for last_resort in (False, True):
            may_lose = partial(self._tenants.may_lose, tenant=tenant, more_bytes=size_bytes, last_resort=last_resort)
            try:
                victims = self._by_value([size_bytes], Spared(kept, may_lose).may_go, now_ns)
            except SparedTooManyError:
                victims = self._by_turns(size_bytes, kept, may_lose)
            if victims is not None or self._tenants.is_beyond(tenant, size_bytes):
                return victims
        return None

    def plan_all(self, sizes_bytes: Sequence[int], kept: set[ChunkKey], now_ns: int) -> list[C] | None:
        """As `plan`, for several newcomers at once where tenants do not matter."""
        return self._by_value(sizes_bytes, lambda key, _: key not in kept, now_ns)

    def _by_value(
        self, sizes_bytes: Sequence[int], may_go: Callable[[ChunkKey, str], bool], now_ns: int
    ) -> list[C] | None:
        """`may_go(key, tenant)` is asked when a chunk's turn comes, with those before it taken off their tenants: a
        tenant that has come down to its share loses no more."""
        needed_bytes = sum(map(self._extents.extent_bytes, sizes_bytes))
        if self._extents.free_bytes + self._tenants.loose_bytes < needed_bytes:
            return None  # as it would turn out once every chunk had been looked at
        trial = self._extents.copy()
        placed = 0
        while placed < len(sizes_bytes) and trial.allocate(sizes_bytes[placed]) is not None:
            placed += 1
        victims: list[C] = []
        order = self._values.victims(now_ns, lambda key: self._evictable(key) and may_go(key, self._chunks[key].tenant))
        try:
            for key in order:
                victim = self._chunks[key]
                victims.append(victim)
                self._tenants.use(victim.tenant, -victim.extent_bytes)
                trial.free(victim.offset, victim.extent_bytes)
                while trial.allocate(sizes_bytes[placed]) is not None:
                    placed += 1
                    if placed == len(sizes_bytes):
                        return victims
        finally:
            close = getattr(order, "close", None)
            if close is not None:
                close()
            for victim in victims:
                self._tenants.use(victim.tenant, victim.extent_bytes)
        return None

    def _by_turns(self, size_bytes: int, kept: set[ChunkKey], may_lose: Callable[[str], bool]) -> list[C] | None:
        """As `_by_value`, from the tenant that has most beyond its share, and nearly by value."""
        trial = self._extents.copy()
        victims: dict[ChunkKey, C] = {}
        gone: Counter[ChunkKey] = Counter()
        try:
            while trial.allocate(size_bytes) is None:
                losers = sorted(filter(may_lose, self._turns.tenants), key=self._tenants.excess_bytes, reverse=True)
                picks = (
                    self._turns.pick(
                        loser,
                        lambda key: key not in kept and key not in victims and self._evictable(key),
                        gone,
                        self._values.score,
                    )
                    for loser in losers
                )
                key = next((key for key in picks if key is not None), None)
                if key is None:
                    return None
                victim = victims[key] = self._chunks[key]
                if victim.parent is not None:
                    gone[victim.parent] += 1
                self._tenants.use(victim.tenant, -victim.extent_bytes)
                trial.free(victim.offset, victim.extent_bytes)
            return list(victims.values())
        finally:
            for victim in victims.values():
                self._tenants.use(victim.tenant, victim.extent_bytes)
