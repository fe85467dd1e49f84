"""An engine's write region: the memory in which it hands chunks to the agent. Standard library only.

The agent makes the region with the connection and copies each chunk out of it when it is committed. Which part of the
region a chunk lies in is the client's affair.
"""

from __future__ import annotations

import mmap
import os
import threading
from bisect import insort
from typing import Final

from kvclient import forks
from kvclient.errors import PoolFullError
from kvclient.messages import Status

WARM_BYTES: Final = 64 << 20
"""So much of a region keeps its pages when it is free again; what lies beyond goes back to the system."""


class WriteRegion:
    """First fit, on pages. May be used from any thread."""

    def __init__(self, fd: int) -> None:
        """Maps the file; the descriptor stays the caller's. Raises OSError or ValueError."""
        self.size_bytes = os.fstat(fd).st_size
        self._map = mmap.mmap(fd, self.size_bytes)
        self._lock = threading.Lock()
        self._taken: list[tuple[int, int]] = []
        """(offset, end), ascending."""
        self._is_ours = True
        forks.watch(self)

    def process_forked(self) -> None:
        """See `kvclient.forks`."""
        self._is_ours = False
        self._lock = threading.Lock()

    def allocate(self, size_bytes: int) -> int:
        """Offset of a part that is the caller's until `free`. Raises PoolFullError."""
        extent_bytes = -(-size_bytes // mmap.PAGESIZE) * mmap.PAGESIZE
        with self._lock:
            at = 0
            for offset, end in self._taken:
                if offset - at >= extent_bytes:
                    break
                at = end
            if at + extent_bytes > self.size_bytes:
                too_large = size_bytes > self.size_bytes
                what = f"take {size_bytes} bytes at once through a write region of {self.size_bytes}"
                raise PoolFullError(Status.TOO_LARGE if too_large else Status.POOL_FULL, f"{what} (api.write_region)")
            insort(self._taken, (at, at + extent_bytes))
            return at

    def view(self, offset: int, size_bytes: int) -> memoryview:
        """Writable bytes [offset, offset + size_bytes)."""
        return memoryview(self._map)[offset : offset + size_bytes]

    def free(self, offset: int) -> None:
        """Give a part back."""
        with self._lock:
            index = next(index for index, (taken, _) in enumerate(self._taken) if taken == offset)
            _, end = self._taken[index]
            cold = max(offset, WARM_BYTES)
            if cold < end and self._is_ours and not self._map.closed:
                self._map.madvise(mmap.MADV_REMOVE, cold, end - cold)
            del self._taken[index]

    def close(self) -> None:
        """Unmap. With views still out, the mapping goes when the last of them does: BufferError says so."""
        self._map.close()
