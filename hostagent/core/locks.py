"""Chunks that engines keep in the pool between a look-up and a load, and those that they read without asking. Pure.

A lock ends when it is taken back, when its time is over, or with the engine's connection. A chunk may be locked many
times; it may be evicted when its last lock ends. An operator's forced drop overrides locks, as it does pins. Of chunks
that engines read without asking (`hostagent.pool.catalog`) the pools and the metrics learn here, and here it is decided
what becomes of those that an engine had leased when they left the pool.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from hostagent import limits
from hostagent.core import effects
from hostagent.core.clock import WINDOW, Work
from hostagent.core.events import EngineId
from hostagent.core.fetch import FetchObserver
from hostagent.core.node import Node
from hostagent.pool.chunks import Chunk, ChunkState
from kvchunk.ids import ChunkKey
from kvchunk.sources import ChunkSource
from kvclient.messages import Status
from kvproto.deadlines import Deadlines


@dataclass(slots=True, eq=False)
class _Lock:
    due_ns: int
    engine: EngineId
    chunk: Chunk
    over: bool = False

    def __lt__(self, other: _Lock) -> bool:
        return self.due_ns < other.due_ns


class Locks:
    """Of all engines of one node."""

    def __init__(self, node: Node) -> None:
        self._clock = node.clock
        self._pool = node.pool
        self._windows = node.windows
        self._alarm = node.alarms.add(self._expire)
        self._due: Deadlines[_Lock] = Deadlines()
        self._by_engine: dict[EngineId, dict[ChunkKey, list[_Lock]]] = {}
        """Per key a heap; those that are over leave it when they are first."""
        self._counts: Counter[EngineId] = Counter()
        self._chunks: Counter[Chunk] = Counter()
        self.count = 0
        """Locks of all engines."""
        self.locked_bytes = 0
        """Of chunks that any lock holds."""

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
        lock = _Lock(0, engine, chunk)
        lock.due_ns = self._due.add(lock, self._clock.now_ns + int(hold_s * 1e9), self._clock.now_ns)
        self._pool.retain(chunk)
        self._chunks[chunk] += 1
        self._counts[engine] += 1
        self.count += 1
        heapq.heappush(self._by_engine.setdefault(engine, {}).setdefault(key, []), lock)
        self._alarm.set(self._due.next_ns)
        return True

    def unlock(self, engine: EngineId, key: ChunkKey) -> bool:
        """Take back the lock that ends first. False: this engine has none on that chunk."""
        locks = self._by_engine.get(engine, {}).get(key)
        if not locks:
            return False
        self._end(locks[0])
        self._alarm.set(self._due.next_ns)
        return True

    def engine_disconnected(self, engine: EngineId) -> None:
        """Take all locks of an engine back."""
        self._windows.do(self._taken_back(list(self._by_engine.get(engine, {}).values())), self._counts[engine])

    def _taken_back(self, all_locks: Sequence[list[_Lock]]) -> Work:
        ended = 0
        for locks in all_locks:
            while locks:
                self._end(locks[0])
                ended += 1
                if not ended % WINDOW:
                    yield
        self._alarm.set(self._due.next_ns)

    def _expire(self) -> None:
        """Those that are due, some at a time: others have their turn in between."""
        for lock in self._due.due(self._clock.now_ns, limits.LOCKS_ENDED_AT_ONCE):
            self._end(lock)
        self._alarm.set(self._due.next_ns)

    def _end(self, lock: _Lock) -> None:
        lock.over = True
        self._due.discard(lock, lock.due_ns)
        of_engine = self._by_engine[lock.engine]
        locks = of_engine[lock.chunk.key]
        while locks and locks[0].over:
            heapq.heappop(locks)
        if not locks:
            del of_engine[lock.chunk.key]
        if not of_engine:
            del self._by_engine[lock.engine]
        self.count -= 1
        self._counts[lock.engine] -= 1
        if not self._counts[lock.engine]:
            del self._counts[lock.engine]
        self._chunks[lock.chunk] -= 1
        if not self._chunks[lock.chunk]:
            del self._chunks[lock.chunk]
            self.locked_bytes -= lock.chunk.size_bytes
        if lock.chunk.state is ChunkState.READY:
            self._pool.release(lock.chunk)


class LocalReads:
    """Owns the time of the next look at the tables: there is one while engines are connected, or chunks linger. Which
    engine read a chunk it does not know."""

    def __init__(self, node: Node, observer: FetchObserver) -> None:
        self._clock = node.clock
        self._emit = node.emit
        self._pool = node.pool
        self._observer = observer
        self._alarm = node.alarms.add(self._look)
        self._engines_count = 0
        self.hits_count = 0
        """Chunks that engines read without asking, as far as they say so."""

    def engine_connected(self) -> None:
        """An engine connected."""
        self._engines_count += 1
        if self._pool.shown.is_on and self._alarm.due_ns is None:
            self._look_again()

    def engine_disconnected(self) -> None:
        """An engine is gone, and its leases with it."""
        self._engines_count -= 1
        self._pool.sweep()
        if not (self._engines_count or self._pool.shown.lingering):
            self._alarm.due_ns = None

    def chunks_lent(self) -> None:
        """The shell has leased chunks for peers: some have left the pool meanwhile, and are looked after."""
        if self._alarm.due_ns is None:
            self._look_again()

    def close(self) -> None:
        """The process ends: nobody reads any more."""
        self._alarm.due_ns = None
        self._pool.sweep()

    def _look_again(self) -> None:
        self._alarm.set(self._clock.now_ns + int(limits.LOCAL_READS_LOOK_S * 1e9))

    def _look(self) -> None:
        self.look()
        if self._engines_count or self._pool.shown.lingering:
            self._look_again()

    def look(self) -> None:
        """Learn what was read since the last look, and free what is not read any more."""
        for hits, chunks in self._pool.look():
            self.hits_count += hits.count
            now_ns = self._clock.now_ns
            self._observer.chunks_used(
                [effects.ChunkUse(chunk.key, ChunkSource.LOCAL, 0, 0.0, 0, now_ns) for chunk in chunks]
            )
            size_bytes = sum(chunk.size_bytes for chunk in chunks)
            self._emit(effects.FetchEnded(Status.OK, 0.0, ((ChunkSource.LOCAL, len(chunks), size_bytes),)))
