"""What nobody can do to a memory file any more (memfd_create(2); fcntl(2), F_ADD_SEALS).

An engine that can shrink a file kills every process that reads its mapping of it (SIGBUS). An engine that can write to
the pool changes chunks after they were verified.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
from typing import Final

_F_ADD_SEALS: Final = 1033
_F_GET_SEALS: Final = 1034
_SEAL: Final = 0x01
"""No seal is added any more: not one, for example, that keeps the agent itself from writing."""
_SIZE: Final = 0x02 | 0x04
"""F_SEAL_SHRINK, F_SEAL_GROW."""
_FUTURE_WRITE: Final = 0x10
"""Linux 5.1: mappings for writing that are there stay, no others are made, and write(2) fails."""
_READ_BY_OWNER: Final = 0o400


def fix_size(fd: int, *, for_good: bool = False) -> None:
    """Nobody changes the file's size any more; `for_good`: and nobody adds other seals. Raises OSError."""
    fcntl.fcntl(fd, _F_ADD_SEALS, _SIZE | (_SEAL if for_good else 0))


def has_fixed_size(fd: int) -> bool:
    """Whether nobody can change the file's size; False also for what is no memory file."""
    try:
        return fcntl.fcntl(fd, _F_GET_SEALS) & _SIZE == _SIZE
    except OSError:
        return False


def end_writing(fd: int) -> int:
    """Nobody writes any more but through mappings that are there. Returns a descriptor for readers.

    Raises OSError, one line, where the kernel does not hold to that: writing is tried.
    """
    try:
        fcntl.fcntl(fd, _F_ADD_SEALS, _FUTURE_WRITE | _SEAL)
    except OSError as error:
        raise OSError(error.errno, "the pool cannot be sealed against writing: kvcast needs Linux 5.1") from error
    try:
        mmap.mmap(fd, mmap.PAGESIZE, mmap.MAP_SHARED).close()
    except PermissionError:
        return os.dup(fd)
    raise OSError(errno.ENOTSUP, "the pool is sealed against writing, and this kernel lets engines write all the same")


def hand_on(fd: int) -> int:
    """A descriptor for readers of a file that stays open to writing: the agent after this one has to map it.

    Readers cannot write through it, nor open the file again to write, but for processes of the file's owner and of
    root. Raises OSError, one line.
    """
    if not fcntl.fcntl(fd, _F_GET_SEALS) & _SEAL:
        fcntl.fcntl(fd, _F_ADD_SEALS, _SEAL)
    os.fchmod(fd, _READ_BY_OWNER)
    try:
        return os.open(f"/proc/self/fd/{fd}", os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        why = f"the pool cannot be opened to be read: {error.strerror}; mount /proc, or set pool.keep: false"
        raise OSError(error.errno, why) from error
