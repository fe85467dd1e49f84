"""What a node's shell tells its state machines. Values only; `now_ns` travels next to them, never inside.

Times are nanoseconds of one monotonic clock of the shell. Bytes of segments never travel here: the shell places them
into memory that it allocated before `ChunkWanted`, and says which ones arrived.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from kvchunk.ids import ChunkKey
from kvproto.ids import Address, FillId, NodeId, ReadId
from kvproto.wire.control import Control


@dataclass(frozen=True, slots=True)
class HolderRef:
    """A node that holds a chunk, as the directory's local replica says."""

    node: NodeId
    address: Address
    """Its address on the network of the data: JOIN, GET and LEAVE go there, and its data datagrams come from there."""
    load: float = 0.0
    """How busy it is, as far as the directory knows (comparable between holders); the least loaded goes first."""
    castable: bool = True
    """Under the same switch as this node; otherwise it is read reliably only."""
    readable: bool = True
    """Answers reliable reads. The switch does not: where it alone has the chunk, asking again is all there is."""
    rail_addresses: tuple[Address | None, ...] = ()
    """The same as `address` on the second and further rails; None: no casts go there."""


# --- to the reader --------------------------------------------------------------------------------------------------


class ChunkWanted(NamedTuple):
    """A chunk is wanted from elsewhere; the shell has allocated its memory. ChunkHere or ChunkGone follows.

    A key that is wanted already is wanted once more with the same segments; holders named now may bring it back.
    """

    key: ChunkKey
    segments: int
    size_bytes: int
    """Bytes that count; the last segment may be short."""
    holders: tuple[HolderRef, ...]
    order: int
    """Place among all chunks that are wanted: the least is pulled first."""
    read_alone: bool = False
    """True: as long as nobody else wants it, read it from a holder, even if the switch serves it."""
    readers: int = 0
    """So many nodes read it, each for itself, because that ends sooner; 0: nobody chose that."""
    missing: npt.NDArray[np.bool_] | None = None
    """Segments that are not here, where some are already (shape: segments); None: none is."""


@dataclass(frozen=True, slots=True)
class ChunkUnwanted:
    """Nobody wants a chunk any more, or it is here by other means. An unknown key (one that came) is ignored.

    When the commands that follow have been carried out, nothing writes to its memory.
    """

    key: ChunkKey


@dataclass(frozen=True, slots=True)
class ControlReceived:
    """A control datagram arrived: NOTICE and NAK concern the reader; JOIN, GET and FILL_ACK the holder."""

    message: Control
    source: Address
    rail: int = 0
    """By which it came."""


@dataclass(frozen=True, slots=True)
class SegmentsReceived:
    """Segments of one chunk came as casts and lie in memory: those of one batch, from one holder's address.

    The shell asks `Reader.missing(key)` which ones to place, places them, and then reports ALL that came, duplicates
    included (they tell that the cast is alive).
    """

    key: ChunkKey
    segments: npt.NDArray[np.uint32]
    """Indices, any order, each below the chunk's segments."""
    source: Address
    from_switch: int = 0
    """How many of them carried the from-switch code point."""
    rail: int = 0
    """By which they came."""


@dataclass(frozen=True, slots=True)
class ReadProgress:
    """The first `segments` of a reliable read lie in memory. Optional.

    It keeps a long stripe from timing out, and tells what of a read that falls silent is here.
    """

    read: ReadId
    segments: int


class ReadDone(NamedTuple):
    """All segments of a reliable read lie in memory."""

    read: ReadId
    proves: bool = False
    """True: with it all of the chunk has come by reads alone, and its digest is known to be right."""


@dataclass(frozen=True, slots=True)
class ReadFailed:
    """A reliable read ended early. What it had written may be in memory; none of it counts from now on."""

    read: ReadId
    gone: bool
    """True: the holder said that it has no such chunk; False: the connection was refused or broke (not: it is slow)."""


@dataclass(frozen=True, slots=True)
class ChunkJudged:
    """Answer to ReadLeaves: which segments of the memory are not what the chunk's digest says."""

    read: ReadId
    wrong: npt.NDArray[np.uint32] | None
    """In order; None: the holder answered with leaves that do not belong to the digest."""


@dataclass(frozen=True, slots=True)
class ChunkVerified:
    """Answer to VerifyChunk: the digest of the memory matched (or not) what the directory says."""

    key: ChunkKey
    good: bool
    has_tree: bool = False
    """Holders have the leaves of the chunk's tree: ReadLeaves tells which segments are wrong."""


@dataclass(frozen=True, slots=True)
class HoldersChanged:
    """The directory's replica learnt other holders of chunks; each value replaces what was known of that key."""

    holders: Mapping[ChunkKey, tuple[HolderRef, ...]]


@dataclass(frozen=True, slots=True)
class HolderLost:
    """A node is gone (its connection to the controller or its reads broke): expect nothing from it."""

    node: NodeId


@dataclass(frozen=True, slots=True)
class SwitchChanged:
    """The switch's program restarted (another epoch) or came back: its interest table is empty, its cache too."""


ReaderEvent: TypeAlias = (
    ChunkWanted
    | ChunkUnwanted
    | ControlReceived
    | SegmentsReceived
    | ReadProgress
    | ReadDone
    | ReadFailed
    | ChunkJudged
    | ChunkVerified
    | HoldersChanged
    | HolderLost
    | SwitchChanged
)

# --- to the holder --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SegmentsSent:
    """The socket took `count` segments of one SendSegments (all of them, or a part at a time)."""

    key: ChunkKey
    count: int
    rail: int = 0
    """By which they left."""


@dataclass(frozen=True, slots=True)
class SendFailed:
    """`count` segments of one SendSegments will never leave (the socket refuses)."""

    key: ChunkKey
    count: int
    rail: int = 0
    """By which they were to leave."""


@dataclass(frozen=True, slots=True)
class FillRequested:
    """The controller wants this chunk in the switch: send FILL to the pool's address until all is acknowledged."""

    fill: FillId
    key: ChunkKey
    pool: Address
    deadline_ns: int
    cast_too: bool = False
    """The switch casts a FILL that says CAST_TOO: what readers ask for anyway need not leave twice."""
    readers: int = 0
    """Nodes that waited for the chunk when the controller decided: their GETs are worth waiting for."""


@dataclass(frozen=True, slots=True)
class FillCancelled:
    """The controller no longer wants it. No FillEnded follows; an unknown (ended) fill is ignored."""

    fill: FillId


HolderEvent: TypeAlias = ControlReceived | SegmentsSent | SendFailed | FillRequested | FillCancelled
