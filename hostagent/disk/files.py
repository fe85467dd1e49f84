"""The two files of a disk tier and the system calls on them. Blocking: everything here runs in threads of the store.

Durability. After a crash of the agent (kill -9) the kernel still has every write, in order: a chunk reported as stored
is stored. After a power failure the writes since the last `sync` may be missing or out of order; checksums reveal that.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import mmap
import os
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from hostagent.pool.records import (
    HEADER_BYTES,
    RECORD_BYTES,
    STORE_ID_BYTES,
    HeaderFault,
    Record,
    pack_header,
    pack_record,
    record_at,
    unpack_header,
    unpack_record,
)

INDEX_NAME: Final = "kvcast.index"
SLAB_NAME: Final = "kvcast.slab"
WRITE_SLICE_BYTES: Final = 8 << 20
"""A chunk is written in slices, so that reads that arrive meanwhile soon have the device to themselves."""
WRITE_SLICE_BESIDE_READS_BYTES: Final = 1 << 20
"""Size of a slice while reads go on: a new read shares the device with at most this much, 1 ms at 1 GB/s."""
INDEX_READ_BYTES: Final = 1 << 20
_FREE = bytes(RECORD_BYTES)
_libc = ctypes.CDLL(None, use_errno=True)
_libc.fallocate.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)


class DiskError(Exception):
    """The tier cannot be used; one line that names file and remedy."""


@dataclass(slots=True)
class StoreFiles:
    """An open store. One process at a time has it (a lock on the index)."""

    folder: Path
    size_bytes: int
    index_fd: int
    slab_fd: int
    store_id: bytes
    direct: bool
    """The slab bypasses the page cache."""
    was_damaged: bool
    """There was an index whose header could not be read: the store begins empty."""

    @classmethod
    def open(cls, folder: str, size_bytes: int, *, direct: bool) -> StoreFiles:
        """Open the existing store or begin an empty one; takes the slab's space at once. Raises DiskError."""
        place = Path(folder)
        try:
            place.mkdir(mode=0o700, parents=True, exist_ok=True)
            index_fd = _open_own(place / INDEX_NAME)
        except OSError as error:
            raise DiskError(
                f"{folder}: {error.strerror}; make it writable or set disk.path to another folder"
            ) from None
        try:
            _lock(index_fd, folder)
            store_id, was_damaged = _identify(index_fd, folder)
            slab_fd, is_direct = _open_slab(place / SLAB_NAME, direct)
        except OSError as error:
            os.close(index_fd)
            raise DiskError(f"{folder}: {error.strerror}; set disk.path to another folder") from None
        except DiskError:
            os.close(index_fd)
            raise
        try:
            _take_space(slab_fd, size_bytes, folder)
        except DiskError:
            os.close(slab_fd)
            os.close(index_fd)
            raise
        return cls(place, size_bytes, index_fd, slab_fd, store_id, is_direct, was_damaged)

    def close(self) -> None:
        """Close both files."""
        os.close(self.slab_fd)
        os.close(self.index_fd)

    def records(self) -> Iterator[tuple[int, Record | None]]:
        """(slot, record) of every slot in use; None for a damaged one. Raises OSError."""
        at, slot = HEADER_BYTES, 0
        while block := os.pread(self.index_fd, INDEX_READ_BYTES, at):
            at += len(block)
            for start in range(0, len(block), RECORD_BYTES):
                sector = block[start : start + RECORD_BYTES]
                try:
                    if len(sector) < RECORD_BYTES:
                        raise ValueError("a torn record at the end")
                    record = unpack_record(sector, self.store_id, slot)
                except ValueError:
                    yield slot, None
                else:
                    if record is not None:
                        yield slot, record
                slot += 1

    def put_record(self, record: Record, slot: int) -> None:
        """Raises OSError."""
        _write_all(self.index_fd, memoryview(pack_record(record, self.store_id, slot)), record_at(slot))

    def clear_record(self, slot: int) -> None:
        """Raises OSError."""
        _write_all(self.index_fd, memoryview(_FREE), record_at(slot))

    def write(self, view: memoryview, offset: int, give_way: Callable[[], bool]) -> None:
        """Bytes into the slab, slice by slice. `give_way` is called before each of them and may wait; it returns
        whether reads are going on. Raises OSError."""
        while view:
            size = WRITE_SLICE_BESIDE_READS_BYTES if give_way() else WRITE_SLICE_BYTES
            _write_all(self.slab_fd, view[:size], offset)
            view, offset = view[size:], offset + size

    def read(self, view: memoryview, offset: int) -> None:
        """Fill `view` from the slab. Raises OSError, also when the slab is shorter than it should be."""
        while view:
            count = os.preadv(self.slab_fd, [view], offset)
            if not count:
                raise OSError(errno.EIO, "the slab is too short")
            view, offset = view[count:], offset + count

    def sync(self) -> None:
        """Make earlier writes survive a power failure: first the bytes, then the records that describe them."""
        os.fdatasync(self.slab_fd)
        os.fdatasync(self.index_fd)


def _lock(fd: int, folder: str) -> None:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise DiskError(f"another agent uses {folder}: set disk.path to a folder that no other agent uses") from None


def _identify(fd: int, folder: str) -> tuple[bytes, bool]:
    """The identity of the store; a fresh one for a fresh or damaged index, which is emptied."""
    page = os.pread(fd, HEADER_BYTES, 0)
    found = unpack_header(page) if page else None
    if isinstance(found, bytes):
        return found, False
    if found is HeaderFault.FORMAT:
        raise DiskError(
            f"{folder} holds a store of another release's format: remove its files or set disk.path to another folder"
        )
    store_id = os.urandom(STORE_ID_BYTES)
    os.ftruncate(fd, 0)
    _write_all(fd, memoryview(pack_header(store_id)), 0)
    os.fdatasync(fd)
    return store_id, found is not None


def _open_slab(path: Path, direct: bool) -> tuple[int, bool]:
    """The slab, opened past the page cache if `direct` and the file system can: the pool in DRAM is the cache."""
    if direct:
        try:
            return _open_own(path, os.O_DIRECT), True
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
    return _open_own(path), False


def _open_own(path: Path, flags: int = 0) -> int:
    """Open or make a regular file that this user owns and that has no other name. Following a link that another user
    put into the folder, the agent would truncate the link's target. Raises DiskError for such a file, else OSError."""
    try:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK | flags, 0o600)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENXIO):
            raise DiskError(_not_our_file(path, "not a regular file")) from None
        raise
    found = os.fstat(fd)
    problem = ""
    if not stat.S_ISREG(found.st_mode):
        problem = "not a regular file"
    elif found.st_uid != os.geteuid():
        problem = f"owned by user {found.st_uid}, not by {os.geteuid()}"
    elif found.st_nlink > 1:
        problem = "a file with a second name"
    if problem:
        os.close(fd)
        raise DiskError(_not_our_file(path, problem))
    return fd


def _not_our_file(path: Path, problem: str) -> str:
    return f"{path} is {problem}: remove it, or set disk.path to a folder of this agent's own"


def _take_space(fd: int, size_bytes: int, folder: str) -> None:
    """Have the file system reserve the space, so that a full disk shows now and not in the middle of a write."""
    have_bytes = os.fstat(fd).st_size
    try:
        if have_bytes > size_bytes:
            os.ftruncate(fd, size_bytes)
        if _libc.fallocate(fd, 0, 0, size_bytes):
            code = ctypes.get_errno()
            if code != errno.EOPNOTSUPP:
                raise OSError(code, os.strerror(code))
            # The file system reserves nothing (NFS, ZFS): the file is sparse, and a full disk shows only later.
            os.ftruncate(fd, size_bytes)
    except OSError as error:
        free = os.fstatvfs(fd)
        with_remedy = f"{free.f_bavail * free.f_frsize >> 20} MiB are free; lower disk.size or make room"
        if have_bytes < size_bytes:
            os.ftruncate(fd, have_bytes)
        raise DiskError(
            f"{folder}: no room for a slab of {size_bytes >> 20} MiB ({error.strerror}): {with_remedy}"
        ) from None


def _write_all(fd: int, view: memoryview, offset: int) -> None:
    while view:
        count = os.pwrite(fd, view, offset)
        if not count:
            raise OSError(errno.EIO, "the file system wrote nothing")
        view, offset = view[count:], offset + count


assert WRITE_SLICE_BESIDE_READS_BYTES % mmap.PAGESIZE == WRITE_SLICE_BYTES % mmap.PAGESIZE == 0
assert INDEX_READ_BYTES % RECORD_BYTES == 0
