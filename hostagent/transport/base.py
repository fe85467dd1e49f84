"""The contract of a transport: how the agent sends and receives, whatever the network card.

Memory. A transport is given the pool once, before it starts, and reads from and writes into it by offset, so that an
    implementation may register it once. Between `read()` and its outcome (or `cancel()` returning) the target range
    belongs to the transport; afterwards it never touches it again. Rows of a `CastBatch` belong to the transport and
    are valid only inside `casts_received`.
Completion. Every `read()` ends in exactly one call of `done(outcome)` unless it was cancelled, and never inside
    `read()` itself. `cast()` copies or references nothing that the caller may not change once the chunk is unpinned:
    the transport pins (`ReadGate`) what it sends for as long as the network may still fetch it.
Failure. Losing datagrams is normal. A read that makes no progress for a while, whose peer goes away or answers nonsense
    ends in `ReadOutcome.FAILED`; the peer's "not here" is `ABSENT`. Malformed input is dropped and counted by
    reason in `counters`. A transport raises only for misuse and from `start()` (one clear line in a TransportError).
Threading. All methods are called, and all callbacks made, on the one event loop that `start()` ran on.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import numpy.typing as npt
from kvproto.ids import ChunkKey


class TransportError(Exception):
    """The transport cannot start; the message is one line and names the remedy."""


class ReadOutcome(enum.Enum):
    DONE = "done"
    ABSENT = "absent"
    """The peer has not got the chunk."""
    FAILED = "failed"
    """The peer is unreachable, silent or broken."""


@dataclass(frozen=True, slots=True)
class Extent:
    """Bytes of the pool that may be sent; `token` gives the pin back."""

    offset: int
    size_bytes: int
    token: object


@dataclass(frozen=True, slots=True)
class CastBatch:
    """Verified cast segments of one chunk, in order of arrival. Arrays have one entry a datagram."""

    key: ChunkKey
    segments_count: int
    segment: npt.NDArray[np.int64]
    length_bytes: npt.NDArray[np.int64]
    payload: npt.NDArray[np.uint8]
    """Shape (count, segment_bytes)."""
    from_switch: npt.NDArray[np.bool_]
    source_ip: int


@dataclass(frozen=True, slots=True)
class ControlArrival:
    """One control datagram, not yet decoded."""

    source_ip: int
    content: bytes


@dataclass(frozen=True, slots=True)
class TransportFacts:
    """What the agent tells the controller and its protocol machines; known once started."""

    address: str
    """IPv4 address on the data network."""
    mac: bytes
    read_endpoint: str
    """host:port of reliable reads."""
    receive_buffer_bytes: int
    """Bytes of casts that can wait for the agent, as really granted."""


@dataclass(slots=True)
class TransportCounters:
    """Running totals, read by metrics."""

    cast_packets_received: int = 0
    cast_packets_from_switch: int = 0
    cast_packets_sent: int = 0
    cast_receive_overflows: int = 0
    control_received: int = 0
    control_sent: int = 0
    control_send_drops: int = 0
    read_bytes_received: int = 0
    read_bytes_sent: int = 0
    reads_failed: int = 0
    dropped: dict[str, int] = field(default_factory=dict)
    """Datagrams and requests refused, by reason."""

    def drop(self, reason: str, count: int = 1) -> None:
        """Count something malformed or unwanted."""
        if count:
            self.dropped[reason] = self.dropped.get(reason, 0) + count


class TransportSink(Protocol):
    """What the agent offers a transport."""

    def control_received(self, arrivals: Sequence[ControlArrival]) -> None: ...
    def casts_received(self, batch: CastBatch) -> None: ...
    def open_extent(self, key: ChunkKey) -> Extent | None:
        """Pin a chunk to send from it; None when it is not here (any more)."""
        ...

    def close_extent(self, extent: Extent) -> None: ...


class ReadHandle(Protocol):
    def cancel(self) -> None:
        """Give the read up; no outcome will be told and the target is not touched again. Idempotent."""
        ...


class Transport(Protocol):
    """See the module's docstring."""

    counters: TransportCounters

    async def start(self, sink: TransportSink) -> TransportFacts: ...
    async def close(self) -> None: ...
    def use_fabric(self, fabric: FabricFacts) -> None:
        """Group, Q_Key and segment size as the controller says; may be called again when they change."""
        ...

    def send_control(self, datagram: bytes, destination: str) -> None:
        """One datagram to UDP port 4793 of an address: control, or FILL with its packet."""
        ...

    def cast(self, key: ChunkKey, segments: Sequence[int]) -> bool:
        """Multicast segments of a chunk in the pool; False when the chunk is not here."""
        ...

    def cast_packet(self, key: ChunkKey, segment: int) -> bytes | None:
        """The data datagram of one segment from its BTH on, as FILL carries it; None when the chunk is not here."""
        ...

    def read(
        self,
        endpoint: str,
        key: ChunkKey,
        offset: int,
        size_bytes: int,
        pool_offset: int,
        done: Callable[[ReadOutcome], None],
    ) -> ReadHandle:
        """Bytes [offset, offset + size_bytes) of a chunk at `endpoint`, reliably, to `pool_offset` of the pool."""
        ...


@dataclass(frozen=True, slots=True)
class FabricFacts:
    """What all nodes of a fabric agree on."""

    group: str
    pool_address: str
    qkey: int
    segment_bytes: int
    from_switch_dscp: int
