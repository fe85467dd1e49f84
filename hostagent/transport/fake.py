"""A transport in memory, for deterministic tests of everything above it: a seed decides losses and delays.

Nodes of one `FakeNetwork` reach each other. Casts go through the real framing and the real decoder, so what arrives has
been encoded and verified; there is no switch, so they reach every other node. Reads copy between pools.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import numpy.typing as npt

from hostagent.pool.memory import PoolMemory
from hostagent.transport.base import (
    ChunkPlace,
    ControlArrival,
    Extent,
    ReadHandle,
    ReadOutcome,
    ReadRequest,
    TransportCounters,
    TransportFacts,
    TransportSink,
)
from hostagent.transport.casts import FramingCache, pass_on
from kvchunk.ids import ChunkKey
from kvproto.errors import WireError
from kvproto.ids import Address, format_address
from kvproto.wire.control import Control, decode_control
from kvproto.wire.data import Fabric

_SOURCE_PORT = 4791
_PIECE_BYTES = 64 * 1024


@dataclass(slots=True)
class FakeNetwork:
    """What lies between the nodes."""

    seed: int = 0
    loss: float = 0.0
    """Chance that a datagram (never a read) is lost."""
    delay_s: float = 0.0
    jitter_s: float = 0.0
    """Additional delay, random up to this much: datagrams overtake each other."""
    nodes: dict[Address, FakeTransport] = field(default_factory=dict)
    _chance: random.Random = field(init=False)

    def __post_init__(self) -> None:
        self._chance = random.Random(self.seed)

    def carry(self, deliver: Callable[[], None], loop: asyncio.AbstractEventLoop, *, reliable: bool = False) -> None:
        """Call `deliver` later, or never."""
        if not reliable and self._chance.random() < self.loss:
            return
        loop.call_later(self.delay_s + self.jitter_s * self._chance.random(), deliver)


class FakeTransport:
    """See the module's docstring and the contract in `base`."""

    def __init__(self, network: FakeNetwork, address: Address, memory: PoolMemory) -> None:
        self._network = network
        self._address = address
        self._memory = memory
        self.counters = TransportCounters()
        self._open = False
        self._reads: list[_FakeRead] = []
        self._stepping = False

    async def start(self, sink: TransportSink, fabric: Fabric) -> TransportFacts:
        """Be reachable."""
        self._loop = asyncio.get_running_loop()
        self._sink = sink
        self._fabric = fabric
        self._framings = FramingCache(self._memory, self._address, _SOURCE_PORT)
        self._open = True
        self._network.nodes[self._address] = self
        endpoint = f"{format_address(self._address)}:1"
        return TransportFacts(self._address, bytes(6), endpoint, 1 << 20)

    async def close(self) -> None:
        """Be gone: reads to and from here fail."""
        self._open = False
        self._network.nodes.pop(self._address, None)
        for node in (*self._network.nodes.values(), self):
            for read in list(node._reads):
                if node is self or read.peer is self:
                    read.end(ReadOutcome.FAILED)

    def use_fabric(self, fabric: Fabric) -> None:
        """See `Transport.use_fabric`."""
        if fabric != self._fabric:
            self._fabric = fabric
            self._framings.clear()

    def send_control(self, message: Control, destination: Address) -> None:
        """One control datagram, perhaps."""
        self.counters.control_sent += 1
        datagram = message.encode()
        self._network.carry(lambda: self._deliver_control(datagram, destination), self._loop)

    def drain_receive(self) -> None:
        """Nothing waits to be looked at."""

    def data_socket(self) -> None:
        """There is no kernel below."""

    def cast(self, chunk: ChunkPlace, first: int, count: int) -> None:
        """Segments to every other node, perhaps."""
        framing = self._framings.of(chunk, self._fabric).framing
        if not 0 <= first < first + count <= framing.segments:
            raise ValueError(f"segments {first}+{count} of {framing.segments}")
        self.counters.cast_packets_sent += count
        datagrams = [framing.datagram(segment) for segment in range(first, first + count)]
        self._loop.call_soon(self._send, chunk.key, datagrams)

    def expect(self, chunk: ChunkPlace, missing: npt.NDArray[np.bool_]) -> None:
        """All casts are handed to the sink."""

    def forget(self, key: ChunkKey) -> None:
        """As `expect`."""

    def settle(self) -> None:
        """Only the sink writes segments."""

    def fill(self, chunk: ChunkPlace, first: int, count: int, _pool: Address, *, cast_too: bool = False) -> None:
        """There is no switch to fill: the segments leave, are cast if they say so, and are never acknowledged."""
        if cast_too:
            self.cast(chunk, first, count)
            return
        self.counters.fill_packets_sent += count
        self._loop.call_soon(self._tell_sent, chunk.key, count)

    def read(self, request: ReadRequest) -> ReadHandle:
        """A copy between pools, later."""
        peers = (
            node for node in self._network.nodes.values() if format_address(node._address) == request.endpoint[:-2]
        )
        read = _FakeRead(self, next(peers, None), request)
        self._reads.append(read)
        self._step_soon()
        return read

    # ------------------------------------------------------------------ inside

    def _step_soon(self) -> None:
        if not self._stepping:
            self._stepping = True
            self._network.carry(self._step, self._loop, reliable=True)

    def _step(self) -> None:
        if self._reads and not self._reads[0].waiting:
            self._reads[0].step()
        self._stepping = False
        if self._reads and not self._reads[0].waiting:
            self._step_soon()

    def _tell_sent(self, key: ChunkKey, count: int) -> None:
        if self._open:
            self._sink.fill_sent(key, count)

    def _send(self, key: ChunkKey, datagrams: list[bytes]) -> None:
        if not self._open:
            return
        for datagram in datagrams:
            for node in list(self._network.nodes.values()):
                if node is not self:
                    self._network.carry(partial(node._take, datagram, self._address), self._loop)
        self._sink.segments_sent(key, len(datagrams))

    def _take(self, datagram: bytes, source: Address) -> None:
        if not self._open:
            return
        rows = np.frombuffer(datagram, np.uint8).reshape(1, -1).copy()
        lengths = np.array([len(datagram)], np.int64)
        sources, ports = np.array([source], np.uint32), np.array([_SOURCE_PORT], np.int64)
        self.counters.cast_batches_received += 1
        pass_on(rows, lengths, sources, ports, np.zeros(1, np.bool_), self._fabric, self._sink, self.counters)

    def _deliver_control(self, datagram: bytes, destination: Address) -> None:
        node = self._network.nodes.get(destination)
        if node is None or node is self:
            return
        try:
            message = decode_control(datagram)
        except WireError as error:
            node.counters.drop(f"control_{error.reason.name.lower()}")
            return
        node.counters.control_received += 1
        node._sink.controls_received([ControlArrival(message, self._address)])


@dataclass(slots=True, eq=False)
class _FakeRead:
    """One read; its bytes travel in pieces, and those of one reader in the order in which they were asked for."""

    reader: FakeTransport
    peer: FakeTransport | None
    request: ReadRequest
    extent: Extent | None = None
    have_bytes: int = 0
    waiting: bool = False
    """The peer is bringing the chunk from its disk."""
    prepared: bool = False

    def _prepared(self) -> None:
        self.waiting, self.prepared = False, True
        self.reader._step_soon()

    def cancel(self) -> None:
        """Give it up."""
        if self._leave():
            self.reader._step_soon()

    def end(self, outcome: ReadOutcome) -> None:
        """Report how it ended, unless it is over already."""
        if self._leave():
            self.reader.counters.reads_failed += outcome is ReadOutcome.FAILED
            self.reader._loop.call_soon(self.request.done, outcome)

    def step(self) -> None:
        """The next piece."""
        if self.peer is None or not self.peer._open:
            self.end(ReadOutcome.FAILED)
            return
        request = self.request
        if request.leaves is not None:
            leaves = self.peer._sink.leaves(request.key)
            if leaves is None and not self.prepared and self.peer._sink.prepare(request.key, self._prepared):
                self.waiting = True
                return
            if leaves is not None:
                request.leaves[:] = leaves
            self.end(ReadOutcome.ABSENT if leaves is None else ReadOutcome.DONE)
            return
        if self.extent is None:
            self.extent = self.peer._sink.open_extent(request.key)
            if self.extent is None and not self.prepared and self.peer._sink.prepare(request.key, self._prepared):
                self.waiting = True
                return
            if self.extent is None or request.offset + request.size_bytes > self.extent.size_bytes:
                self.end(ReadOutcome.ABSENT)
                return
        piece = min(_PIECE_BYTES, request.size_bytes - self.have_bytes)
        start = self.extent.offset + request.offset + self.have_bytes
        target = self.reader._memory.view(request.pool_offset + self.have_bytes, piece)
        target[:] = self.peer._memory.view(start, piece)
        self.have_bytes += piece
        self.reader.counters.read_bytes_received += piece
        self.peer.counters.read_bytes_sent += piece
        if self.have_bytes == request.size_bytes:
            self.end(ReadOutcome.DONE)
        elif request.progressed is not None:
            request.progressed(self.have_bytes)

    def _leave(self) -> bool:
        if self not in self.reader._reads:
            return False
        self.reader._reads.remove(self)
        if self.extent is not None and self.peer is not None:
            self.peer._sink.close_extent(self.extent)
        return True
