"""Gets the pool ready for use: taken over or new, near the data NIC, every page touched.

Memory and index of the pool stay with a holder (`hostagent.memory.holders`) over a restart of the agent, which hands
both over as soon as they are there, and finds them when it is started again, whether it stopped or was killed. Where
nobody keeps them there is no index. Pages are touched in slices, so that the agent can be stopped meanwhile, and says
how far it is. Before, they are bound to the NIC's NUMA node as long as that has any: a NIC reaches memory of another
node through the link between the sockets, with less rate and more delay. The kernel says where a NIC is
(sysfs-class-net), and takes a preferred node for a range of a shared file (mbind(2), set_mempolicy in
Documentation/admin-guide/mm/numa_memory_policy.rst).
"""

from __future__ import annotations

import asyncio
import ctypes
import logging
import mmap
import os
import platform
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from hostagent import limits
from hostagent.config import AgentConfig, DataConfig
from hostagent.memory import seals
from hostagent.memory.holders import Holder, Keeper, ServiceManager
from hostagent.memory.pool_memory import HugePages, PoolMemory
from hostagent.pool.index import Found, PoolIndex, index_bytes
from hostagent.pool.records import STORE_ID_BYTES
from hostagent.transport import wants_huge_pages
from hostagent.transport.interfaces import interface_with
from kvdaemon.notify import notify
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


_ROOT: Final = Path("/")
_MPOL_PREFERRED: Final = 1
_MBIND: Final = {"x86_64": 237, "aarch64": 235}
"""Number of the system call; glibc has no function for it."""
_NODES_MAX: Final = 1024
"""Bits of the mask that the call is given: what kernels are built with at most."""


def node_of(interface: str | None, root: Path = _ROOT) -> int | None:
    """The NUMA node of an interface's device; None: it has none, or the machine has one node only."""
    if interface is None or len(nodes(root)) < 2:
        return None
    try:
        node = int((root / "sys/class/net" / interface / "device/numa_node").read_text())
    except (OSError, ValueError):
        return None  # no device behind it: a bridge, a VLAN, a veth
    return node if node >= 0 else None


def nodes(root: Path = _ROOT) -> list[int]:
    """NUMA nodes of this machine with memory."""
    try:
        text = (root / "sys/devices/system/node/has_memory").read_text().strip()
    except OSError:
        return []
    found: list[int] = []
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        found += range(int(first), int(last or first) + 1)
    return found


def prefer(memory: PoolMemory, node: int) -> None:
    """Take the pool's pages from this node as long as it has some free. Raises OSError."""
    number = _MBIND.get(platform.machine())
    if number is None:
        raise OSError(f"the number of mbind(2) on {platform.machine()} is not known here")
    words = _NODES_MAX // 64
    mask = (ctypes.c_ulong * words)()
    mask[node // 64] = 1 << node % 64
    libc = ctypes.CDLL(None, use_errno=True)
    done = libc.syscall(
        ctypes.c_long(number),
        ctypes.c_void_p(memory.address),
        ctypes.c_ulong(memory.size_bytes),
        ctypes.c_int(_MPOL_PREFERRED),
        mask,
        ctypes.c_ulong(_NODES_MAX),
        ctypes.c_uint(0),
    )
    if done:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


SLICE_BYTES: Final = 64 << 20
"""Some 20 ms: for as long the event loop does nothing else. A multiple of any page."""
TELL_SHARE: Final = 0.1
TELL_S: Final = 10.0
QUIET_S: Final = 1.0
"""What takes less is not worth a line."""


@dataclass(slots=True)
class Progress:
    """When to say how far it is: every tenth of the pool or every ten seconds, whichever comes first."""

    size_bytes: int
    began_s: float
    told_s: float = 0.0
    told_bytes: int = 0

    def __post_init__(self) -> None:
        self.told_s = self.began_s

    def is_due(self, done_bytes: int, now_s: float) -> bool:
        """Whether to say it now; the caller does."""
        if now_s - self.began_s < QUIET_S or done_bytes >= self.size_bytes:
            return False
        if done_bytes - self.told_bytes < TELL_SHARE * self.size_bytes and now_s - self.told_s < TELL_S:
            return False
        self.told_s, self.told_bytes = now_s, done_bytes
        return True


async def prefault(memory: PoolMemory, clock_s: Callable[[], float], tell: Callable[[int], None]) -> None:
    """Touch every page of a pool. `tell(done_bytes)`: from time to time. Can be cancelled between two slices."""
    progress = Progress(memory.size_bytes, clock_s())
    for offset in range(0, memory.size_bytes, SLICE_BYTES):
        size_bytes = min(SLICE_BYTES, memory.size_bytes - offset)
        memory.populate(offset, size_bytes)
        if progress.is_due(offset + size_bytes, clock_s()):
            tell(offset + size_bytes)
        await asyncio.sleep(0)


def holder_of(config: AgentConfig) -> Holder:
    """Who is to hold the pool while no agent runs."""
    return Keeper(config.pool.keeper) if config.pool.keeper else ServiceManager()


async def opened(config: AgentConfig, holder: Holder, say: Callable[[str], None]) -> Pool:
    """The pool. Takes minutes for a large one: `say` is told from time to time how far it is, and it can be cancelled.

    Raises OSError, one line that names the remedy.
    """
    pool = open_pool(config.pool.size_bytes, _huge_pages(config), holder, keep=config.pool.keep)
    try:
        if not pool.is_kept:
            _place_near_nic(pool.memory, config.data)
        if config.pool.prefault:
            await _prefault(pool.memory, say)
    except BaseException:
        pool.memory.close()
        raise
    return pool


async def _prefault(memory: PoolMemory, say: Callable[[str], None]) -> None:
    """Say how far it is: in the log, to the caller, and to the service manager, which would give up otherwise."""

    def tell(done_bytes: int) -> None:
        share = 100 * done_bytes // memory.size_bytes
        how_far = f"{format_bytes(done_bytes)} of {format_bytes(memory.size_bytes)} ({share} %)"
        log.info("preparing the pool's memory: %s", how_far)
        say(f"the pool's memory is being prepared: {how_far}")
        notify(f"STATUS=preparing the pool's memory: {how_far}\nEXTEND_TIMEOUT_USEC={int(6e6 * TELL_S)}")

    await prefault(memory, time.monotonic, tell)


def _huge_pages(config: AgentConfig) -> HugePages:
    if config.pool.huge_pages == "required":
        return HugePages.REQUIRED
    wanted = config.pool.huge_pages == "auto" and wants_huge_pages(config.data)
    return HugePages.IF_FREE if wanted else HugePages.NEVER


def _place_near_nic(memory: PoolMemory, data: DataConfig) -> None:
    interface = data.interface or interface_with(data.address)
    node = node_of(interface)
    if node is None:
        return
    try:
        prefer(memory, node)
    except OSError as error:
        log.warning("the pool is not placed near %s, on NUMA node %d: %s", interface, node, error.strerror or error)
    else:
        log.info("the pool's memory is taken from NUMA node %d, where %s is", node, interface)
