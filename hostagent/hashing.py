"""xxh3-64 of whole chunks, without holding up the event loop for big ones."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

import xxhash

from hostagent import limits
from hostagent.pool.chunks import Chunk, ChunkPool
from hostagent.pool.memory import PoolMemory


class Checksums:
    """Computes checksums of chunks in the pool; a chunk is pinned for as long as its bytes are being read."""

    def __init__(self, pool: ChunkPool, memory: PoolMemory, loop: asyncio.AbstractEventLoop) -> None:
        self._pool = pool
        self._memory = memory
        self._loop = loop
        # Hashing runs at memory speed and lets go of the GIL: two threads keep up with any network.
        self._threads = ThreadPoolExecutor(max_workers=2, thread_name_prefix="checksum")

    def start(self, chunk: Chunk, done: Callable[[int], None]) -> None:
        """Compute; `done(checksum)` comes on the event loop, later."""
        self._pool.pin(chunk)
        view = self._memory.view(chunk.offset, chunk.size_bytes)
        if chunk.size_bytes <= limits.CHECKSUM_INLINE_BYTES_MAX:
            self._loop.call_soon(self._finish, chunk, xxhash.xxh3_64_intdigest(view), done)
            return
        future = self._threads.submit(xxhash.xxh3_64_intdigest, view)
        future.add_done_callback(lambda ready: self._from_thread(chunk, ready, done))

    def close(self) -> None:
        """Wait for what is being computed; its `done` is not called any more."""
        self._threads.shutdown(wait=True, cancel_futures=True)

    def _from_thread(self, chunk: Chunk, ready: Future[int], done: Callable[[int], None]) -> None:
        if not ready.cancelled() and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._finish, chunk, ready.result(), done)

    def _finish(self, chunk: Chunk, checksum: int, done: Callable[[int], None]) -> None:
        self._pool.unpin(chunk)
        done(checksum)
