"""Brings chunks from this node's disk into its pool, not for its engines but for peers and promotions."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from hostagent import limits
from hostagent.core.fetch import FetchResult, Purpose
from hostagent.core.fetches import Fetches
from hostagent.core.node import Node
from kvchunk.ids import ChunkKey

_DEADLINE_NS = int(limits.PREPARE_DEADLINE_S * 1e9)


class PeerLoads:
    """One load per chunk, however many wait for it."""

    def __init__(self, node: Node, fetches: Fetches) -> None:
        self._clock = node.clock
        self._pool = node.pool
        self._disk = node.disk
        self._fetches = fetches
        self._waiting: dict[ChunkKey, list[Callable[[], None]]] = {}
        self._ended: list[tuple[ChunkKey, FetchResult]] = []
        self._answer_soon = node.alarms.add(self._answer)

    @property
    def under_way_count(self) -> int:
        """Chunks that are being loaded for peers or to promote them."""
        return len(self._waiting)

    def can_load(self, key: ChunkKey) -> bool:
        """Whether `load` would return True."""
        if key in self._waiting:
            return True
        return self._disk is not None and self._disk.find(key) is not None and len(self._waiting) < limits.PREPARED_MAX

    def load(self, key: ChunkKey, then: Callable[[], None]) -> bool:
        """Bring a chunk from disk; `then` is called once, never inside this call, when it is in the pool or is not, and
        the chunk stays until all who waited have had their turn. False: it is not on disk, or too many are wanted."""
        if not self.can_load(key):
            return False
        waiting = self._waiting.get(key)
        if waiting is not None:
            waiting.append(then)
            return True
        self._waiting[key] = [then]
        self._fetches.begin([key], Purpose.DISK, self._clock.now_ns + _DEADLINE_NS, partial(self._load_ended, key))
        return True

    def _load_ended(self, key: ChunkKey, result: FetchResult) -> None:
        """Perhaps before `load` has returned."""
        self._ended.append((key, result))
        self._answer_soon.set(self._clock.now_ns)

    def _answer(self) -> None:
        ended, self._ended = self._ended, []
        for key, result in ended:
            for then in self._waiting.pop(key, ()):
                then()
            for chunk, _ in result.chunks:
                self._pool.unpin(chunk)

    def close(self) -> None:
        """Unpin chunks of loads that have ended, without calling those who wait."""
        for _, result in self._ended:
            for chunk, _ in result.chunks:
                self._pool.unpin(chunk)
        self._ended.clear()
