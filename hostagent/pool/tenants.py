"""What each tenant has of a node's pool, and who loses when it is full. Pure.

A tenant is whoever the shell says that an engine belongs to. Its *share* of the pool follows from the weights of all
tenants that the configuration names or that use the pool at this moment. Anybody may use room that is free. When the
pool is full, chunks of tenants beyond their shares go first, and a tenant within its share loses nothing to one beyond.

A chunk is *held* while it is being written, leased or pinned: it cannot go then. A tenant holds no more than its share,
and no more than HELD_SHARE_MAX of the pool even when it is alone, so that the next one finds room.

Chunks that no engine here has asked for (copies for the cluster, chunks of an agent before) are nobody's, until an
engine does. They have no share.

Where tenants share a pool, `Turns` says whose chunk goes next without going through everybody's. The order by value
(`kvpolicy.value`) is one for the whole pool. Where most of its cheap end belongs to tenants that lose nothing, going
through it for each new chunk would take longer than anything else an agent does (0.5 s with 10,000 such chunks).
`Spared` notices that. Then each tenant's chunks wait in a queue: of the first few that can go the least valuable goes,
and those that were looked at go to the end (1 ms).
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Container, Mapping
from typing import Final, NewType

from kvchunk.ids import ChunkKey

EngineId = NewType("EngineId", int)
"""One connection of an engine; never used again."""
NOBODY: Final = ""
HELD_SHARE_MAX: Final = 7 / 8
SPARED_MAX: Final = 64
"""Chunks of tenants that lose nothing which are passed over in the order by value before tenants take turns."""
SAMPLE: Final = 16
"""Chunks that are compared: the one that goes is, most likely, among the cheapest tenth or so."""


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
        self._held_bytes_max = int(HELD_SHARE_MAX * pool_bytes)
        self._shares: dict[str, int] = {}
        """Computed since tenants last came or went."""

    # ------------------------------------------------------------------ who is there

    def engine_connected(self, tenant: str) -> None:
        """An engine of a tenant connected."""
        self._engines[tenant] += 1
        self._shares.clear()

    def engine_disconnected(self, tenant: str) -> None:
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
        counting = {tenant, *self._weights}
        for one in self._engines:
            if self.used_bytes[one]:
                counting.add(one)
        total = 0.0
        for one in counting - {NOBODY}:
            total += self._weights.get(one, 1.0)
        return int(self._pool_bytes * self._weights.get(tenant, 1.0) / total)

    def is_beyond(self, tenant: str, more_bytes: int = 0) -> bool:
        """Whether a tenant has more than its share, or would have with `more_bytes`. Nobody's chunks always are."""
        return tenant == NOBODY or self.used_bytes[tenant] + more_bytes > self.share_bytes(tenant)

    def excess_bytes(self, tenant: str) -> int:
        """What a tenant has beyond its share; all of what is nobody's."""
        return self.used_bytes[tenant] - (0 if tenant == NOBODY else self.share_bytes(tenant))

    def held_bytes_max(self, tenant: str) -> int:
        """Most that a tenant may hold."""
        return min(self.share_bytes(tenant), self._held_bytes_max)

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

    @property
    def loose_bytes(self) -> int:
        """What chunks have that are not held: no more can go."""
        return self.used_bytes.total() - self.held_bytes.total()

    def use(self, tenant: str, size_bytes: int, *, held: bool = False) -> None:
        """A chunk of a tenant is in the pool, or (negative) no longer; `held`: and was held all the time."""
        if held:
            self.held_bytes[tenant] += size_bytes
        before = self.used_bytes[tenant]
        self.used_bytes[tenant] = before + size_bytes
        if not before or before == -size_bytes:
            self._shares.clear()

    def hold(self, tenant: str, size_bytes: int) -> None:
        """A chunk of a tenant is held, or (negative) no longer."""
        self.held_bytes[tenant] += size_bytes


class SparedTooManyError(Exception):
    """The order by value begins with chunks of tenants that lose nothing."""


class Spared:
    """Asks of each chunk whether it may go, and has enough of it after SPARED_MAX that may not."""

    def __init__(self, kept: Container[ChunkKey], may_lose: Callable[[str], bool]) -> None:
        """`kept`: chunks that stay, whosever they are; `may_lose(tenant)`."""
        self._kept = kept
        self._may_lose = may_lose
        self._count = 0

    def may_go(self, key: ChunkKey, tenant: str) -> bool:
        """Whether a chunk of a tenant may go. Raises SparedTooManyError."""
        if key in self._kept:
            return False
        if self._may_lose(tenant):
            return True
        self._count += 1
        if self._count > SPARED_MAX:
            raise SparedTooManyError
        return False


class Turns:
    """The queues of one pool's tenants."""

    def __init__(self) -> None:
        self._queues: dict[str, OrderedDict[ChunkKey, None]] = {}
        self._children: Counter[ChunkKey] = Counter()

    @property
    def tenants(self) -> list[str]:
        """Those that have chunks."""
        return [tenant for tenant, queue in self._queues.items() if queue]

    def add(self, tenant: str, key: ChunkKey, parent: ChunkKey | None) -> None:
        """A chunk came."""
        self._queues.setdefault(tenant, OrderedDict())[key] = None
        if parent is not None:
            self._children[parent] += 1

    def remove(self, tenant: str, key: ChunkKey, parent: ChunkKey | None) -> None:
        """A chunk went."""
        queue = self._queues[tenant]
        del queue[key]
        if not queue:
            del self._queues[tenant]
        if parent is not None:
            self._children[parent] -= 1
            if not self._children[parent]:
                del self._children[parent]

    def pick(
        self,
        tenant: str,
        may_go: Callable[[ChunkKey], bool],
        gone: Counter[ChunkKey],
        score: Callable[[ChunkKey], float | None],
    ) -> ChunkKey | None:
        """A chunk of a tenant that may go and on which no other hangs, but for those `gone` by parent; None: none."""
        queue = self._queues[tenant]
        found: list[ChunkKey] = []
        for _ in range(len(queue)):
            key = next(iter(queue))
            queue.move_to_end(key)
            if self._children[key] <= gone[key] and may_go(key):
                found.append(key)
                if len(found) == SAMPLE:
                    break
        scores = {key: score(key) for key in found}
        return min(found, key=lambda key: -float("inf") if (one := scores[key]) is None else one, default=None)
