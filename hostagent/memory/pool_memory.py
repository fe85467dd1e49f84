"""The pool's memory: one anonymous memory file that only the agent writes to; engines map it read-only.

A memfd has no name: nothing is left behind however the agent ends, and an engine that maps it keeps its mapping
until it lets go by itself. `hostagent.memory.seals` keeps engines from changing the file.
"""

from __future__ import annotations

import contextlib
import ctypes
import enum
import errno
import mmap
import os
from pathlib import Path

import numpy as np
import numpy.typing as npt

from hostagent.memory import seals
from hostagent.memory.available import available_bytes
from kvproto.units import format_bytes

MADV_POPULATE_WRITE = 23
"""Linux 5.14: fault all pages in at once (not in Python's mmap module)."""

HUGE_PAGE_BYTES = 2 << 20
_HUGE_PAGES = Path("/sys/kernel/mm/hugepages/hugepages-2048kB")
_NO_HUGE_PAGES = (errno.ENOMEM, errno.EINVAL, errno.ENOSYS, errno.ENODEV)
"""No huge pages left, a kernel without them, or one without this size."""


class HugePages(enum.Enum):
    """Whether a pool lies in huge pages of 2 MiB, which an operator has to reserve (vm.nr_hugepages)."""

    NEVER = "never"
    IF_FREE = "if free"
    REQUIRED = "required"


def _map_file(size_bytes: int, flags: int) -> tuple[int, mmap.mmap]:
    fd = os.memfd_create("kvcast-pool", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING | flags)
    try:
        os.ftruncate(fd, size_bytes)
        seals.fix_size(fd)
        return fd, mmap.mmap(fd, size_bytes, mmap.MAP_SHARED)
    except BaseException:
        os.close(fd)
        raise


def _map_huge(size_bytes: int, wanted: HugePages) -> tuple[int, mmap.mmap] | None:
    """In huge pages; None: there are not enough, and it may do without. Raises OSError, one line, where it may not."""
    if wanted is HugePages.NEVER or (wanted is HugePages.IF_FREE and size_bytes % HUGE_PAGE_BYTES):
        return None
    try:
        return _map_file(size_bytes, os.MFD_HUGETLB | os.MFD_HUGE_2MB)
    except OSError as error:
        if error.errno not in _NO_HUGE_PAGES:
            raise
        if wanted is HugePages.IF_FREE:
            return None
        raise OSError(error.errno, _no_huge_pages(size_bytes)) from error


def huge_pages() -> tuple[int, int] | None:
    """(free, reserved) huge pages of 2 MiB; None: the kernel has none of that size."""
    try:
        return int((_HUGE_PAGES / "free_hugepages").read_text()), int((_HUGE_PAGES / "nr_hugepages").read_text())
    except (OSError, ValueError):
        return None


def _no_huge_pages(size_bytes: int) -> str:
    needed, there = -(-size_bytes // HUGE_PAGE_BYTES), huge_pages()
    if there is None:
        return "pool.huge_pages is required, and this kernel has no huge pages of 2 MiB: set pool.huge_pages: auto"
    free, reserved = there
    return (
        f"pool.huge_pages is required, and the pool needs {needed} huge pages of 2 MiB, of which {free} are free:"
        f" sysctl -w vm.nr_hugepages={reserved - free + needed}, or set pool.huge_pages: auto"
    )


def _check_room(size_bytes: int) -> None:
    """Raises OSError, one line, before a pool that does not fit makes the kernel end this process or others."""
    available = available_bytes()
    if available is not None and size_bytes > available:
        raise OSError(
            errno.ENOMEM,
            f"pool.size is {format_bytes(size_bytes)}, and {format_bytes(available)} of memory are available"
            " (MemAvailable and the limits of cgroups): set a smaller pool.size",
        )


def address_of(mapping: mmap.mmap) -> int:
    """Where it is mapped in this process."""
    return ctypes.addressof(ctypes.c_char.from_buffer(mapping))


class PoolMemory:
    """`size_bytes` of shared memory: `fd` to sendfile from, `readers_fd` for engines, `bytes_` as a flat uint8 array.

    Nobody can change the file's size. Nobody but this process can write to it, either; where it is `handed_on`, nobody
    but processes of this user and of root.
    """

    def __init__(
        self,
        size_bytes: int,
        *,
        prefault: bool,
        huge_pages: HugePages = HugePages.NEVER,
        kept_fd: int | None = None,
        handed_on: bool = False,
    ) -> None:
        """`prefault`: touch every page now (`populate` does it in parts). `huge_pages`: an RDMA NIC keeps 512 times
        fewer addresses of a pool that lies in them. `kept_fd`: the file of an earlier pool of this size, with its
        content. `handed_on`: the next agent shall be able to map it for writing, from the same file. Raises OSError
        when the system does not have that much memory.
        """
        self.size_bytes = size_bytes
        mapped = _map_huge(size_bytes, huge_pages) if kept_fd is None else None
        if kept_fd is not None:
            self.fd, self._map = kept_fd, mmap.mmap(kept_fd, size_bytes, mmap.MAP_SHARED)
        elif mapped is not None:
            self.fd, self._map = mapped
        else:
            _check_room(size_bytes)
            self.fd, self._map = _map_file(size_bytes, 0)
        self.address = address_of(self._map)
        """Where it is mapped in this process."""
        self.handed_on = handed_on or kept_fd is not None
        try:
            self.readers_fd = seals.hand_on(self.fd) if self.handed_on else seals.end_writing(self.fd)
        except BaseException:
            os.close(self.fd)
            raise
        self.huge_pages = os.fstat(self.fd).st_blksize == HUGE_PAGE_BYTES
        """Whether it lies in reserved huge pages; sendfile cannot read those."""
        if huge_pages is HugePages.IF_FREE and not self.huge_pages:
            with contextlib.suppress(OSError):  # a kernel without transparent ones
                self._map.madvise(mmap.MADV_HUGEPAGE)
        self.bytes_: npt.NDArray[np.uint8] = np.frombuffer(self._map, dtype=np.uint8)
        if prefault:
            self.populate(0, size_bytes)

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

    def place(
        self,
        offset: int,
        size_bytes: int,
        segments: npt.NDArray[np.uint32],
        payload: npt.NDArray[np.uint8],
        wanted: npt.NDArray[np.bool_],
    ) -> None:
        """Write the wanted rows of `payload`, shape (n, segment_bytes), to their segments (n) of a chunk; the
        chunk's last segment may be short."""
        segment_bytes = payload.shape[1]
        whole_count, tail_bytes = divmod(size_bytes, segment_bytes)
        whole_bytes = whole_count * segment_bytes
        if tail_bytes and int(segments.max()) >= whole_count:
            short = wanted & (segments >= whole_count)
            if short.any():
                self.array(offset + whole_bytes, tail_bytes)[:] = payload[int(short.argmax()), :tail_bytes]
            wanted = wanted & (segments < whole_count)
        rows = self.array(offset, whole_bytes).reshape(-1, segment_bytes)
        if wanted.all():
            rows[segments] = payload
        elif wanted.any():
            rows[segments[wanted]] = payload[wanted]

    def close(self) -> None:
        """Give the file back; the mapping goes with the last array or view onto it."""
        os.close(self.readers_fd)
        os.close(self.fd)

    def populate(self, offset: int, size_bytes: int) -> None:
        """Touch these bytes, which are whole pages: the first touch of each page costs a fault, now and not in the
        middle of a fetch. Content that is there stays."""
        try:
            self._map.madvise(MADV_POPULATE_WRITE, offset, size_bytes)
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
            pages = self.bytes_[offset : offset + size_bytes : mmap.PAGESIZE]
            np.bitwise_or(pages, 0, out=pages)
