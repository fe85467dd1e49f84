"""xxh3-64 of whole chunks, without holding up the event loop for big ones."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

import xxhash

from hostagent import limits
from hostagent.pool.memory import PoolMemory


class Checksums:
    """Computes checksums of ranges of the pool, which the caller keeps pinned until `done`."""

    def __init__(self, memory: PoolMemory, loop: asyncio.AbstractEventLoop) -> None:
        self._memory = memory
        self._loop = loop
        # Hashing runs at memory speed and lets go of the GIL: two threads keep up with any network.
        self._threads = ThreadPoolExecutor(max_workers=2, thread_name_prefix="checksum")

    def start(self, offset: int, size_bytes: int, done: Callable[[int], None], *, in_background: bool = False) -> None:
        """Compute; `done(checksum)` comes on the event loop, later. `in_background`: never on the event loop itself."""
        view = self._memory.view(offset, size_bytes)
        if size_bytes <= limits.CHECKSUM_INLINE_BYTES_MAX and not in_background:
            self._loop.call_soon(done, xxhash.xxh3_64_intdigest(view))
            return
        future = self._threads.submit(xxhash.xxh3_64_intdigest, view)
        future.add_done_callback(lambda ready: self._from_thread(ready, done))

    def close(self) -> None:
        """Wait for checksums being computed, without calling their `done`."""
        self._threads.shutdown(wait=True, cancel_futures=True)

    def _from_thread(self, ready: Future[int], done: Callable[[int], None]) -> None:
        if not ready.cancelled() and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(done, ready.result())
