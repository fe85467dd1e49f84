"""Sending and receiving cast segments in batches, over any non-blocking UDP socket.

`CastSender` queues segments and hands them to the socket as it takes them: headers and ICRCs come from the chunk's
`ChunkFraming` (computed once), payloads straight from the pool. `CastIntake` takes batches, has them decoded and
verified, and passes them on. Both know sockets and memory; neither knows what a fetch is.
"""

from __future__ import annotations

import asyncio
import math
import socket
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from hostagent import limits
from hostagent.pool.memory import PoolMemory
from hostagent.transport.base import ChunkPlace, ControlArrival, TransportCounters, TransportSink
from hostagent.transport.mmsg import U8, U64, DatagramReceiver, DatagramSender
from kvchunk.ids import ChunkKey
from kvproto.errors import WireError
from kvproto.ids import Address
from kvproto.wire.control import decode_control
from kvproto.wire.data import DATA_HEADER_BYTES, ChunkFraming, DecodedBatch, Fabric, decode_batch
from kvproto.wire.icrc import ICRC_BYTES
from kvproto.wire.layouts import KV_CONTROL_BYTES

PARTS = 4
"""Memory pieces of a datagram: prefix (FILL's control header, a frame's headers), header, payload, ICRC."""


@dataclass(slots=True)
class _Job:
    """Segments of one chunk on their way to one destination."""

    prepared: Prepared
    segment: int
    end: int
    destination: tuple[str, int]
    prefixes: U8
    """Shape (1, n) for all, or (segments of the job, n) for each; n may be 0."""
    prefix_address: int
    """Address that the row for segment 0 has, or would have."""
    prefix_step: int
    sent: Callable[[ChunkKey, int], None]
    failed: Callable[[ChunkKey, int], None]


@dataclass(frozen=True, slots=True)
class Prepared:
    """A chunk ready for sending: its framing, and where the pieces of its datagrams lie in memory."""

    chunk: ChunkPlace
    framing: ChunkFraming
    segment_bytes: int
    header_address: int
    payload_address: int
    icrc_address: int


class FramingCache:
    """Headers and ICRCs of the chunks sent lately."""

    def __init__(self, memory: PoolMemory, source: Address, source_port: int) -> None:
        self._memory = memory
        self._source = source
        self._source_port = source_port
        self._prepared: OrderedDict[ChunkKey, Prepared] = OrderedDict()

    def clear(self) -> None:
        """The fabric changed: forget everything prepared."""
        self._prepared.clear()

    def of(self, chunk: ChunkPlace, fabric: Fabric) -> Prepared:
        """The chunk's framing, prepared before or now."""
        known = self._prepared.get(chunk.key)
        if known is not None and known.chunk == chunk:
            self._prepared.move_to_end(chunk.key)
            return known
        payload = self._memory.view(chunk.offset, chunk.size_bytes)
        framing = ChunkFraming(chunk.key, payload, fabric, self._source, self._source_port)
        prepared = Prepared(
            chunk,
            framing,
            fabric.segment_bytes,
            framing.headers.ctypes.data,
            self._memory.bytes_.ctypes.data + chunk.offset,
            # All ICRCs of a chunk are in one array, whose address is that of the first.
            framing.icrcs(0, 1).ctypes.data,
        )
        self._prepared[chunk.key] = prepared
        if len(self._prepared) > limits.CAST_PREPARED_CHUNKS_MAX:
            self._prepared.popitem(last=False)
        return prepared


class CastSender:
    """Sends jobs in order through one socket, as fast as it takes them."""

    def __init__(self, sock: socket.socket, loop: asyncio.AbstractEventLoop) -> None:
        self._fd = sock.fileno()
        self._loop = loop
        self._sender = DatagramSender(sock, limits.CAST_BATCH_PACKETS, PARTS)
        self._index: U64 = np.arange(limits.CAST_BATCH_PACKETS, dtype=np.uint64).reshape(-1, 1)
        self._jobs: deque[_Job] = deque()
        self._scheduled = False
        self._waiting = False
        self._open = True

    def add(
        self,
        prepared: Prepared,
        first: int,
        count: int,
        destination: tuple[str, int],
        prefixes: U8,
        sent: Callable[[ChunkKey, int], None],
        failed: Callable[[ChunkKey, int], None],
    ) -> None:
        """Queue segments [first, first + count); their outcome is reported later, maybe in parts."""
        if not 0 <= first < first + count <= prepared.framing.segments:
            raise ValueError(f"segments {first}+{count} of {prepared.framing.segments}")
        step = prefixes.strides[0] if len(prefixes) > 1 else 0
        address = prefixes.ctypes.data - first * step
        self._jobs.append(_Job(prepared, first, first + count, destination, prefixes, address, step, sent, failed))
        if not self._waiting and not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._run)

    def give_up(self) -> None:
        """Others send from now on: segments that have not left are reported as failed, later."""
        for job in self._jobs:
            self._loop.call_soon(job.failed, job.prepared.chunk.key, job.end - job.segment)
        self._jobs.clear()

    def close(self) -> None:
        """Send and report nothing more, except segments that were given up."""
        self._open = False
        self._jobs.clear()
        if self._waiting:
            self._loop.remove_writer(self._fd)

    def _run(self) -> None:
        self._scheduled = False
        while self._jobs and self._open:
            job = self._jobs[0]
            key = job.prepared.chunk.key
            count = min(job.end - job.segment, limits.CAST_BATCH_PACKETS)
            try:
                sent = self._send(job, count)
            except OSError:
                # No route, interface down: the network is gone for this job, and the protocol repairs.
                self._jobs.popleft()
                job.failed(key, job.end - job.segment)
                continue
            if sent:
                job.segment += sent
                if job.segment == job.end:
                    self._jobs.popleft()
                job.sent(key, sent)
            if sent < count:
                self._wait(True)
                return
        self._wait(False)

    def _wait(self, wanted: bool) -> None:
        if wanted != self._waiting and self._open:
            self._waiting = wanted
            if wanted:
                self._loop.add_writer(self._fd, self._run)
            else:
                self._loop.remove_writer(self._fd)

    def _send(self, job: _Job, count: int) -> int:
        prepared, first = job.prepared, job.segment
        framing, segment_bytes = prepared.framing, prepared.segment_bytes
        framing.icrcs(first, count)
        steps = (job.prefix_step, DATA_HEADER_BYTES, segment_bytes, ICRC_BYTES)
        bases = (
            job.prefix_address + first * steps[0],
            prepared.header_address + first * steps[1],
            prepared.payload_address + first * steps[2],
            prepared.icrc_address + first * steps[3],
        )
        addresses = np.array(bases, np.uint64) + self._index[:count] * np.array(steps, np.uint64)
        sizes = np.array((job.prefixes.shape[1], DATA_HEADER_BYTES, segment_bytes, ICRC_BYTES), np.uint64)
        padded = b""
        if first + count == framing.segments:
            last = framing.payload(framing.segments - 1)
            if isinstance(last, bytes):
                padded = last
                addresses[count - 1, 2] = np.frombuffer(padded, np.uint8).ctypes.data
        return self._sender.send(addresses, sizes, job.destination)


class BatchPoller:
    """Calls `take` when a socket has something; under load on a timer instead of at each datagram.

    A batch costs the same whether it carries one datagram or sixty, so it pays to let them come together. To
    learn at once what has come so far, call `look`.
    """

    POLL_S_MIN = 0.001
    """asyncio rounds up to the next millisecond anyway."""
    BUSY_PACKETS = 3
    """From this many datagrams in one look on, looking on a timer pays, unless the look before is long ago: what came
    together, and alone, was there at once."""
    WORTHWHILE_PACKETS = 48
    """Looks become rarer while they find fewer than this."""
    ROUNDS_MAX = 8
    """Batches in a row before other work gets its turn."""

    def __init__(
        self,
        receiver: DatagramReceiver,
        fd: int,
        loop: asyncio.AbstractEventLoop,
        take: Callable[[int], None],
        poll_s_max: Callable[[], float],
    ) -> None:
        """`poll_s_max()`: longest time until the next look; it adds to how late a busy socket's datagrams are seen."""
        self._receiver = receiver
        self._fd = fd
        self._loop = loop
        self._take_batch = take
        self._polling: asyncio.TimerHandle | None = None
        self._poll_s = self.POLL_S_MIN
        self._poll_s_max = poll_s_max
        self._looked = 0
        """Datagrams taken by `look` since the last look on the timer."""
        self._readable_s = -math.inf
        """When it last had something outside of the timer."""
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

    def drain_receive(self) -> None:
        """Take now what the next look on the timer would take."""
        if self._open and self._polling is not None:
            self._looked += self._take()

    def _readable(self) -> None:
        now_s = self._loop.time()
        again, self._readable_s = now_s - self._readable_s < self.POLL_S_MIN, now_s
        if self._take() >= self.BUSY_PACKETS and again and self._open:
            self._loop.remove_reader(self._fd)
            self._poll_later()

    def _poll(self) -> None:
        taken, self._looked = self._looked + self._take(), 0
        if not self._open:
            return
        if taken:
            self._poll_s *= min(2.0, self.WORTHWHILE_PACKETS / taken)
            self._poll_later()
        else:
            self._polling = None
            self._loop.add_reader(self._fd, self._readable)

    def _poll_later(self) -> None:
        self._poll_s = max(self.POLL_S_MIN, min(self._poll_s, self._poll_s_max()))
        self._polling = self._loop.call_later(self._poll_s, self._poll)

    def _take(self) -> int:
        total = 0
        for _ in range(self.ROUNDS_MAX):
            count = self._receiver.receive()
            if count:
                self._take_batch(count)
            total += count
            if count < self._receiver.batch_count or not self._open:
                break
        return total


def control_poll_s_max() -> float:
    """Somebody waits for each control datagram, so none is looked at late."""
    return limits.CONTROL_POLL_S_MAX


class ControlIntake:
    """Takes control datagrams from one socket, decodes them, and gives those that came together to the sink at once."""

    def __init__(
        self,
        sock: socket.socket,
        loop: asyncio.AbstractEventLoop,
        sink: TransportSink,
        counters: TransportCounters,
        own_address: Address,
    ) -> None:
        self._sink = sink
        self._counters = counters
        self._own = own_address
        self._receiver = DatagramReceiver(sock, limits.CONTROL_BATCH_DATAGRAMS, row_bytes(KV_CONTROL_BYTES))
        self._poller = BatchPoller(self._receiver, sock.fileno(), loop, self._pass_on, control_poll_s_max)

    def close(self) -> None:
        """No more control."""
        self._poller.close()

    def _pass_on(self, count: int) -> None:
        receiver, counters = self._receiver, self._counters
        arrivals: list[ControlArrival] = []
        sources = receiver.source_ips(count).tolist()
        for index, length in enumerate(receiver.lengths(count).tolist()):
            source = Address(sources[index])
            if source == self._own:
                counters.drop("own_control")
                continue
            try:
                message = decode_control(receiver.rows[index, :length].tobytes())
            except WireError as error:
                counters.drop(f"control_{error.reason.name.lower()}")
                continue
            arrivals.append(ControlArrival(message, source))
        counters.control_received += len(arrivals)
        if arrivals:
            self._sink.controls_received(arrivals)


class CastIntake:
    """Takes cast datagrams from one socket and gives the good ones to the sink."""

    def __init__(
        self,
        sock: socket.socket,
        loop: asyncio.AbstractEventLoop,
        sink: TransportSink,
        counters: TransportCounters,
        fabric: Fabric,
        own_address: Address,
    ) -> None:
        self._sink = sink
        self._counters = counters
        self._fabric = fabric
        self._own = own_address
        self._receiver = DatagramReceiver(sock, limits.CAST_BATCH_PACKETS, row_bytes(fabric.datagram_bytes))
        self._overflows = 0
        self._poller = BatchPoller(self._receiver, sock.fileno(), loop, self._pass_on, sink.cast_patience_s)

    def close(self) -> None:
        """No more casts."""
        self._poller.close()

    def drain_receive(self) -> None:
        """Take what has come."""
        self._poller.drain_receive()

    def expect(self, chunk: ChunkPlace, missing: npt.NDArray[np.bool_]) -> None:
        """All casts are handed to the sink, which knows what it wants."""

    def forget(self, key: ChunkKey) -> None:
        """As `expect`."""

    def settle(self) -> None:
        """Only the sink writes segments."""

    def _pass_on(self, count: int) -> None:
        receiver, counters = self._receiver, self._counters
        rows = receiver.rows[:count]
        lengths = receiver.lengths(count)
        sources = receiver.source_ips(count)
        from_switch = (receiver.tos(count) >> 2) == self._fabric.from_switch_dscp
        ports = receiver.source_ports(count)
        counters.cast_batches_received += 1
        if receiver.overflow_count != self._overflows:
            counters.cast_receive_overflows += (receiver.overflow_count - self._overflows) & 0xFFFF_FFFF
            self._overflows = receiver.overflow_count
        # What this node filled into the switch comes back with its own address; its own casts do not.
        own = (sources == self._own) & ~from_switch
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
    """Decode and verify a batch of datagrams (BTH first, one per row), count, and give the good ones to the sink."""
    batch = decode_batch(rows, lengths, sources, ports, fabric, from_switch)
    deliver(batch, rows[:, DATA_HEADER_BYTES : DATA_HEADER_BYTES + fabric.segment_bytes], sink, counters)


def deliver(batch: DecodedBatch, payload: U8, sink: TransportSink, counters: TransportCounters) -> None:
    """Count a decoded batch and give its segments to the sink; `payload`: (rows of the batch, segment_bytes)."""
    for reason, dropped in batch.dropped.items():
        counters.drop(f"cast_{reason.name.lower()}", dropped)
    for group in batch.groups:
        counters.cast_packets_received += len(group.rows)
        counters.cast_packets_from_switch += group.from_switch
        whole = len(group.rows) == len(payload)
        sink.casts_received(group, payload if whole else payload[group.rows])


def row_bytes(datagram_bytes: int) -> int:
    """Room for a datagram and one byte more, so that a longer one shows; rows start on cache lines."""
    return -(-(datagram_bytes + 1) // 64) * 64
