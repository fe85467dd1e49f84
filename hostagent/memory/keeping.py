"""The pool over a restart of the agent: its memory and its index stay with a holder (`hostagent.memory.holders`).

The agent hands both files over as soon as they are there, and finds them when it is started again, whether it stopped
or was killed. Where nobody keeps them there is no index.
"""

from __future__ import annotations

import logging
import mmap
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from hostagent import limits
from hostagent.memory import seals
from hostagent.memory.holders import Holder
from hostagent.memory.pool_memory import HugePages, PoolMemory
from hostagent.pool.index import Found, PoolIndex, index_bytes
from hostagent.pool.records import STORE_ID_BYTES
from kvproto.units import format_bytes

log = logging.getLogger(__name__)

POOL_FILE: Final = "kvcast-pool"
INDEX_FILE: Final = "kvcast-index"


@dataclass(slots=True)
class Pool:
    """Memory of a pool, and what is known of it."""

    memory: PoolMemory
    index: PoolIndex | None = None
    """None: nobody keeps the pool."""
    found: tuple[Found, ...] = ()
    """What an agent before had given out."""
    is_kept: bool = False
    """The memory is that of an agent before: its pages are there."""


def open_pool(size_bytes: int, huge_pages: HugePages, holder: Holder, *, keep: bool) -> Pool:
    """The pool of the agent before, or a new one; `keep`: it is to outlive this agent. Raises OSError when there is not
    enough memory, and when another agent has the files that the holder keeps."""
    kept = holder.fetch()
    pool = _kept_pool(size_bytes, huge_pages, kept) if keep else None
    if pool is not None:
        return pool
    for name, descriptor in kept.items():
        os.close(descriptor)
        holder.forget(name)
    keeps = keep and holder.holds()
    memory = PoolMemory(size_bytes, prefault=False, huge_pages=huge_pages, handed_on=keeps)
    return Pool(memory, _new_index(memory, holder)) if keeps else Pool(memory)


def _new_index(memory: PoolMemory, holder: Holder) -> PoolIndex:
    slots_count = memory.size_bytes // limits.EXTENT_ALIGN_BYTES
    descriptor = os.memfd_create(INDEX_FILE, os.MFD_CLOEXEC)
    try:
        os.ftruncate(descriptor, index_bytes(slots_count))
        index = _index(descriptor, memory)
        index.begin(memory.size_bytes)
        holder.keep(POOL_FILE, memory.fd)
        holder.keep(INDEX_FILE, descriptor)
    finally:
        os.close(descriptor)  # the mapping stays, and whoever keeps it has an own descriptor
    return index


def _index(descriptor: int, memory: PoolMemory) -> PoolIndex:
    slots_count = memory.size_bytes // limits.EXTENT_ALIGN_BYTES
    mapped = mmap.mmap(descriptor, index_bytes(slots_count), mmap.MAP_SHARED)
    inode = os.fstat(memory.fd).st_ino
    return PoolIndex(mapped, slots_count, inode.to_bytes(STORE_ID_BYTES, "big"))


def _kept_pool(size_bytes: int, huge_pages: HugePages, kept: Mapping[str, int]) -> Pool | None:
    """The pool in the files that were kept; None, with a line in the log if there are any: it does not fit."""
    if not kept:
        return None
    pool_fd, index_fd = kept.get(POOL_FILE), kept.get(INDEX_FILE)
    if pool_fd is None or index_fd is None or len(kept) != 2:
        log.warning("the pool of the agent before is given up: %s is all that was kept of it", ", ".join(sorted(kept)))
        return None
    facts = os.fstat(pool_fd)
    if facts.st_size != size_bytes:
        log.warning(
            "the pool of the agent before is given up: it has %s, pool.size is %s",
            format_bytes(facts.st_size),
            format_bytes(size_bytes),
        )
        return None
    if not seals.has_fixed_size(pool_fd):
        log.warning("the pool of the agent before is given up: its file is not sealed, engines could shrink it")
        return None
    memory = PoolMemory(size_bytes, prefault=False, kept_fd=pool_fd)
    if huge_pages is not HugePages.IF_FREE and memory.huge_pages is not (huge_pages is HugePages.REQUIRED):
        log.warning("the pool of the agent before is given up: pool.huge_pages was another")
        os.close(memory.readers_fd)  # or its memory would stay as long as this agent
        return None
    slots_count = size_bytes // limits.EXTENT_ALIGN_BYTES
    index = _index(index_fd, memory) if os.fstat(index_fd).st_size == index_bytes(slots_count) else None
    found = index.find(size_bytes) if index is not None else None
    if found is None:
        log.warning("the pool of the agent before is given up: its index is of another version or another pool")
        os.close(memory.readers_fd)
        return None
    os.close(index_fd)
    ready_count = sum(one.ready for one in found)
    log.info("the pool of the agent before is taken over: %d chunks, compared with their digests now", ready_count)
    return Pool(memory, index, tuple(found), is_kept=True)
