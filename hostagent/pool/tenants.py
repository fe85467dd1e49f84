"""What each tenant has of a node's pool, and who loses when it is full. Pure.

A tenant is whoever the shell says that an engine belongs to. Its *share* of the pool follows from the weights of all
tenants that the configuration names or that use the pool at this moment. Anybody may use room that is free. When the
pool is full, chunks of tenants beyond their shares go first, and a tenant within its share loses nothing to one beyond.

A chunk is *held* while it is being written, leased or pinned: it cannot go then. A tenant holds no more than its share,
and no more than HELD_SHARE_MAX of the pool even when it is alone, so that the next one finds room.

Chunks that no engine here has asked for (copies for the cluster, chunks of an agent before) are nobody's, until an
engine does. They have no share.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Final

NOBODY: Final = ""
HELD_SHARE_MAX: Final = 7 / 8


class Tenants:
    """The books of one pool. Bytes are those of extents."""

    def __init__(self, pool_bytes: int, weights: Mapping[str, float] | None = None) -> None:
        """`weights`: of the tenants that the configuration names; those count always. All others have weight 1."""
        self._pool_bytes = pool_bytes
        self._weights = dict(weights or {})
        self._engines: Counter[str] = Counter()
        self.used_bytes: Counter[str] = Counter()
        self.held_bytes: Counter[str] = Counter()
        self.refused_count: Counter[str] = Counter()
        """Times that a tenant got no room because of its share."""
        self._shares: dict[str, int] = {}
        """Computed since tenants last came or went."""

    # ------------------------------------------------------------------ who is there

    def came(self, tenant: str) -> None:
        """An engine of a tenant connected."""
        self._engines[tenant] += 1
        self._shares.clear()

    def left(self, tenant: str) -> None:
        """An engine of a tenant is gone."""
        self._engines[tenant] -= 1
        if not self._engines[tenant]:
            del self._engines[tenant]
        self._shares.clear()

    @property
    def names(self) -> list[str]:
        """Tenants that are configured or connected or have chunks."""
        used = {tenant for tenant, size_bytes in self.used_bytes.items() if size_bytes}
        return sorted((self._weights.keys() | self._engines.keys() | used) - {NOBODY})

    def engines_count(self, tenant: str) -> int:
        """Engines of a tenant that are connected."""
        return self._engines[tenant]

    # ------------------------------------------------------------------ shares

    @property
    def is_shared(self) -> bool:
        """Whether more than one tenant has chunks: with one, the values of chunks alone decide."""
        return sum(1 for tenant, size_bytes in self.used_bytes.items() if size_bytes and tenant != NOBODY) > 1

    def has_alone(self, tenant: str) -> bool:
        """Whether all chunks are this tenant's, or nobody's."""
        return not any(size_bytes and one not in (tenant, NOBODY) for one, size_bytes in self.used_bytes.items())

    def share_bytes(self, tenant: str) -> int:
        """Of the pool; 0 for one that is neither configured nor connected."""
        share = self._shares.get(tenant)
        if share is None:
            share = self._shares[tenant] = self._share(tenant)
        return share

    def _share(self, tenant: str) -> int:
        if tenant not in self._weights and tenant not in self._engines:
            return 0
        counting = {one for one in self._engines if self.used_bytes[one]} | self._weights.keys() | {tenant}
        total = sum(self._weights.get(one, 1.0) for one in counting - {NOBODY})
        return int(self._pool_bytes * self._weights.get(tenant, 1.0) / total)

    def is_beyond(self, tenant: str, more_bytes: int = 0) -> bool:
        """Whether a tenant has more than its share, or would have with `more_bytes`. Nobody's chunks always are."""
        return tenant == NOBODY or self.used_bytes[tenant] + more_bytes > self.share_bytes(tenant)

    def excess_bytes(self, tenant: str) -> int:
        """What a tenant has beyond its share; all of what is nobody's."""
        return self.used_bytes[tenant] - (0 if tenant == NOBODY else self.share_bytes(tenant))

    def held_bytes_max(self, tenant: str) -> int:
        """Most that a tenant may hold."""
        return min(self.share_bytes(tenant), int(HELD_SHARE_MAX * self._pool_bytes))

    def may_hold(self, tenant: str, more_bytes: int) -> bool:
        """Whether a tenant may hold so much more. What is done for nobody is not limited."""
        return tenant == NOBODY or self.held_bytes[tenant] + more_bytes <= self.held_bytes_max(tenant)

    def may_lose(self, victim: str, tenant: str, more_bytes: int, *, last_resort: bool) -> bool:
        """Whether a chunk of `victim` may go to make room of `more_bytes` for `tenant`.

        A tenant within its share takes from those beyond theirs; as a `last_resort`, when they have nothing that can
        go, also from itself.
        """
        if self.is_beyond(victim):
            return True
        return victim == tenant and (last_resort or self.is_beyond(tenant, more_bytes))

    # ------------------------------------------------------------------ books

    def use(self, tenant: str, size_bytes: int) -> None:
        """A chunk of a tenant is in the pool, or (negative) no longer."""
        before = self.used_bytes[tenant]
        self.used_bytes[tenant] = before + size_bytes
        if not before or before == -size_bytes:
            self._shares.clear()

    def hold(self, tenant: str, size_bytes: int) -> None:
        """A chunk of a tenant is held, or (negative) no longer."""
        self.held_bytes[tenant] += size_bytes
