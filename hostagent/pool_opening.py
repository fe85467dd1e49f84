"""Gets the pool ready for use: taken over or new, near the data NIC, every page touched.

Touches a whole pool in slices, so that the agent can be stopped meanwhile, and says how far it is.

Memory near the data NIC: the pool's pages are taken from the NIC's NUMA node as long as that has any.

A NIC reaches memory of another node through the link between the sockets, with less rate and more delay. The kernel
says where a NIC is (sysfs-class-net), and takes a preferred node for a range of a shared file (mbind(2), set_mempolicy
in Documentation/admin-guide/mm/numa_memory_policy.rst). Called before the pages are touched.
"""

from __future__ import annotations

import asyncio
import ctypes
import logging
import os
import platform
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from hostagent.config import AgentConfig, DataConfig
from hostagent.memory.holders import Holder, Keeper, ServiceManager
from hostagent.memory.keeping import Pool, open_pool
from hostagent.memory.pool_memory import HugePages, PoolMemory
from hostagent.transport import wants_huge_pages
from hostagent.transport.interfaces import interface_with
from kvdaemon.notify import notify
from kvproto.units import format_bytes

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


log = logging.getLogger(__name__)


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
