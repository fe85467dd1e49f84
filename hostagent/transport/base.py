"""The contract of a transport: how the agent sends and receives, whatever the network card.

Memory. A transport is given the pool once, before it starts, and reads from and writes into it by offset, so that an
    implementation may register it once. Between `read()` and its outcome (or `cancel()` returning) the target range
    belongs to the transport; afterwards it never touches it again. Between `expect()` and `forget()` returning, the
    transport may write cast segments of that chunk to its place, those that `missing` says; afterwards it never touches
    it again.
Completion. A read reports its end to its `ReadRequest`. Every segment given to `cast()` is reported once, by
    `segments_sent` or `segments_failed`, and every one given to `fill()` by `fill_sent` (with `cast_too` as those of
    `cast()`), never inside the call itself; the chunk must stay pinned until then. Reliable reads served to peers pin
    for themselves, with `open_extent` and `close_extent`.
Failure. Losing datagrams is normal. A read that makes no progress for a while, whose peer goes away or answers nonsense
    ends in `ReadOutcome.FAILED`; the peer's "not here" is `ABSENT`. Malformed input is dropped and counted by reason in
    `counters`. A transport raises only for misuse and from `start()` (one clear line in a TransportError).
Threading. All methods are called, and all callbacks made, on the one event loop that `start()` ran on.
"""

from __future__ import annotations

import enum
import logging
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from kvchunk.ids import ChunkKey
from kvpolicy.tiers.holder_load import HolderLoad
from kvproto.events import SegmentsReceived
from kvproto.ids import Address
from kvproto.wire.control import Control
from kvproto.wire.data import Fabric
from kvproto.wire.relay_messages import Message

log = logging.getLogger(__name__)

PEERS_TOLD_MAX = 1000
"""Hosts of another release that the log names; more are counted only."""


class TransportError(Exception):
    """The transport cannot start; the message is one line and names the remedy."""


class ReadOutcome(enum.Enum):
    """How a reliable read ended."""

    DONE = "done"
    ABSENT = "absent"
    """The peer does not have the chunk."""
    FAILED = "failed"
    """The peer is unreachable, silent or broken."""


@dataclass(frozen=True, slots=True)
class ChunkPlace:
    """Where a chunk lies in the pool."""

    key: ChunkKey
    offset: int
    size_bytes: int


@dataclass(slots=True, eq=False)
class Proof:
    """What hashing a read on its way gave."""

    leaves: bytes = b""
    """Of its pieces (`hostagent.tree`), before `done` says that all of it came; nothing: nobody hashed it."""


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
    """Called exactly once, unless the read is cancelled first, and never inside `AskingPart.read` itself."""
    progressed: Callable[[int], None] | None = None
    """Called now and then, until `done` or `cancel`, with how many leading bytes are there."""
    holder_told: Callable[[HolderLoad], None] | None = None
    """Called when the peer's answer begins, until `done` or `cancel`: what it has queued for others."""
    wanted_bytes: int = 0
    """What this node still wants of the peer, this read included; the peer tells others. 0: no more than this."""
    leaves: bytearray | None = None
    """The leaves of the chunk's tree are wanted, and go here, all `size_bytes` of them; nothing goes into the pool."""
    over_tcp: bool = False
    """From the peer's agent itself, which says what is not there; an RDMA NIC would read whatever lies there."""
    proof: Proof | None = None
    """Where the leaves go that this side finds, if whoever carries the read can hash it on its way. Such a read
    begins with a piece, and ends with one or with the chunk."""

    def __post_init__(self) -> None:
        if self.offset < 0 or self.size_bytes < 1:
            raise ValueError(f"a read of {self.size_bytes} bytes from byte {self.offset} of a chunk")


@dataclass(frozen=True, slots=True)
class Extent:
    """Bytes of the pool that may be sent; pinned until given back."""

    offset: int
    size_bytes: int
    token: object
    """The owner's."""
    arriving: ChunkKey | None = None
    """The chunk, where it is still on its way here."""


@dataclass(frozen=True, slots=True)
class TransportFacts:
    """Facts for the controller and the agent's protocol machines; known once started."""

    address: Address
    """On the data network."""
    mac: bytes
    read_endpoint: str
    """host:port of reliable reads."""
    receive_buffer_bytes: int
    """Bytes of casts that can wait for the agent, as really granted."""
    rdma_mtu_bytes: int = 0
    """Payload of the NIC's largest RDMA packet; 0: there is no RDMA here, peers read over TCP."""
    rail_endpoints: tuple[str, ...] = ()
    """The same as `read_endpoint` on the second and further rails."""


@dataclass(slots=True)
class TransportCounters:
    """Running totals, read by metrics."""

    cast_packets_received: int = 0
    cast_packets_from_switch: int = 0
    cast_packets_sent: int = 0
    cast_packets_duplicate: int = 0
    """Good segments of wanted chunks that were here already."""
    cast_receive_overflows: int = 0
    cast_batches_received: int = 0
    control_received: int = 0
    control_sent: int = 0
    joins_sent: int = 0
    fill_packets_sent: int = 0
    fill_packets_cast: int = 0
    """FILLs that the switch casts, too: one datagram for readers and switch, in neither of the other two."""
    fill_packets_failed: int = 0
    """That the network did not take: no route, interface down, a firewall here."""
    read_bytes_received: int = 0
    read_bytes_rdma: int = 0
    """The part of those received that an RDMA NIC read."""
    read_retransmissions: int = 0
    """How often the NIC asked again for something lost, as far as its driver counts that."""
    read_bytes_sent: int = 0
    reads_failed: int = 0
    reads_queued_bytes: int = 0
    """That peers have asked for and that have not left, at the moment."""
    readers_served: int = 0
    """Peers that wait for these."""
    rails_left: int = 0
    """How often a rail to a peer was left because nothing, or too little, came by it."""
    dropped: dict[str, int] = field(default_factory=dict)
    """Datagrams and requests refused, by reason."""
    _told: set[str] = field(default_factory=set)

    def drop(self, reason: str, count: int = 1) -> None:
        """Count something malformed or unwanted."""
        if count:
            self.dropped[reason] = self.dropped.get(reason, 0) + count

    def refuse(self, reason: str, peer: str, line: str) -> None:
        """Count what cannot be with a peer, and say so once for each peer's host."""
        self.drop(reason)
        if peer not in self._told and len(self._told) < PEERS_TOLD_MAX:
            self._told.add(peer)
            log.warning("%s: %s", peer, line)


class ControlArrival(NamedTuple):
    """One decoded control datagram."""

    message: Control
    source: Address
    rail: int = 0
    """By which it came."""


class Way(NamedTuple):
    """To a peer, on one rail."""

    endpoint: str
    own_address: str


class ChildLink(Protocol):
    """A relay link that a peer made."""

    def tell(self, message: Message, /) -> None:
        """Send it."""

    def close(self) -> None:
        """End it. Idempotent."""


class RelaySink(Protocol):
    """What an agent that relays offers a transport."""

    def open_part(self, key: ChunkKey, offset: int, size_bytes: int) -> Extent | None:
        """As `open_extent`, of a chunk that is still arriving: only if all of this range is proven."""

    def link_made(self, link: ChildLink) -> int:
        """A peer made a relay link; its number."""

    def link_told(self, link: int, messages: tuple[Message, ...]) -> None:
        """It brought messages."""

    def link_lost(self, link: int) -> None:
        """It has ended."""


class TransportSink(Protocol):
    """What the agent offers a transport."""

    def controls_received(self, arrivals: Sequence[ControlArrival]) -> None:
        """Control datagrams that came together, in order."""

    def casts_placed(self, arrivals: Sequence[SegmentsReceived]) -> None:
        """Verified segments of expected chunks lie at their places; duplicates are reported, too."""

    def casts_unexpected(self, arrivals: Sequence[SegmentsReceived]) -> None:
        """Verified segments of chunks that are not expected came, and were thrown away."""

    def cast_patience_s(self) -> float:
        """How long after its arrival a segment may be reported, so that more of them are reported together."""

    def cast_patience_segments(self) -> int:
        """How many segments may come before they are reported."""

    def segments_sent(self, key: ChunkKey, count: int, rail: int = 0) -> None:
        """`count` segments of a cast left by a rail."""

    def segments_failed(self, key: ChunkKey, count: int, rail: int = 0) -> None:
        """`count` segments of a cast could not leave."""

    def fill_sent(self, key: ChunkKey, count: int) -> None:
        """Segments of a fill left, or never will: FILL_ACKs tell the difference."""

    def casts_queued_bytes(self) -> int:
        """Of casts that this node was asked for and that have not left."""

    def open_extent(self, key: ChunkKey) -> Extent | None:
        """Pin a chunk to send from it; None when it is not here (any more)."""

    def relays(self) -> RelaySink | None:
        """What peers get of chunks that are still arriving; None: nothing."""

    def peers_read(self, keys: Sequence[ChunkKey]) -> None:
        """Peers read these chunks, from the first byte on: a reader reads a chunk in stripes, and counts once."""

    def prepare(self, key: ChunkKey, then: Callable[[], None]) -> bool:
        """A chunk that `open_extent` did not find: True when it is being brought from this node's disk. `then` is
        called once, later; from then on `open_extent` answers correctly. A transport that does not ask says ABSENT.
        """

    def namespace_of(self, key: ChunkKey) -> str | None:
        """The namespace of a chunk that is here or on this node's disk."""

    def leaves(self, key: ChunkKey) -> bytes | None:
        """The leaves of a chunk's tree (`hostagent.tree`); None when it is not in the pool, or has no tree."""

    def close_extent(self, extent: Extent) -> None:
        """The peer has read what `open_extent` gave."""

    def way_left(self, endpoint: str, way: Way) -> None:
        """Nothing comes by one of several ways to the peer that is read here."""

    def rails_of(self, endpoint: str) -> Sequence[str]:
        """Where else a peer is read that is read here: on its second and further rails, in their order."""


class ReadHandle(Protocol):
    """A reliable read under way."""

    def cancel(self) -> None:
        """Give the read up: no outcome is reported, and the target is not touched again. Idempotent."""


class CastPart(Protocol):
    """Segments to and from the group."""

    def use_fabric(self, fabric: Fabric, /) -> int:
        """Receive what comes to this fabric's group, and send to it; returns the bytes that can wait for us.

        Called once at the start and whenever the fabric changes. Raises TransportError.
        """

    def cast(self, chunk: ChunkPlace, first: int, count: int, blocks: Sequence[int] = (), /) -> None:
        """Send segments [first, first + count) of a pinned chunk to the groups of these blocks of members
        (`kvproto.blocks`), of multicast alone; without any, to the fabric's group."""

    def fill(self, chunk: ChunkPlace, first: int, count: int, pool: Address, /, *, cast_too: bool = False) -> None:
        """Send segments [first, first + count) of a pinned chunk as FILL to the switch's pool address.

        `cast_too`: the switch casts them as well; they are reported as those of `cast()`.
        """

    def expect(self, chunk: ChunkPlace, missing: npt.NDArray[np.bool_], /) -> None:
        """Casts of this chunk are wanted: segments s with missing[s] may be written to its place from now on.

        The caller still owns `missing`, and clears entries as segments come, whichever way they come. Idempotent. A
        change of the fabric's segment size forgets all.
        """

    def forget(self, key: ChunkKey, /) -> None:
        """Casts of this chunk are no longer wanted. Once it returns, none are written any more. Idempotent."""

    def settle(self) -> None:
        """Once it returns, no cast segment is being written that `missing` denied before the call."""

    def drain_receive(self) -> None:
        """Report now all cast segments that have come: the next decision depends on them."""

    def data_socket(self) -> socket.socket | None:
        """What casts leave through: UDP, on the data address and Fabric.data_port, nobody reads it. None: none such."""

    def close(self) -> None:
        """Give sockets, threads and timers back."""


class AskingPart(Protocol):
    """Reliable reads, asked for, and which of what arrives may be answered."""

    def show(self, chunk: ChunkPlace, first: int, count: int, /) -> None:
        """Pieces of a chunk that is arriving are proven: nobody writes to them any more, and peers may read them."""

    def hide(self, key: ChunkKey, /) -> None:
        """Once it returns, nothing of a chunk is read any more because it is arriving. A chunk that is READY goes on
        as such."""

    def read(self, request: ReadRequest, /) -> ReadHandle:
        """Bring a range of a chunk from a peer, reliably."""


class ReadPart(AskingPart, Protocol):
    """Reliable reads, asked and answered, on one network."""

    def listen(self) -> str:
        """Answer peers; returns the endpoint. Raises TransportError."""

    def close(self) -> None:
        """End all reads and connections; reads under way get FAILED, at the latest on the next turn of the loop."""
