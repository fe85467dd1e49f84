"""What engines put: each connection's own write region, and the copies from there into the pool.

An engine can change its region at any time, punch holes into it, or die. So nobody but the agent reads a region, and
the agent reads it once: into the pool, where no engine can write. Hashing and readers see that copy only. The agent
reads with preadv(2), never through a mapping: whatever an engine does to its region, the agent gets bytes or an error,
and no signal. A mapping would be read three times as fast (18 to 26 GB/s instead of 6 to 9.5); a put of 1 MiB takes
0.35 ms all the same.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

from hostagent import limits
from hostagent.core.events import EngineId
from hostagent.pool import seals
from hostagent.pool.memory import PoolMemory


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
        self._users_count = 1
        """The connection, and copies under way."""

    def keep(self) -> None:
        """One more user."""
        self._users_count += 1

    def let_go(self) -> None:
        """One user fewer; with the last the file is closed."""
        self._users_count -= 1
        if not self._users_count:
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


class Intake:
    """Copies from all engines' regions into the pool, off the event loop where they are large."""

    def __init__(self, memory: PoolMemory, region_bytes: int, loop: asyncio.AbstractEventLoop) -> None:
        self._memory = memory
        self._region_bytes = region_bytes
        self._loop = loop
        self._regions: dict[EngineId, WriteRegion] = {}
        self._threads = ThreadPoolExecutor(max_workers=2, thread_name_prefix="intake")
        self._is_open = True

    def open(self, engine: EngineId) -> int:
        """A region for a new engine; its descriptor, to be passed on. Raises OSError."""
        region = self._regions[engine] = WriteRegion(self._region_bytes)
        return region.fd

    def end(self, engine: EngineId) -> None:
        """The engine has gone; copies under way are finished."""
        self._regions.pop(engine).let_go()

    def take(
        self, engine: EngineId, region_offset: int, pool_offset: int, size_bytes: int, done: Callable[[bool], None]
    ) -> None:
        """Copy; `done(whole)` comes on the event loop, later. The caller keeps that range of the pool pinned."""
        region = self._regions[engine]
        view = self._memory.view(pool_offset, size_bytes)
        region.keep()
        if size_bytes <= limits.INTAKE_INLINE_BYTES_MAX:
            self._loop.call_soon(self._taken, region, region.read_into(view, region_offset), done)
            return
        future = self._threads.submit(region.read_into, view, region_offset)
        future.add_done_callback(lambda ready: self._from_thread(region, ready, done))

    def close(self) -> None:
        """Wait for copies under way, without calling their `done`."""
        self._is_open = False
        self._threads.shutdown(wait=True, cancel_futures=True)

    def _from_thread(self, region: WriteRegion, ready: Future[bool], done: Callable[[bool], None]) -> None:
        if not ready.cancelled() and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._taken, region, ready.result(), done)

    def _taken(self, region: WriteRegion, whole: bool, done: Callable[[bool], None]) -> None:
        region.let_go()
        if self._is_open:
            done(whole)
