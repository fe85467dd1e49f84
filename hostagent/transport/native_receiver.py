"""Receiving: fetches segments from the data path, many at once, and gives them to the sink.

The data path takes them from a socket, or from the queue pair of an RDMA NIC (`hostagent.transport.verbs`).
"""

from __future__ import annotations

import ctypes
import enum
import socket
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from hostagent.native.library import NativeThread, counters, structure
from hostagent.transport.base import ChunkPlace
from hostagent.transport.host import Host
from kvchunk.ids import ChunkKey
from kvproto.errors import WireReason
from kvproto.events import SegmentsReceived
from kvproto.fanout import Fanout
from kvproto.ids import Address
from kvproto.wire.data import Fabric, segments_of
from kvproto.wire.icrc import identification_basis, masked_headers

_COUNTS: Final = counters("dp_count", "DP_")
_DROPS = {
    "other_size": "cast_other_size",
    "own": "own_cast",
    "unasked": "cast_unasked",
    "unicast": "cast_unicast",
    **{reason.name.lower(): f"cast_{reason.name.lower()}" for reason in WireReason},
}
"""Counts reported as reasons for dropping."""
_TOTALS = {
    "received": "cast_packets_received",
    "from_switch": "cast_packets_from_switch",
    "looks": "cast_batches_received",
    "overflows": "cast_receive_overflows",
    "duplicates": "cast_packets_duplicate",
}
"""Counts that are fields of TransportCounters."""

assert set(_COUNTS) == {*_DROPS, *_TOTALS}
_REPORT: Final = struct.Struct("=16sQIIIIII")
"""struct dp_report: key, ticket, source, segments in the chunk, first, count, from switch, reserved"""
assert _REPORT.size == ctypes.sizeof(structure("report"))


class Broken(enum.IntEnum):
    """enum dp_broken"""

    NOT = 0
    QUEUE_PAIR = 1
    """Another one can take its place."""
    COMPLETIONS = 2
    """The queue, its channel, or the whole device."""


@dataclass(frozen=True, slots=True)
class _Expected:
    """A chunk whose casts go straight to its place."""

    ticket: int
    chunk: ChunkPlace
    missing: npt.NDArray[np.bool_]


class NativeIntake:
    """Takes cast datagrams into the pool, and tells the sink which segments came."""

    def __init__(
        self,
        host: Host,
        source: socket.socket | ctypes.Structure,
        fabric: Fabric,
        *,
        broke: Callable[[Broken], None] | None = None,
        threaded: bool = True,
    ) -> None:
        """`source`: a socket with IP_RECVTOS and SO_RXQ_OVFL set, or a `struct dp_receive_queue`; it outlives this.
        `broke` is told when nothing comes from a queue pair any more, until `renew`. Without a thread only
        `drain_receive` receives.

        Raises MemoryError, or OSError when the system has no more threads or descriptors.
        """
        library, loop = host.native, host.loop
        self._library, self._loop, self._sink, self._counters = library, loop, host.sink, host.counters
        self._memory, self._fabric, self._rail = host.memory, fabric, host.rail
        self._pool_address = host.memory.bytes_.ctypes.data
        self._expected: dict[ChunkKey, _Expected] = {}
        self._tickets: dict[int, _Expected] = {}
        self._counted = (ctypes.c_uint64 * len(_COUNTS))()
        self._told = [0] * len(_COUNTS)
        self._drained = structure("drained")()
        self._broke = broke
        self._patience = (0.0, 0)
        self._will_set_patience = False
        queue = source if isinstance(source, ctypes.Structure) else None
        fd = source.fileno() if isinstance(source, socket.socket) else -1
        self._thread = NativeThread(
            library,
            "receiver",
            loop,
            lambda wake: (ctypes.byref(_config(fd, wake, fabric, host.own)), queue),
            self._drain,
            starts=threaded,
        )
        self._receiver = self._thread.pointer
        self._open = True

    def close(self) -> None:
        """No more casts, and nothing is written any more. Idempotent."""
        self._open = False
        self._thread.close()

    def expect(self, chunk: ChunkPlace, missing: npt.NDArray[np.bool_]) -> None:
        """See `CastPart.expect`. Raises MemoryError."""
        self._set_patience_soon()
        known = self._expected.get(chunk.key)
        if known is not None and known.chunk == chunk and known.missing is missing:
            return
        if len(missing) != segments_of(chunk.size_bytes, self._fabric) or not missing.flags.c_contiguous:
            raise ValueError(f"{len(missing)} segments are not those of {chunk.size_bytes} bytes")
        # Checks that it lies in the pool.
        self._memory.view(chunk.offset, chunk.size_bytes)
        self.forget(chunk.key)
        place = self._pool_address + chunk.offset
        ticket = self._library.dp_receiver_expect(
            self._receiver, chunk.key, place, chunk.size_bytes, missing.ctypes.data
        )
        if not ticket:
            raise MemoryError("no memory for a chunk's registration")
        self._expected[chunk.key] = self._tickets[ticket] = _Expected(ticket, chunk, missing)

    def forget(self, key: ChunkKey) -> None:
        """See `CastPart.forget`."""
        known = self._expected.pop(key, None)
        if known is not None:
            self._library.dp_receiver_forget(self._receiver, known.ticket)
            del self._tickets[known.ticket]

    def settle(self) -> None:
        """See `CastPart.settle`."""
        self._library.dp_receiver_settle(self._receiver)

    def drain_receive(self) -> None:
        """Receive and report everything that is there."""
        if self._open:
            self._library.dp_receiver_drain_intake(self._receiver)
            self._drain()
            self._set_patience_soon()

    def renew(self, queue_pair: int, number: int) -> None:
        """Go on with another queue pair on the same completion queue, whose receives are all posted."""
        self._library.dp_receiver_renew(self._receiver, queue_pair, number)

    # ------------------------------------------------------------------ inside

    def _drain(self) -> None:
        drained = self._drained
        self._library.dp_receiver_drain(self._receiver, ctypes.byref(drained))
        self._count()
        if drained.reports_count:
            reports = ctypes.string_at(drained.reports, drained.reports_count * _REPORT.size)
            segments = np.frombuffer(ctypes.string_at(drained.segments, 4 * drained.segments_count), np.uint32)
            self._tell(reports, segments)
        self._set_patience()
        if drained.broken and self._open and self._broke is not None:
            self._broke(Broken(drained.broken))

    def _tell(self, reports: bytes, segments: npt.NDArray[np.uint32]) -> None:
        placed: list[SegmentsReceived] = []
        unexpected: list[SegmentsReceived] = []
        for key, ticket, source, _, first, count, from_switch, _ in _REPORT.iter_unpack(reports):
            arrived = SegmentsReceived(
                ChunkKey(key), segments[first : first + count], Address(source), from_switch, self._rail
            )
            if not ticket:
                unexpected.append(arrived)
            elif ticket in self._tickets:
                placed.append(arrived)
            # Else it has been forgotten since, and nobody needs its segments.
        if placed:
            self._sink.casts_placed(placed)
        if unexpected and self._open:
            self._sink.casts_unexpected(unexpected)

    def _set_patience_soon(self) -> None:
        """What is expected, or a timer after it has looked, may make who was patient ask for segments."""
        if not self._will_set_patience:
            self._will_set_patience = True
            self._loop.call_soon(self._set_patience)

    def _set_patience(self) -> None:
        self._will_set_patience = False
        if not self._open:
            return
        patience = self._sink.cast_patience_s(), self._sink.cast_patience_segments()
        if patience != self._patience:
            self._patience = patience
            seconds, count = patience
            self._library.dp_receiver_set_patience(self._receiver, int(seconds * 1e9), count)

    def _count(self) -> None:
        self._library.dp_receiver_read_counts(self._receiver, self._counted)
        counters = self._counters
        before, self._told = self._told, self._counted[:]
        for name, now, told in zip(_COUNTS, self._told, before, strict=True):
            more = now - told
            if not more:
                continue
            total = _TOTALS.get(name)
            if total is None:
                counters.drop(_DROPS[name], more)
            else:
                setattr(counters, total, getattr(counters, total) + more)


def _config(fd: int, wake: int, fabric: Fabric, own: Address) -> ctypes.Structure:
    config = structure("receiver_config")(
        socket=fd,
        wake=wake,
        own=own,
        qkey=fabric.qkey,
        source_qpn=fabric.source_qpn,
        segment_bytes=fabric.segment_bytes,
        from_switch_dscp=fabric.from_switch_dscp,
        by_groups=fabric.fanout is Fanout.MULTICAST,
    )
    for index, (lead, pattern) in enumerate(identification_basis(fabric.datagram_bytes)):
        config.identification[index][0], config.identification[index][1] = lead, pattern
    masked = masked_headers(Address(0), fabric.group, 0, fabric.datagram_bytes)
    config.masked[:] = masked
    return config
