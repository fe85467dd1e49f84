"""What engines put: each connection's own write region, and the copies from there into the pool, with their digests.

An engine can change its region at any time, punch holes into it, or die. So nobody but the agent reads a region, and
the agent reads it once: into the pool, where no engine can write. Hashing and readers see that copy only. The agent
reads with preadv(2), never through a mapping: whatever an engine does to its region, the agent gets bytes or an error,
and no signal. A mapping would be read three times as fast (18 to 26 GB/s instead of 6 to 9.5); a put of 1 MiB takes
0.35 ms all the same.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from hostagent import limits
from hostagent.core import effects, events
from hostagent.core.events import EngineId
from hostagent.memory import seals
from hostagent.memory.pool_memory import PoolMemory
from hostagent.tree import PIECE_BYTES, Hashed, hashed, leaves_of, root_of
from kvproto.integrity import Integrity

THREADS: Final = 2


class WriteRegion:
    """Memory that one engine may write: a sparse file of a fixed size."""

    def __init__(self, size_bytes: int) -> None:
        """Raises OSError when no descriptor or memory is left."""
        self._size_bytes = size_bytes
        self.fd = os.memfd_create("kvcast-put", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(self.fd, size_bytes)
            seals.fix_size(self.fd, for_good=True)
        except BaseException:
            os.close(self.fd)
            raise
        self.users_count = 1
        """The connection, and copies under way."""

    def let_go(self) -> None:
        """One user fewer; with the last the file is closed."""
        self.users_count -= 1
        if not self.users_count:
            os.close(self.fd)

    def read_into(self, view: memoryview, offset: int) -> bool:
        """Copy [offset, offset + len(view)) out of the region; False: that leaves it, or there was no memory."""
        if offset + len(view) > self._size_bytes:
            return False
        done = 0
        while done < len(view):
            try:
                count = os.preadv(self.fd, [view[done:]], offset + done)
            except OSError:
                return False
            if not count:
                return False
            done += count
        return True


@dataclass(slots=True, eq=False)
class _Copy:
    """A chunk on its way from a region into the pool, in parts that threads share."""

    wanted: effects.TakeChunk
    region: WriteRegion
    memory: PoolMemory
    part_bytes: int
    leaves: dict[int, bytes | None] = field(default_factory=dict)
    """By the offset of a part that is done; None: it could not be copied."""

    def take(self, at: int) -> bytes | None:
        """Copy a part, and hash it where that can be done in parts."""
        wanted, chunk = self.wanted, self.wanted.chunk
        part = self.memory.view(chunk.offset + at, min(self.part_bytes, chunk.size_bytes - at))
        if not self.region.read_into(part, wanted.region_offset + at):
            return None
        return leaves_of(part) if wanted.integrity is Integrity.BLAKE3 else b""

    def result(self) -> events.ChunkTaken:
        """What became of it, when all parts are done."""
        chunk, algorithm = self.wanted.chunk, self.wanted.integrity
        leaves = b""
        for _, part in sorted(self.leaves.items()):
            if part is None:
                return events.ChunkTaken(chunk, None)
            leaves += part
        if algorithm is Integrity.BLAKE3:
            return events.ChunkTaken(chunk, Hashed(root_of(leaves, chunk.size_bytes), leaves))
        return events.ChunkTaken(chunk, hashed(self.memory.view(chunk.offset, chunk.size_bytes), algorithm))


class Intake:
    """Copies from all engines' regions into the pool and hashes the copies, off the event loop where they are large."""

    def __init__(
        self,
        memory: PoolMemory,
        region_bytes: int,
        loop: asyncio.AbstractEventLoop,
        handle: Callable[[events.Event], None],
        soon: Callable[[Callable[[], None]], object],
    ) -> None:
        """`handle` feeds the core an event; `soon(call)` makes a call on the event loop, after the one at hand."""
        self._memory = memory
        self._region_bytes = region_bytes
        self._loop = loop
        self._handle = handle
        self._soon = soon
        self._regions: dict[EngineId, WriteRegion] = {}
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="intake")
        self._lock = threading.Lock()
        self._is_open = True

    def open(self, engine: EngineId) -> int:
        """A region for a new engine; its descriptor, to be passed on. Raises OSError."""
        region = self._regions[engine] = WriteRegion(self._region_bytes)
        return region.fd

    def end(self, engine: EngineId) -> None:
        """The engine has gone; copies under way are finished."""
        self._regions.pop(engine).let_go()

    def take(self, wanted: effects.TakeChunk) -> None:
        """Copy a chunk, which is pinned for this, to its place in the pool, and hash the copy."""
        region, size_bytes = self._regions[wanted.engine], wanted.chunk.size_bytes
        region.users_count += 1
        copy = _Copy(wanted, region, self._memory, size_bytes)
        if size_bytes <= limits.INTAKE_INLINE_BYTES_MAX:
            copy.leaves[0] = copy.take(0)
            self._soon(partial(self._chunk_taken, region, copy.result()))
            return
        if wanted.integrity is Integrity.BLAKE3:
            copy.part_bytes = -(-size_bytes // (THREADS * PIECE_BYTES)) * PIECE_BYTES
        for at in range(0, size_bytes, copy.part_bytes):
            self._threads.submit(copy.take, at).add_done_callback(partial(self._part_taken, copy, at))

    def close(self) -> None:
        """Wait for copies under way; the core hears of them no more."""
        self._is_open = False
        self._threads.shutdown(wait=True, cancel_futures=True)

    def _part_taken(self, copy: _Copy, at: int, ready: Future[bytes | None]) -> None:
        """In a thread. Who finishes the last part says what the chunk is."""
        if ready.cancelled():
            return
        with self._lock:
            copy.leaves[at] = ready.result()
            is_last = len(copy.leaves) * copy.part_bytes >= copy.wanted.chunk.size_bytes
        if is_last and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._chunk_taken, copy.region, copy.result())

    def _chunk_taken(self, region: WriteRegion, event: events.ChunkTaken) -> None:
        region.let_go()
        if self._is_open:
            self._handle(event)
