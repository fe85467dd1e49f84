"""What receiving a cast by RDMA costs in the data path in C: everything but the NIC and its library."""

from __future__ import annotations

import asyncio
import ctypes
from collections.abc import Callable, Sequence
from typing import ClassVar

import numpy as np

from bmv2_testbed.bench.rdma.idle_port import idle_nic
from hostagent import limits
from hostagent.config import DataConfig
from hostagent.native.library import datapath
from hostagent.native.nic_queues import CompletionQueueParts, ReceiveQueue
from hostagent.pool.memory import PoolMemory
from hostagent.transport.base import ChunkPlace, TransportCounters
from hostagent.transport.host import Host
from hostagent.transport.native_receiver import NativeIntake
from hostagent.transport.verbs import abi
from kvchunk.ids import ChunkKey
from kvproto.events import SegmentsReceived
from kvproto.ids import parse_address
from kvproto.wire.data import Fabric

_NUMBER = 7
_OWN = parse_address("10.75.0.2")


class _IdleNic(ctypes.Structure):
    """struct idle_nic"""

    _fields_: ClassVar = [
        (name, ctypes.c_uint32) for name in ("rows_count", "next_row", "posted", "left", "bytes", "number")
    ]


class _Sink:
    """Hears of segments as an agent does, and does nothing with it."""

    def casts_placed(self, _arrivals: Sequence[SegmentsReceived]) -> None: ...
    def casts_unexpected(self, _arrivals: Sequence[SegmentsReceived]) -> None:
        raise AssertionError("all are expected")

    def cast_patience_s(self) -> float:
        return limits.CAST_POLL_S_MAX

    def cast_patience_segments(self) -> int:
        return limits.CAST_WAKE_SEGMENTS


class NativeReceiving:
    """A ring of messages of one chunk, each a row, that is received again and again."""

    def __init__(self, ring: np.ndarray[tuple[int, int], np.dtype[np.uint8]], key: ChunkKey, fabric: Fabric) -> None:
        """`ring`: rows as a NIC fills them, with all segments of a chunk in order.

        Raises NotShippedError; BuildError where the NIC's stand-in cannot be compiled.
        """
        nic = idle_nic()
        rows_count = len(ring)
        self._nic = _IdleNic(rows_count, 0, rows_count, 0, abi.GRH_BYTES + fabric.message_bytes, _NUMBER)
        self._requests = np.zeros(rows_count, abi.RECV_WR)
        self._requests["wr_id"] = np.arange(rows_count)
        self._ring = ring
        address = ctypes.addressof(self._nic)
        queue = ReceiveQueue(
            completions=CompletionQueueParts(
                queue=address,
                poll=ctypes.cast(nic.idle_poll, ctypes.c_void_p),
                request_notify=ctypes.cast(nic.idle_request_notify, ctypes.c_void_p),
                fd=-1,
            ),
            queue_pair=address,
            post=ctypes.cast(nic.idle_post_receive, ctypes.c_void_p),
            requests=self._requests.ctypes.data,
            rows=ring.ctypes.data,
            rows_count=rows_count,
            row_bytes=ring.strides[0],
            number=_NUMBER,
        )
        self._memory = PoolMemory(rows_count * fabric.segment_bytes, prefault=True)
        self._place = ChunkPlace(key, 0, rows_count * fabric.segment_bytes)
        self._counters = TransportCounters()
        self._loop = asyncio.new_event_loop()
        host = Host(
            config=DataConfig(),
            memory=self._memory,
            loop=self._loop,
            sink=_Sink(),  # type: ignore[arg-type]
            counters=self._counters,
            address="",
            own=_OWN,
            native=datapath(),
        )
        self._intake = NativeIntake(host, queue, fabric, threaded=False)

    def ring_once(self, batch_count: int) -> int:
        """Receive the whole ring, `batch_count` messages for each time that Python hears of it; returns how many."""
        before, rows_count = self._counters.cast_packets_received, len(self._ring)
        self._intake.expect(self._place, np.ones(rows_count, np.bool_))
        for _ in range(rows_count // batch_count):
            self._nic.left = batch_count
            self._intake.drain_receive()
        self._intake.forget(self._place.key)
        received = self._counters.cast_packets_received - before
        assert received == rows_count
        assert not self._counters.dropped
        return received

    def close(self) -> None:
        """Give everything back."""
        self._intake.close()
        self._loop.close()
        self._memory.close()


def receive_native_ns(
    ring: np.ndarray[tuple[int, int], np.dtype[np.uint8]],
    key: ChunkKey,
    fabric: Fabric,
    seconds_each: Callable[[Callable[[], int]], float],
) -> float:
    """CPU nanoseconds for each message, copy and the share of telling Python included."""
    receiving = NativeReceiving(ring, key, fabric)
    try:
        return seconds_each(lambda: receiving.ring_once(limits.CAST_WAKE_SEGMENTS)) * 1e9
    finally:
        receiving.close()
