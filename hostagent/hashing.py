"""Digests of whole chunks, without holding up the event loop for big ones."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Final, TypeVar

from hostagent import limits
from hostagent.pool.memory import PoolMemory
from hostagent.tree import PIECE_BYTES, Hashed, hashed, leaves_of, root_of
from kvproto.integrity import Integrity

T = TypeVar("T")
THREADS: Final = 2
"""Of BLAKE3 they take in about 12 GB/s together, of xxh3 more: as fast as any network brings chunks."""


class Hashing:
    """Hashes ranges of the pool, which the caller keeps pinned until `done`."""

    def __init__(self, memory: PoolMemory, loop: asyncio.AbstractEventLoop) -> None:
        self._memory = memory
        self._loop = loop
        # Hashing lets go of the GIL: the pieces of a tree are hashed by all threads at a time.
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="hashing")

    def start(
        self,
        offset: int,
        size_bytes: int,
        algorithm: Integrity,
        done: Callable[[Hashed], None],
        *,
        in_background: bool = False,
    ) -> None:
        """Hash; `done(hashed)` comes on the event loop, later. `in_background`: never on the event loop itself."""
        view = self._memory.view(offset, size_bytes)
        if size_bytes <= limits.HASH_INLINE_BYTES_MAX[algorithm] and not in_background:
            self._loop.call_soon(done, hashed(view, algorithm))
            return
        if algorithm is Integrity.BLAKE3 and not in_background:
            self._hash_in_parts(view, done)
            return
        future = self._threads.submit(hashed, view, algorithm)
        future.add_done_callback(lambda ready: self._from_thread(ready, done))

    def _hash_in_parts(self, view: memoryview, done: Callable[[Hashed], None]) -> None:
        part_bytes = -(-len(view) // (THREADS * PIECE_BYTES)) * PIECE_BYTES
        starts = range(0, len(view), part_bytes)
        parts: dict[int, bytes] = {}

        def hashed_part(start: int, leaves: bytes) -> None:
            parts[start] = leaves
            if len(parts) == len(starts):
                whole = b"".join(parts[start] for start in starts)
                done(Hashed(root_of(whole, len(view)), whole))

        for start in starts:
            future = self._threads.submit(leaves_of, view[start : start + part_bytes])
            future.add_done_callback(partial(self._from_thread, done=partial(hashed_part, start)))

    def close(self) -> None:
        """Wait for what is being hashed, without calling its `done`."""
        self._threads.shutdown(wait=True, cancel_futures=True)

    def _from_thread(self, ready: Future[T], done: Callable[[T], None]) -> None:
        if not ready.cancelled() and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(done, ready.result())
