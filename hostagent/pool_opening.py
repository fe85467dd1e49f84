"""Gets the pool ready for use: taken over or new, near the data NIC, every page touched."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from hostagent.config import AgentConfig, DataConfig
from hostagent.memory import numa
from hostagent.memory.holders import Holder, Keeper, ServiceManager
from hostagent.memory.keeping import Pool, open_pool
from hostagent.memory.pool_memory import HugePages, PoolMemory
from hostagent.memory.prefault import TELL_S, prefault
from hostagent.transport import wants_huge_pages
from hostagent.transport.interfaces import interface_with
from kvdaemon.notify import notify
from kvproto.units import format_bytes

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
    node = numa.node_of(interface)
    if node is None:
        return
    try:
        numa.prefer(memory, node)
    except OSError as error:
        log.warning("the pool is not placed near %s, on NUMA node %d: %s", interface, node, error.strerror or error)
    else:
        log.info("the pool's memory is taken from NUMA node %d, where %s is", node, interface)
