"""A pool of the agent before that is of no use any more leaves nothing behind: its memory is the machine's again."""

from __future__ import annotations

import asyncio
import os

import pytest

from hostagent.memory.pool_memory import HugePages
from hostagent.pool_opening import INDEX_FILE, open_pool

POOL_BYTES = 1 << 20


class InThisProcess:
    """A holder of files, as `hostagent.memory.holders.Holder` says."""

    def __init__(self) -> None:
        self.files: dict[str, int] = {}

    def holds(self) -> bool:
        return True

    def fetch(self) -> dict[str, int]:
        return {name: os.dup(file) for name, file in self.files.items()}

    def keep(self, name: str, descriptor: int) -> None:
        self.files[name] = os.dup(descriptor)

    def forget(self, name: str) -> None:
        os.close(self.files.pop(name))

    def attend(self, loop: asyncio.AbstractEventLoop) -> None:
        pass

    def close(self) -> None:
        for name in list(self.files):
            self.forget(name)


def descriptors_of(inode: int) -> int:
    """How many this process has of a file."""
    count = 0
    for number in map(int, os.listdir("/proc/self/fd")):
        try:
            count += os.fstat(number).st_ino == inode
        except OSError:  # that of the listing itself
            continue
    return count


@pytest.mark.parametrize("why", ["index", "huge pages"])
def test_no_descriptor_of_it_is_left(why: str) -> None:
    holder = InThisProcess()
    first = open_pool(POOL_BYTES, HugePages.NEVER, holder, keep=True)
    inode = os.fstat(first.memory.fd).st_ino
    first.memory.close()
    del first  # and with it the mapping, which has a descriptor, too
    if why == "index":
        os.pwrite(holder.files[INDEX_FILE], b"\xff" * 64, 0)
    wanted = HugePages.REQUIRED if why == "huge pages" else HugePages.NEVER
    try:
        second = open_pool(POOL_BYTES, wanted, holder, keep=True)
    except OSError:
        assert why == "huge pages", "this machine has none reserved"
    else:
        assert not second.is_kept
        second.memory.close()
    holder.close()
    assert descriptors_of(inode) == 0
