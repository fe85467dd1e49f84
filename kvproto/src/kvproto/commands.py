"""What a node's state machines ask of their shell. Values only. The shell carries them out in the order given."""

import enum
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from kvchunk.ids import ChunkKey
from kvchunk.sources import ChunkSource
from kvproto.ids import Address, FillId, NodeId, ReadId
from kvproto.wire.control import Control


class Blame(enum.Enum):
    """What was wrong with a holder's copy."""

    DIGEST = "the bytes do not match the digest"
    ABSENT = "the holder does not have the chunk"


@dataclass(frozen=True, slots=True)
class SendControl:
    """Send one control datagram (`message.encode()`) to UDP port 4793 of an address. Best effort."""

    message: Control
    address: Address
    rail: int = 0
    """By which it leaves."""


# --- of the reader ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class StartRead:
    """Read segments [first, first+count) of a chunk reliably from a holder into the chunk's memory.

    Answered by ReadDone or ReadFailed, unless aborted before. Several reads may run at once; reads of one holder are
    served in the order in which they were started.
    """

    read: ReadId
    key: ChunkKey
    holder: NodeId
    first: int
    count: int


@dataclass(frozen=True, slots=True)
class ReadLeaves:
    """Read the leaves of a chunk's tree from a holder, over its read connection; compare with them what lies in memory.

    Answered by ChunkJudged or ReadFailed, unless aborted before.
    """

    read: ReadId
    key: ChunkKey
    holder: NodeId


@dataclass(frozen=True, slots=True)
class SegmentsDropped:
    """Segments of a chunk were not what its digest says, and are read again. Nobody is to blame: casts have no sender
    that could be held to them."""

    key: ChunkKey
    count: int


@dataclass(frozen=True, slots=True)
class AbortRead:
    """End a read. When this command has been carried out, the read writes no more bytes and reports no more events."""

    read: ReadId


@dataclass(frozen=True, slots=True)
class VerifyChunk:
    """All segments lie in memory and nothing writes there any more: check the digest, answer ChunkVerified."""

    key: ChunkKey


class ChunkHere(NamedTuple):
    """A chunk is whole and right. The reader has forgotten it: it is wanted no more."""

    key: ChunkKey
    source: ChunkSource
    """Where most of it came from."""


@dataclass(frozen=True, slots=True)
class ChunkGone:
    """No holder of a chunk is left. It stays wanted: HoldersChanged may name others."""

    key: ChunkKey


@dataclass(frozen=True, slots=True)
class ReportBadCopy:
    """Tell the controller what this holder answered over its own read connection: that it has no such chunk, or bytes
    that are not the chunk's."""

    key: ChunkKey
    holder: NodeId
    blame: Blame


@dataclass(frozen=True, slots=True)
class DoubtHolder:
    """Reads from this holder bring nothing, or broke: find out whether it can be reached."""

    holder: NodeId


ReaderCommand: TypeAlias = (
    SendControl
    | StartRead
    | ReadLeaves
    | SegmentsDropped
    | AbortRead
    | VerifyChunk
    | ChunkHere
    | ChunkGone
    | ReportBadCopy
    | DoubtHolder
)

# --- of the holder ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SendSegments:
    """Send segments [first, first+count) as data datagrams to the fabric's group; report SegmentsSent / SendFailed."""

    key: ChunkKey
    first: int
    count: int
    to: int | None = None
    """The members that want them, as a bitmap; None: a switch knows."""


@dataclass(frozen=True, slots=True)
class SendFill:
    """Send segments [first, first+count) as FILL datagrams (control header, then the data packet from its BTH on).

    With `cast_too` the switch casts them as well, and the shell reports them as those of SendSegments.
    """

    key: ChunkKey
    first: int
    count: int
    pool: Address
    cast_too: bool = False


@dataclass(frozen=True, slots=True)
class PinChunk:
    """Keep this chunk in memory until UnpinChunk. Never nested: at most one pin of the holder for a chunk at a time."""

    key: ChunkKey


@dataclass(frozen=True, slots=True)
class UnpinChunk:
    """The chunk may go again."""

    key: ChunkKey


@dataclass(frozen=True, slots=True)
class FillEnded:
    """A fill ended: every segment was acknowledged, or it failed (deadline, chunk gone) and should be given up."""

    fill: FillId
    key: ChunkKey
    complete: bool
    acknowledged: int


HolderCommand: TypeAlias = SendControl | SendSegments | SendFill | PinChunk | UnpinChunk | FillEnded
