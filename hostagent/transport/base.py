"""The contract of a transport: how the agent sends and receives, whatever the network card.

Memory. A transport is given the pool once, before it starts, and reads from and writes into it by offset, so that an
    implementation may register it once. Between `read()` and its outcome (or `cancel()` returning) the target range
    belongs to the transport; afterwards it never touches it again. Payload rows handed to `casts_received` belong to
    the transport and are valid only inside the call.
Completion. How a read ends, its `ReadRequest` says. Every segment given to `cast()` is reported once, by
    `segments_sent` or `segments_failed`, and every one given to `fill()` by `fill_sent`, never inside the call itself;
    the chunk must stay pinned until then. Reliable reads served to peers pin for themselves, with `open_extent` and
    `close_extent`.
Failure. Losing datagrams is normal. A read that makes no progress for a while, whose peer goes away or answers nonsense
    ends in `ReadOutcome.FAILED`; the peer's "not here" is `ABSENT`. Malformed input is dropped and counted by reason in
    `counters`. A transport raises only for misuse and from `start()` (one clear line in a TransportError).
Threading. All methods are called, and all callbacks made, on the one event loop that `start()` ran on.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from kvproto.ids import Address, ChunkKey
from kvproto.wire.control import Control
from kvproto.wire.data import Fabric, SegmentGroup


class TransportError(Exception):
    """The transport cannot start; the message is one line and names the remedy."""


class ReadOutcome(enum.Enum):
    DONE = "done"
    ABSENT = "absent"
    """The peer has not got the chunk."""
    FAILED = "failed"
    """The peer is unreachable, silent or broken."""


@dataclass(frozen=True, slots=True)
class ChunkPlace:
    """Where a chunk lies in the pool."""

    key: ChunkKey
    offset: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class ReadRequest:
    """A reliable read of one range of a chunk. Raises ValueError for a range that no chunk has."""

    endpoint: str
    """Of the node that has the chunk: its `TransportFacts.read_endpoint`."""
    key: ChunkKey
    offset: int
    """Of the range's first byte in the chunk."""
    size_bytes: int
    """At least 1."""
    pool_offset: int
    """Where that byte goes in the pool; the others follow it."""
    done: Callable[[ReadOutcome], None]
    """Called exactly once, unless the read is cancelled first, and never inside `Transport.read` itself."""
    progressed: Callable[[int], None] | None = None
    """Hears now and then, until `done` or `cancel`, how many of the first bytes are there."""

    def __post_init__(self) -> None:
        if self.offset < 0 or self.size_bytes < 1:
            raise ValueError(f"a read of {self.size_bytes} bytes from byte {self.offset} of a chunk")


@dataclass(frozen=True, slots=True)
class Extent:
    """Bytes of the pool that may be sent; pinned until given back."""

    offset: int
    size_bytes: int
    token: object


@dataclass(frozen=True, slots=True)
class TransportFacts:
    """What the agent tells the controller and its protocol machines; known once started."""

    address: Address
    """On the data network."""
    mac: bytes
    read_endpoint: str
    """host:port of reliable reads."""
    receive_buffer_bytes: int
    """Bytes of casts that can wait for the agent, as really granted."""
    rdma_mtu_bytes: int = 0
    """Payload of the NIC's largest RDMA packet; 0: there is no RDMA here, peers read over TCP."""


@dataclass(slots=True)
class TransportCounters:
    """Running totals, read by metrics."""

    cast_packets_received: int = 0
    cast_packets_from_switch: int = 0
    cast_packets_sent: int = 0
    cast_receive_overflows: int = 0
    cast_batches_received: int = 0
    control_received: int = 0
    control_sent: int = 0
    fill_packets_sent: int = 0
    read_bytes_received: int = 0
    read_bytes_rdma: int = 0
    """The part of those received that an RDMA NIC read."""
    read_retransmissions: int = 0
    """How often it asked again for something lost, as far as its driver tells."""
    read_bytes_sent: int = 0
    reads_failed: int = 0
    dropped: dict[str, int] = field(default_factory=dict)
    """Datagrams and requests refused, by reason."""

    def drop(self, reason: str, count: int = 1) -> None:
        """Count something malformed or unwanted."""
        if count:
            self.dropped[reason] = self.dropped.get(reason, 0) + count


class ControlArrival(NamedTuple):
    """One decoded control datagram."""

    message: Control
    source: Address


class TransportSink(Protocol):
    """What the agent offers a transport."""

    def controls_received(self, arrivals: Sequence[ControlArrival]) -> None:
        """Control datagrams that came together, in order."""
        ...

    def casts_received(self, group: SegmentGroup, payload: npt.NDArray[np.uint8]) -> None:
        """Verified segments of one chunk. `payload` has shape (len(group.rows), segment_bytes)."""
        ...

    def cast_patience_s(self) -> float:
        """How much later than it comes a cast segment may be told, so that more of them are told together."""
        ...

    def segments_sent(self, key: ChunkKey, count: int) -> None: ...
    def segments_failed(self, key: ChunkKey, count: int) -> None: ...
    def fill_sent(self, key: ChunkKey, count: int) -> None:
        """Segments of a fill left, or never will: FILL_ACKs tell the difference."""
        ...

    def open_extent(self, key: ChunkKey) -> Extent | None:
        """Pin a chunk to send from it; None when it is not here (any more)."""
        ...

    def prepare(self, key: ChunkKey, then: Callable[[], None]) -> bool:
        """A chunk that `open_extent` did not find: True when it is being brought from this node's disk. `then` is
        called once, later, and `open_extent` tells the truth from then on. A transport that does not ask says ABSENT.
        """
        ...

    def close_extent(self, extent: Extent) -> None: ...


class ReadHandle(Protocol):
    def cancel(self) -> None:
        """Give the read up; no outcome will be told and the target is not touched again. Idempotent."""
        ...


class Transport(Protocol):
    """See the module's docstring."""

    counters: TransportCounters

    async def start(self, sink: TransportSink, fabric: Fabric) -> TransportFacts:
        """Bind and listen. Raises TransportError."""
        ...

    async def close(self) -> None:
        """End everything; reads under way get FAILED at the latest when the loop turns again."""
        ...

    def use_fabric(self, fabric: Fabric) -> None:
        """Group, Q_Key, segment size and code point as the controller says; may be called again when they change.

        Raises TransportError where this node cannot; it then receives no casts until a call succeeds.
        """
        ...

    def send_control(self, message: Control, destination: Address) -> None:
        """One control datagram to UDP port 4793 of an address. Best effort."""
        ...

    def cast(self, chunk: ChunkPlace, first: int, count: int) -> None:
        """Send segments [first, first + count) of a pinned chunk to the fabric's group."""
        ...

    def look(self) -> None:
        """Tell now of all cast segments that have come: what is decided next depends on them."""
        ...

    def fill(self, chunk: ChunkPlace, first: int, count: int, pool: Address, /) -> None:
        """Send segments [first, first + count) of a pinned chunk as FILL to the switch's pool address."""
        ...

    def read(self, request: ReadRequest) -> ReadHandle:
        """Bring a range of a chunk from a peer, reliably."""
        ...
