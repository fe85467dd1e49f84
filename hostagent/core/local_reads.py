"""Chunks that engines read without asking (`hostagent.pool.catalog`): what the pools and the metrics learn of them, and
what becomes of chunks that an engine had leased when they left the pool. Pure.
"""

from __future__ import annotations

from hostagent import limits
from hostagent.core import effects
from hostagent.core.fetch import FetchObserver
from hostagent.core.node import Node
from kvchunk.sources import ChunkSource
from kvclient.messages import Status


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
