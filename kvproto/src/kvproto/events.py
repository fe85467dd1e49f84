"""What a node's shell tells its state machines. Values only; `now_ns` travels next to them, never inside.

Times are nanoseconds of one monotonic clock of the shell. Bytes of segments never travel here: the shell places them
into memory that it allocated before `FetchRequested`, and says which ones arrived.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from kvchunk.ids import ChunkKey
from kvproto.ids import Address, FetchId, FillId, NodeId, ReadId
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


@dataclass(frozen=True, slots=True)
class ChunkWanted:
    """One chunk of a fetch, with its memory already allocated by the shell."""

    key: ChunkKey
    segments: int
    size_bytes: int
    """Bytes that count; the last segment may be short."""
    holders: tuple[HolderRef, ...]
    present: bool = False
    """True: it is whole in this node's memory already, counts as arrived from LOCAL, and needs no holders."""
    loading: bool = False
    """True: the shell loads it from this node's disk; ChunkLoaded or LoadFailed follows. Holders are for the latter."""
    read_alone: bool = False
    """True: as long as nobody else wants it, read it from a holder, even if the switch serves it."""


# --- to the reader --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class FetchRequested:
    """Chunks are wanted, in prefix order, before `deadline_ns`. A key may also be wanted by other fetches.

    The same key always comes with the same number of segments and bytes.
    """

    fetch: FetchId
    chunks: tuple[ChunkWanted, ...]
    deadline_ns: int
    any_order: bool = False
    """Each chunk is of use by itself: one that does not come ends nothing, and DeliverFetch names those that came."""


@dataclass(frozen=True, slots=True)
class FetchCancelled:
    """The engine no longer wants it. No DeliverFetch follows; an unknown (finished) fetch is ignored."""

    fetch: FetchId


@dataclass(frozen=True, slots=True)
class FetchCut:
    """Only the first `count` chunks are worth waiting for now; DeliverFetch follows with LATE if those behind are not
    here. An unknown (finished) fetch is ignored, and so is one in any order: it has nothing behind."""

    fetch: FetchId
    count: int


@dataclass(frozen=True, slots=True)
class ControlReceived:
    """A control datagram arrived: NOTICE and NAK concern the reader; JOIN, GET and FILL_ACK the holder."""

    message: Control
    source: Address


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


@dataclass(frozen=True, slots=True)
class ReadProgress:
    """The first `segments` of a reliable read lie in memory. Optional.

    It keeps a long stripe from timing out, and tells what of a read that falls silent is here.
    """

    read: ReadId
    segments: int


@dataclass(frozen=True, slots=True)
class ReadDone:
    """All segments of a reliable read lie in memory."""

    read: ReadId


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
class ChunkLoaded:
    """A chunk that the shell was loading lies in memory, whole and verified."""

    key: ChunkKey


@dataclass(frozen=True, slots=True)
class ChunkPut:
    """An engine of this node has put a chunk that is on its way: it lies in memory, whole, and nothing more of it is
    wanted. A key that no fetch wants is ignored."""

    key: ChunkKey


@dataclass(frozen=True, slots=True)
class LoadFailed:
    """This node's disk did not deliver: bring the chunk from its holders."""

    key: ChunkKey


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
    FetchRequested
    | FetchCancelled
    | FetchCut
    | ControlReceived
    | SegmentsReceived
    | ReadProgress
    | ReadDone
    | ReadFailed
    | ChunkJudged
    | ChunkVerified
    | ChunkLoaded
    | ChunkPut
    | LoadFailed
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


@dataclass(frozen=True, slots=True)
class SendFailed:
    """`count` segments of one SendSegments will never leave (the socket refuses)."""

    key: ChunkKey
    count: int


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
