"""How bytes get from node to node. `base` states the contract; one contract suite runs on every implementation."""

from __future__ import annotations

from hostagent.config import DataConfig
from hostagent.memory.leases import LocalLeases
from hostagent.memory.pool_memory import PoolMemory
from hostagent.transport.host import HostTransport
from hostagent.transport.read_tokens import TokenBook
from hostagent.transport.sockets import SocketsTransport
from hostagent.transport.verbs.device import device_names
from hostagent.transport.verbs.transport import VerbsTransport


def wants_huge_pages(config: DataConfig) -> bool:
    """Whether the pool is to be registered with an RDMA NIC, as far as that can be known before it is there."""
    return config.transport in ("auto", "verbs") and bool(device_names())


def make_transport(
    config: DataConfig, memory: PoolMemory, tokens: TokenBook | None = None, leases: LocalLeases | None = None
) -> HostTransport:
    """The transport that the configuration names. `tokens`: who may read; None: everybody. `leases`: of the pool's
    chunks, for transports that answer reads by themselves."""
    if config.transport in ("auto", "verbs"):
        return VerbsTransport(config, memory, tokens, leases)
    return SocketsTransport(config, memory, tokens, leases)
