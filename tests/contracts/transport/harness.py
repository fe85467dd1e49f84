"""Pairs of transports of every kind, and a sink that records: what the contract suite runs on."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from hostagent import limits
from hostagent.config import DataConfig
from hostagent.memory.leases import LocalLeases, local_leases
from hostagent.memory.pool_memory import PoolMemory
from hostagent.transport.base import (
    ChunkPlace,
    ControlArrival,
    Extent,
    ReadOutcome,
    ReadRequest,
    TransportFacts,
)
from hostagent.transport.host import HostTransport
from hostagent.transport.sockets import SocketsTransport
from hostagent.transport.verbs.transport import VerbsCasts, VerbsTransport
from kvchunk.ids import ChunkKey
from kvproto.events import SegmentsReceived
from kvproto.ids import Address
from kvproto.wire.control import Control
from kvproto.wire.data import Fabric
from tests.contracts.transport import fake_nic

POOL_BYTES = 16 << 20
REGION_BYTES = (1 << 20) + 12345
"""Of the pools that are registered with a fake NIC: chunks lie across their borders."""
DEADLINE_S = float(os.environ.get("KVCAST_TEST_DEADLINE_S", "10"))
"""Software emulation of a whole machine needs more."""


class RecordingSink:
    """Keeps what a transport reports; offers the chunks it is told to hold."""

    def __init__(self) -> None:
        self.held: dict[ChunkKey, ChunkPlace] = {}
        self.on_disk: set[ChunkKey] = set()
        self.asked_of_disk: dict[ChunkKey, Callable[[], None]] = {}
        self.open_extents = 0
        self.trees: dict[ChunkKey, bytes] = {}
        self.controls: list[tuple[Control, Address]] = []
        self.casts: dict[ChunkKey, dict[int, bytes]] = {}
        self.cast_sources: set[Address] = set()
        self.expected: dict[ChunkKey, tuple[ChunkPlace, PoolMemory, int]] = {}
        """Where casts go, and the segment size, for transports that place them by themselves."""
        self.unexpected: dict[ChunkKey, list[int]] = {}
        self.sent: dict[ChunkKey, int] = {}
        self.failed: dict[ChunkKey, int] = {}
        self.filled: dict[ChunkKey, int] = {}
        self.leases: LocalLeases | None = None
        """By which the transport reads chunks without opening them."""
        self.read_by_lease: list[ChunkKey] = []
        self._changed = asyncio.Event()

    @property
    def in_use(self) -> int:
        """Reads of peers that are not over."""
        return self.open_extents + (len(self.leases.catalog.leased()) if self.leases is not None else 0)

    def relays(self) -> None: ...

    def peers_read(self, keys: Sequence[ChunkKey]) -> None:
        self.read_by_lease += keys
        self._changed.set()

    def controls_received(self, arrivals: Sequence[ControlArrival]) -> None:
        self.controls.extend(tuple(arrival) for arrival in arrivals)
        self._changed.set()

    def casts_placed(self, arrivals: Sequence[SegmentsReceived]) -> None:
        for arrived in arrivals:
            place, memory, segment_bytes = self.expected[arrived.key]
            segments = self.casts.setdefault(arrived.key, {})
            for segment in arrived.segments.tolist():
                start = segment * segment_bytes
                size = min(segment_bytes, place.size_bytes - start)
                segments[segment] = bytes(memory.view(place.offset + start, size)).ljust(segment_bytes, b"\0")
            self.cast_sources.add(arrived.source)
        self._changed.set()

    def casts_unexpected(self, arrivals: Sequence[SegmentsReceived]) -> None:
        for arrived in arrivals:
            self.unexpected.setdefault(arrived.key, []).extend(arrived.segments.tolist())
        self._changed.set()

    def cast_patience_s(self) -> float:
        return 0.001

    def cast_patience_segments(self) -> int:
        return 16

    def segments_sent(self, key: ChunkKey, count: int, _rail: int = 0) -> None:
        self.sent[key] = self.sent.get(key, 0) + count
        self._changed.set()

    def segments_failed(self, key: ChunkKey, count: int, _rail: int = 0) -> None:
        self.failed[key] = self.failed.get(key, 0) + count
        self._changed.set()

    def fill_sent(self, key: ChunkKey, count: int) -> None:
        self.filled[key] = self.filled.get(key, 0) + count
        self._changed.set()

    def casts_queued_bytes(self) -> int:
        return 0

    def open_extent(self, key: ChunkKey) -> Extent | None:
        place = self.held.get(key)
        if place is None:
            return None
        self.open_extents += 1
        return Extent(place.offset, place.size_bytes, place)

    def leaves(self, key: ChunkKey) -> bytes | None:
        return self.trees.get(key)

    def prepare(self, key: ChunkKey, then: Callable[[], None]) -> bool:
        if key not in self.on_disk:
            return False
        self.asked_of_disk[key] = then
        self._changed.set()
        return True

    def close_extent(self, extent: Extent) -> None:
        assert isinstance(extent.token, ChunkPlace)
        self.open_extents -= 1
        self._changed.set()

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait until something reported makes the condition true; the end of a lease is not reported."""
        async with asyncio.timeout(DEADLINE_S):
            while not condition():
                self._changed.clear()
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._changed.wait(), None if self.leases is None else 0.005)


@dataclass
class Node:
    """One transport with its memory and sink, started."""

    transport: HostTransport
    memory: PoolMemory
    sink: RecordingSink
    facts: TransportFacts

    def read_counters(self) -> None:
        """Have the transport look at what its hardware counts; the others count by themselves."""
        if isinstance(self.transport.casts, VerbsCasts):
            self.transport.casts.read_counters()

    def hold(self, key: ChunkKey, content: bytes, offset: int = 0) -> ChunkPlace:
        """Put a chunk into the pool and serve it."""
        self.memory.view(offset, len(content))[:] = content
        place = ChunkPlace(key, offset, len(content))
        self.sink.held[key] = place
        if self.sink.leases is not None:
            self.sink.leases.catalog.show(key, offset, len(content))
        return place

    def expect(self, key: ChunkKey, size_bytes: int, segment_bytes: int, offset: int = 0) -> npt.NDArray[np.bool_]:
        """Want casts of a chunk, at a place in the pool. Returns what is `missing`: all, unless a test clears some."""
        place = ChunkPlace(key, offset, size_bytes)
        missing = np.ones(-(-size_bytes // segment_bytes), np.bool_)
        self.sink.expected[key] = place, self.memory, segment_bytes
        self.transport.casts.expect(place, missing)
        return missing

    async def read(self, other: Node, key: ChunkKey, offset: int, size_bytes: int, to: int) -> ReadOutcome:
        """One reliable read, awaited."""
        done: asyncio.Future[ReadOutcome] = asyncio.get_running_loop().create_future()
        self.transport.reads.read(ReadRequest(other.facts.read_endpoint, key, offset, size_bytes, to, done.set_result))
        async with asyncio.timeout(DEADLINE_S):
            return await done

    async def read_leaves(self, other: Node, key: ChunkKey, size_bytes: int) -> tuple[ReadOutcome, bytes]:
        """The leaves of a chunk's tree, awaited."""
        done: asyncio.Future[ReadOutcome] = asyncio.get_running_loop().create_future()
        leaves, endpoint = bytearray(size_bytes), other.facts.read_endpoint
        self.transport.reads.read(ReadRequest(endpoint, key, 0, size_bytes, 0, done.set_result, leaves=leaves))
        async with asyncio.timeout(DEADLINE_S):
            return await done, bytes(leaves)


@dataclass
class Network:
    """Nodes that reach each other; `close` ends all."""

    fabric: Fabric
    nodes: list[Node] = field(default_factory=list)
    wire: fake_nic.Wire | None = None
    ends: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)
    """What else there is to end."""

    async def close(self) -> None:
        for node in self.nodes:
            await node.transport.close()
            if node.sink.leases is not None:
                node.sink.leases.close()
            node.memory.close()
        self.ends.close()


def free_udp_port() -> int:
    """A UDP port that nobody uses on loopback."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


async def ipv6_network(fabric: Fabric, count: int = 2) -> Network:
    """Sockets transports without IPv4: they read, and cast nothing."""
    return await sockets_network(fabric, count, ["::1"] * count)


async def sockets_network(fabric: Fabric, count: int = 2, addresses: Sequence[str] = ()) -> Network:
    """Sockets transports on loopback addresses, by default of their own."""
    network = Network(fabric)
    cast_port, control_port = free_udp_port(), free_udp_port()
    for index in range(count):
        config = DataConfig(
            address=addresses[index] if addresses else f"127.77.0.{index + 1}",
            cast_port=cast_port,
            control_port=control_port,
            read_port=0,
            receive_buffer_bytes=4 << 20,
            segment_bytes=fabric.segment_bytes,
        )
        memory = PoolMemory(POOL_BYTES, prefault=False)
        sink = RecordingSink()
        sink.leases = local_leases(POOL_BYTES)
        transport = SocketsTransport(config, memory, leases=sink.leases)
        facts = await transport.start(sink, fabric)
        network.nodes.append(Node(transport, memory, sink, facts))
    return network


async def verbs_network(fabric: Fabric, count: int = 2, *, read_idle_s: float = limits.VERBS_READ_IDLE_S) -> Network:
    """RDMA transports, each on a port of its own."""
    network = Network(fabric)
    for address in RDMA_ADDRESSES[:count]:
        config = DataConfig(
            transport="verbs",
            address=address,
            read_port=0,
            receive_buffer_bytes=4 << 20,
            segment_bytes=fabric.segment_bytes,
        )
        memory = PoolMemory(POOL_BYTES, prefault=False)
        transport = VerbsTransport(config, memory, read_idle_s=read_idle_s)
        sink = RecordingSink()
        network.nodes.append(Node(transport, memory, sink, await transport.start(sink, fabric)))
    return network


async def fake_verbs_network(fabric: Fabric, count: int = 2) -> Network:
    """RDMA transports on NICs that exist in this process only."""
    network = Network(fabric)
    network.wire = network.ends.enter_context(fake_nic.in_place_of_real_ones())
    cast_port, control_port = free_udp_port(), free_udp_port()
    for index in range(count):
        config = DataConfig(
            transport="verbs",
            rdma_region_bytes=REGION_BYTES,
            address=f"127.77.1.{index + 1}",
            cast_port=cast_port,
            control_port=control_port,
            read_port=0,
            receive_buffer_bytes=4 << 20,
            segment_bytes=fabric.segment_bytes,
        )
        memory, sink = PoolMemory(POOL_BYTES, prefault=False), RecordingSink()
        transport = VerbsTransport(config, memory)
        network.nodes.append(Node(transport, memory, sink, await transport.start(sink, fabric)))
    return network


RDMA_ADDRESSES = tuple(filter(None, os.environ.get("KVCAST_TEST_RDMA_ADDRESSES", "").split(",")))
"""Addresses of RDMA ports of this machine that reach each other over a wire; guests have them (make test-roce)."""
NETWORKS = {
    "sockets": sockets_network,
    "fake nic": fake_verbs_network,
    **({"verbs": verbs_network} if RDMA_ADDRESSES else {}),
}
READING_NETWORKS = {**NETWORKS, "ipv6": ipv6_network}
