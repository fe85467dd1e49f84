"""Chunks that engines keep in the pool between a look-up and a load. Pure.

A lock ends when it is taken back, when its time is over, or with the engine's connection. A chunk may be locked many
times; it may be evicted when its last lock ends. An operator's forced drop overrides locks, as it does pins.
"""

from __future__ import annotations

import heapq
from collections import Counter
from dataclasses import dataclass, field

from hostagent import limits
from hostagent.core.events import EngineId
from hostagent.core.node import Node
from hostagent.pool.chunks import Chunk, ChunkState
from kvchunk.ids import ChunkKey


@dataclass(slots=True, order=True)
class _Lock:
    due_ns: int
    serial: int
    engine: EngineId = field(compare=False)
    chunk: Chunk = field(compare=False)
    over: bool = field(default=False, compare=False)


class Locks:
    """Of all engines of one node."""

    def __init__(self, node: Node) -> None:
        self._clock = node.clock
        self._pool = node.pool
        self._alarm = node.alarms.add(self._expire)
        self._by_due: list[_Lock] = []
        """A heap; locks taken back stay in it until their time."""
        self._by_engine: dict[EngineId, dict[ChunkKey, list[_Lock]]] = {}
        """Per key a heap."""
        self._counts: Counter[EngineId] = Counter()
        self._chunks: Counter[Chunk] = Counter()
        self._serial = 0
        self.locked_bytes = 0
        """Of chunks that any lock holds."""

    @property
    def count(self) -> int:
        """Locks of all engines."""
        return sum(self._counts.values())

    def lock(self, engine: EngineId, key: ChunkKey, hold_s: float) -> bool:
        """Keep a READY chunk for so long at most. False: it is not in the pool, or too much is locked already."""
        chunk = self._pool.find(key)
        if chunk is None or self._counts[engine] >= limits.API_LOCKS_MAX or not self._pool.lend(chunk, chunk.tenant):
            return False
        if not self._chunks[chunk]:
            most_bytes = int(self._pool.usage().size_bytes * limits.API_LOCKED_SHARE_MAX)
            if self.locked_bytes + chunk.size_bytes > most_bytes:
                return False
            self.locked_bytes += chunk.size_bytes
        self._serial += 1
        lock = _Lock(self._clock.now_ns + int(hold_s * 1e9), self._serial, engine, chunk)
        self._pool.retain(chunk)
        self._chunks[chunk] += 1
        self._counts[engine] += 1
        heapq.heappush(self._by_due, lock)
        heapq.heappush(self._by_engine.setdefault(engine, {}).setdefault(key, []), lock)
        self._alarm.set(self._by_due[0].due_ns)
        return True

    def unlock(self, engine: EngineId, key: ChunkKey) -> bool:
        """Take back the lock that ends first. False: this engine has none on that chunk."""
        locks = self._by_engine.get(engine, {}).get(key)
        if not locks:
            return False
        self._end(locks[0])
        self._tidy()
        return True

    def engine_disconnected(self, engine: EngineId) -> None:
        """Take all locks of an engine back."""
        for locks in list(self._by_engine.get(engine, {}).values()):
            for lock in list(locks):
                self._end(lock)
        self._tidy()

    def _expire(self) -> None:
        while self._by_due and self._by_due[0].due_ns <= self._clock.now_ns:
            self._end(self._by_due[0])
            heapq.heappop(self._by_due)
        self._tidy()

    def _tidy(self) -> None:
        """Forget locks that are over and first in line; ring when the next one ends."""
        if len(self._by_due) > 2 * self.count + limits.API_LOCKS_MAX:
            self._by_due = [lock for lock in self._by_due if not lock.over]
            heapq.heapify(self._by_due)
        while self._by_due and self._by_due[0].over:
            heapq.heappop(self._by_due)
        self._alarm.set(self._by_due[0].due_ns if self._by_due else None)

    def _end(self, lock: _Lock) -> None:
        if lock.over:
            return
        lock.over = True
        of_engine = self._by_engine[lock.engine]
        locks = of_engine[lock.chunk.key]
        locks.remove(lock)
        heapq.heapify(locks)
        if not locks:
            del of_engine[lock.chunk.key]
        if not of_engine:
            del self._by_engine[lock.engine]
        self._counts[lock.engine] -= 1
        if not self._counts[lock.engine]:
            del self._counts[lock.engine]
        self._chunks[lock.chunk] -= 1
        if not self._chunks[lock.chunk]:
            del self._chunks[lock.chunk]
            self.locked_bytes -= lock.chunk.size_bytes
        if lock.chunk.state is ChunkState.READY:
            self._pool.release(lock.chunk)
