"""The pool's memory: one anonymous memory file, mapped here and by every engine it is handed to.

A memfd has no name: nothing is left behind however the agent ends, and an engine that maps it keeps its mapping
until it lets go by itself.
"""

from __future__ import annotations

import errno
import mmap
import os

import numpy as np
import numpy.typing as npt

MADV_POPULATE_WRITE = 23
"""Linux 5.14: fault all pages in at once (not in Python's mmap module)."""


HUGE_PAGE_BYTES = 2 << 20
_NO_HUGE_PAGES = (errno.ENOMEM, errno.EINVAL, errno.ENOSYS, errno.ENODEV)
"""None (left), a kernel without them, or without this size of them."""


def _map_file(size_bytes: int, flags: int) -> tuple[int, mmap.mmap]:
    fd = os.memfd_create("kvcast-pool", os.MFD_CLOEXEC | flags)
    try:
        os.ftruncate(fd, size_bytes)
        return fd, mmap.mmap(fd, size_bytes, mmap.MAP_SHARED)
    except BaseException:
        os.close(fd)
        raise


class PoolMemory:
    """`size_bytes` of shared memory: `fd` to pass on and to sendfile from, `bytes_` as a flat uint8 array."""

    def __init__(self, size_bytes: int, *, prefault: bool, huge_pages: bool = False) -> None:
        """`huge_pages`: of 2 MiB, if so many are reserved (vm.nr_hugepages) and they fit the size; else as usual.

        An RDMA NIC then keeps 512 times fewer addresses of it. Raises OSError when the system has not that much memory
        to give.
        """
        self.size_bytes = size_bytes
        self.huge_pages = False
        """Whether it lies in reserved huge pages; sendfile cannot read those."""
        if huge_pages and size_bytes % HUGE_PAGE_BYTES == 0:
            try:
                self.fd, self._map = _map_file(size_bytes, os.MFD_HUGETLB | os.MFD_HUGE_2MB)
                self.huge_pages = True
            except OSError as error:
                if error.errno not in _NO_HUGE_PAGES:
                    raise
        if not self.huge_pages:
            self.fd, self._map = _map_file(size_bytes, 0)
        self.bytes_: npt.NDArray[np.uint8] = np.frombuffer(self._map, dtype=np.uint8)
        if prefault:
            self._prefault()

    def view(self, offset: int, size_bytes: int) -> memoryview:
        """Writable bytes [offset, offset + size_bytes)."""
        if offset < 0 or size_bytes < 0 or offset + size_bytes > self.size_bytes:
            raise ValueError(f"extent {offset}+{size_bytes} leaves the pool of {self.size_bytes} bytes")
        return memoryview(self._map)[offset : offset + size_bytes]

    def array(self, offset: int, size_bytes: int) -> npt.NDArray[np.uint8]:
        """The same bytes as an array, shape (size_bytes,)."""
        if offset < 0 or size_bytes < 0 or offset + size_bytes > self.size_bytes:
            raise ValueError(f"extent {offset}+{size_bytes} leaves the pool of {self.size_bytes} bytes")
        return self.bytes_[offset : offset + size_bytes]

    def close(self) -> None:
        """Give the file back; the mapping goes with the last array or view onto it."""
        os.close(self.fd)

    def _prefault(self) -> None:
        """First touches cost a fault a page; taken at start they are not taken in the middle of a fetch."""
        try:
            self._map.madvise(MADV_POPULATE_WRITE)
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
            self.bytes_[:: mmap.PAGESIZE] = 0
