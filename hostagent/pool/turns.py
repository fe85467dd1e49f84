"""Whose chunk goes next where tenants share a pool, without going through everybody's. Pure.

The order by value (`kvpolicy.value`) is one for the whole pool. Where most of its cheap end belongs to tenants that
lose nothing, going through it for each new chunk would take longer than anything else an agent does (0.5 s with 10,000
such chunks). `Spared` notices that. Then each tenant's chunks wait in a queue: of the first few that can go the least
valuable goes, and those that were looked at go to the end (1 ms).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container
from typing import Final

from kvchunk.ids import ChunkKey

SPARED_MAX: Final = 64
"""Chunks of tenants that lose nothing which are passed over in the order by value before tenants take turns."""
SAMPLE: Final = 16
"""Chunks that are compared: the one that goes is, most likely, among the cheapest tenth or so."""


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
        self._queues: dict[str, dict[ChunkKey, None]] = {}
        self._children: Counter[ChunkKey] = Counter()

    @property
    def tenants(self) -> list[str]:
        """Those that have chunks."""
        return [tenant for tenant, queue in self._queues.items() if queue]

    def add(self, tenant: str, key: ChunkKey, parent: ChunkKey | None) -> None:
        """A chunk came."""
        self._queues.setdefault(tenant, {})[key] = None
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
            del queue[key]
            queue[key] = None
            if self._children[key] <= gone[key] and may_go(key):
                found.append(key)
                if len(found) == SAMPLE:
                    break
        scores = {key: score(key) for key in found}
        return min(found, key=lambda key: -float("inf") if (one := scores[key]) is None else one, default=None)
