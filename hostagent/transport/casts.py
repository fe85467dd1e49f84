"""Sending and receiving cast segments in batches, over any non-blocking UDP socket.

`CastSender` queues segments and hands them to the socket as it takes them: headers and ICRCs come from the chunk's
`ChunkFraming` (computed once), payloads straight from the pool. `CastIntake` takes batches, has them decoded and
verified, and passes them on. Both know sockets and memory; neither knows what a fetch is.
"""

from __future__ import annotations

import asyncio
import socket
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from hostagent import limits
from hostagent.pool.memory import PoolMemory
from hostagent.transport.base import ChunkPlace, TransportCounters, TransportSink
from hostagent.transport.mmsg import U8, U64, DatagramReceiver, DatagramSender, row_addresses
from kvproto.ids import Address, ChunkKey
from kvproto.wire.data import DATA_HEADER_BYTES, ChunkFraming, Fabric, decode_batch
from kvproto.wire.icrc import ICRC_BYTES

PARTS = 4
"""Memory pieces of a datagram: what goes before (FILL's control header, a frame's headers), header, payload, ICRC."""


@dataclass(slots=True)
class _Job:
    """Segments of one chunk on their way to one destination."""

    key: ChunkKey
    framing: ChunkFraming
    payload_address: int
    segment_bytes: int
    segment: int
    end: int
    destination: tuple[str, int]
    prefixes: U8
    """Shape (1, n) for all, or (segments of the job, n) for each; n may be 0."""
    prefix_base: int
    """Segment that the first row of `prefixes` belongs to."""
    sent: Callable[[ChunkKey, int], None]
    failed: Callable[[ChunkKey, int], None]


class FramingCache:
    """Headers and ICRCs of the chunks sent lately."""

    def __init__(self, memory: PoolMemory, source: Address, source_port: int) -> None:
        self._memory = memory
        self._source = source
        self._source_port = source_port
        self._framings: OrderedDict[ChunkKey, tuple[ChunkPlace, ChunkFraming]] = OrderedDict()

    def clear(self) -> None:
        """The fabric changed: nothing prepared is of use."""
        self._framings.clear()

    def of(self, chunk: ChunkPlace, fabric: Fabric) -> ChunkFraming:
        """The chunk's framing, prepared before or now."""
        known = self._framings.get(chunk.key)
        if known is not None and known[0] == chunk:
            self._framings.move_to_end(chunk.key)
            return known[1]
        payload = self._memory.view(chunk.offset, chunk.size_bytes)
        framing = ChunkFraming(chunk.key, payload, fabric, self._source, self._source_port)
        self._framings[chunk.key] = (chunk, framing)
        if len(self._framings) > limits.CAST_PREPARED_CHUNKS_MAX:
            self._framings.popitem(last=False)
        return framing


class CastSender:
    """Sends jobs in order through one socket, as fast as it takes them."""

    def __init__(self, sock: socket.socket, loop: asyncio.AbstractEventLoop, memory: PoolMemory) -> None:
        self._fd = sock.fileno()
        self._loop = loop
        self._memory = memory
        self._sender = DatagramSender(sock, limits.CAST_BATCH_PACKETS, PARTS)
        self._addresses: U64 = np.zeros((limits.CAST_BATCH_PACKETS, PARTS), np.uint64)
        self._sizes: U64 = np.zeros((limits.CAST_BATCH_PACKETS, PARTS), np.uint64)
        self._jobs: deque[_Job] = deque()
        self._scheduled = False
        self._waiting = False
        self._open = True

    def add(
        self,
        chunk: ChunkPlace,
        framing: ChunkFraming,
        segment_bytes: int,
        first: int,
        count: int,
        destination: tuple[str, int],
        prefixes: U8,
        sent: Callable[[ChunkKey, int], None],
        failed: Callable[[ChunkKey, int], None],
    ) -> None:
        """Queue segments [first, first + count); what became of them is told later, maybe in parts."""
        if not 0 <= first < first + count <= framing.segments:
            raise ValueError(f"segments {first}+{count} of {framing.segments}")
        address = self._memory.bytes_.ctypes.data + chunk.offset
        self._jobs.append(
            _Job(
                chunk.key,
                framing,
                address,
                segment_bytes,
                first,
                first + count,
                destination,
                prefixes,
                first,
                sent,
                failed,
            )
        )
        if not self._waiting and not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._run)

    def close(self) -> None:
        """Nothing more is sent nor reported."""
        self._open = False
        self._jobs.clear()
        if self._waiting:
            self._loop.remove_writer(self._fd)

    def _run(self) -> None:
        self._scheduled = False
        if not self._open:
            return
        while self._jobs:
            job = self._jobs[0]
            count = min(job.end - job.segment, limits.CAST_BATCH_PACKETS)
            try:
                sent = self._send(job, count)
            except OSError:
                # No route, interface down: the network is gone for this job, and the protocol repairs.
                self._jobs.popleft()
                job.failed(job.key, job.end - job.segment)
                continue
            if sent:
                job.segment += sent
                if job.segment == job.end:
                    self._jobs.popleft()
                job.sent(job.key, sent)
            if sent < count:
                self._wait(True)
                return
        self._wait(False)

    def _wait(self, wanted: bool) -> None:
        if wanted != self._waiting:
            self._waiting = wanted
            if wanted:
                self._loop.add_writer(self._fd, self._run)
            else:
                self._loop.remove_writer(self._fd)

    def _send(self, job: _Job, count: int) -> int:
        framing, first = job.framing, job.segment
        icrcs = framing.icrcs(first, count)
        segment_bytes = job.segment_bytes
        addresses, sizes = self._addresses[:count], self._sizes[:count]
        prefix_bytes = job.prefixes.shape[1]
        if len(job.prefixes) == 1 or not prefix_bytes:
            addresses[:, 0] = job.prefixes.ctypes.data
        else:
            addresses[:, 0] = row_addresses(job.prefixes)[first - job.prefix_base : first - job.prefix_base + count]
        addresses[:, 1] = row_addresses(framing.headers)[first : first + count]
        addresses[:, 2] = job.payload_address + segment_bytes * np.arange(first, first + count, dtype=np.uint64)
        addresses[:, 3] = row_addresses(icrcs)
        sizes[:] = (prefix_bytes, DATA_HEADER_BYTES, segment_bytes, ICRC_BYTES)
        padded = b""
        if first + count == framing.segments:
            padded_part = framing.payload(framing.segments - 1)
            if isinstance(padded_part, bytes):
                padded = padded_part
                addresses[count - 1, 2] = np.frombuffer(padded, np.uint8).ctypes.data
        return self._sender.send(addresses, sizes, job.destination)


class BatchPoller:
    """Calls `take` when a socket has something; under load by the clock instead of at each datagram.

    A batch costs the same whether it carries one datagram or sixty, so it pays to let them come together.
    """

    POLL_S_MIN = 0.001
    """asyncio rounds up to the next millisecond of its own."""
    POLL_S_MAX = 0.004
    """Adds to a leader's round trip; far below any window's worth of segments."""
    BUSY_PACKETS = 3
    """So many in one look make it worth looking by the clock."""
    WORTHWHILE_PACKETS = 16
    """Looks become rarer while they find fewer than this."""
    ROUNDS_MAX = 8
    """Batches in a row before other work gets its turn."""

    def __init__(
        self, receiver: DatagramReceiver, fd: int, loop: asyncio.AbstractEventLoop, take: Callable[[int], None]
    ) -> None:
        self._receiver = receiver
        self._fd = fd
        self._loop = loop
        self._take_batch = take
        self._polling: asyncio.TimerHandle | None = None
        self._poll_s = self.POLL_S_MIN
        self._open = True
        loop.add_reader(fd, self._readable)

    def close(self) -> None:
        """Never again. Idempotent."""
        if self._open:
            self._open = False
            if self._polling is not None:
                self._polling.cancel()
            else:
                self._loop.remove_reader(self._fd)

    def _readable(self) -> None:
        if self._take() >= self.BUSY_PACKETS and self._open:
            self._loop.remove_reader(self._fd)
            self._polling = self._loop.call_later(self._poll_s, self._poll)

    def _poll(self) -> None:
        taken = self._take()
        if not self._open:
            return
        if taken:
            if taken < self.WORTHWHILE_PACKETS:
                self._poll_s = min(2 * self._poll_s, self.POLL_S_MAX)
            else:
                self._poll_s = max(self._poll_s * self.WORTHWHILE_PACKETS / taken, self.POLL_S_MIN)
            self._polling = self._loop.call_later(self._poll_s, self._poll)
        else:
            self._polling = None
            self._loop.add_reader(self._fd, self._readable)

    def _take(self) -> int:
        total = 0
        for _ in range(self.ROUNDS_MAX):
            count = self._receiver.receive()
            if count:
                self._take_batch(count)
            total += count
            if count < limits.CAST_BATCH_PACKETS or not self._open:
                break
        return total


class CastIntake:
    """Takes cast datagrams from one socket and gives what is good to the sink."""

    def __init__(
        self,
        sock: socket.socket,
        loop: asyncio.AbstractEventLoop,
        sink: TransportSink,
        counters: TransportCounters,
        fabric: Fabric,
        from_switch_dscp: int,
        own_address: Address,
    ) -> None:
        self._sink = sink
        self._counters = counters
        self._fabric = fabric
        self._dscp = from_switch_dscp
        self._own = own_address
        self._receiver = DatagramReceiver(sock, limits.CAST_BATCH_PACKETS, row_bytes(fabric.datagram_bytes))
        self._overflows = 0
        self._poller = BatchPoller(self._receiver, sock.fileno(), loop, self._pass_on)

    def close(self) -> None:
        """No more casts."""
        self._poller.close()

    def _pass_on(self, count: int) -> None:
        receiver, counters = self._receiver, self._counters
        rows = receiver.rows[:count]
        lengths = receiver.lengths(count)
        sources = receiver.source_ips(count)
        from_switch = (receiver.tos(count) >> 2) == self._dscp
        ports = receiver.source_ports(count)
        counters.cast_batches_received += 1
        if receiver.overflow_count != self._overflows:
            counters.cast_receive_overflows += (receiver.overflow_count - self._overflows) & 0xFFFF_FFFF
            self._overflows = receiver.overflow_count
        own = sources == self._own
        if own.any():
            counters.drop("own_cast", int(own.sum()))
            foreign = ~own
            rows, lengths, sources, ports = rows[foreign], lengths[foreign], sources[foreign], ports[foreign]
            from_switch = from_switch[foreign]
        pass_on(rows, lengths, sources, ports, from_switch, self._fabric, self._sink, counters)


def pass_on(
    rows: U8,
    lengths: npt.NDArray[np.integer],
    sources: npt.NDArray[np.uint32],
    ports: npt.NDArray[np.integer],
    from_switch: npt.NDArray[np.bool_],
    fabric: Fabric,
    sink: TransportSink,
    counters: TransportCounters,
) -> None:
    """Decode and verify a batch of datagrams (BTH first, one a row), count, and give what is good to the sink."""
    batch = decode_batch(rows, lengths, sources, ports, fabric, from_switch)
    for reason, dropped in batch.dropped.items():
        counters.drop(f"cast_{reason.name.lower()}", dropped)
    payload = rows[:, DATA_HEADER_BYTES : DATA_HEADER_BYTES + fabric.segment_bytes]
    for group in batch.groups:
        counters.cast_packets_received += len(group.rows)
        counters.cast_packets_from_switch += group.from_switch
        whole = len(group.rows) == len(payload)
        sink.casts_received(group, payload if whole else payload[group.rows])


def row_bytes(datagram_bytes: int) -> int:
    """Room for a datagram and one byte more, so that a longer one shows; rows start on cache lines."""
    return -(-(datagram_bytes + 1) // 64) * 64
