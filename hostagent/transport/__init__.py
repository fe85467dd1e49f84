"""How bytes get from node to node. `base` states the contract; one contract suite runs on every implementation."""

from __future__ import annotations

from hostagent.config import DataConfig
from hostagent.pool.memory import PoolMemory
from hostagent.transport.base import Transport
from hostagent.transport.frames import FramesTransport
from hostagent.transport.sockets import SocketsTransport
from hostagent.transport.verbs.device import device_names
from hostagent.transport.verbs.transport import VerbsTransport


def wants_huge_pages(config: DataConfig) -> bool:
    """Whether the pool is to be registered with an RDMA NIC, as far as that can be known before it is there."""
    return config.transport in ("auto", "verbs") and bool(device_names())


def make_transport(config: DataConfig, memory: PoolMemory) -> Transport:
    """The transport that the configuration names."""
    if config.frames is not None:
        return FramesTransport(config, config.frames, memory)
    if config.transport in ("auto", "verbs"):
        return VerbsTransport(config, memory)
    return SocketsTransport(config, memory)
