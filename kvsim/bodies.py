"""What packets of the simulation carry."""

from dataclasses import dataclass

from kvchunk.ids import ChunkKey
from kvpolicy.tiers.holder_load import HolderLoad
from kvproto.ids import Address, ReadId

CONTROL_BYTES = 82
"""Ethernet, IP, UDP, 40 bytes."""
DATA_OVERHEAD_BYTES = 98
"""Ethernet, IP, UDP, BTH, DETH, chunk header, ICRC."""
TCP_HEADER_BYTES = 66
"""Ethernet, IP, TCP with timestamps."""


@dataclass(frozen=True, slots=True)
class ControlBody:
    """A control datagram, as bytes."""

    payload: bytes


@dataclass(frozen=True, slots=True)
class DataBody:
    """A data datagram; `content` stands for the payload."""

    key: ChunkKey
    segment: int
    segments: int
    content: int
    holder: Address
    from_switch: bool = False


@dataclass(frozen=True, slots=True)
class FillBody:
    """A FILL datagram."""

    control: bytes
    data: DataBody


@dataclass(frozen=True, slots=True)
class ReadRequest:
    """A reliable read asks for segments."""

    read: ReadId
    key: ChunkKey
    first: int
    count: int
    wanted_bytes: int
    """What the reader still wants of the holder."""


@dataclass(frozen=True, slots=True)
class StreamBody:
    """A part of the byte stream of one connection: some segments of one read."""

    read: ReadId
    key: ChunkKey
    sequence: int
    first: int
    contents: tuple[int, ...]
    begins: bool = False
    """The read's first part."""
    load: HolderLoad | None = None
    """Bytes that the holder has queued for others when the read begins."""


@dataclass(frozen=True, slots=True)
class StreamAck:
    """Acknowledges one StreamBody."""

    sequence: int


@dataclass(frozen=True, slots=True)
class ReadRefused:
    """A read cannot be served: the holder has no such chunk (`gone`), or its agent is down."""

    read: ReadId
    gone: bool


@dataclass(frozen=True, slots=True)
class Connecting:
    """Asks a host for a connection,"""

    answered: bool = False
    """or gives one: its kernel does, whatever its agent does."""


@dataclass(frozen=True, slots=True)
class LeavesRequest:
    """A read of the leaves of a chunk's tree."""

    read: ReadId
    key: ChunkKey


@dataclass(frozen=True, slots=True)
class LeavesAnswer:
    """They; None: the chunk is not here."""

    read: ReadId
    leaves: bytes | None


@dataclass(frozen=True, slots=True)
class ReadAborted:
    """The reader wants no more of a read."""

    read: ReadId


def content_of(key: ChunkKey, segment: int) -> int:
    """The right content of a segment: a function of key and index, never 0."""
    low = int.from_bytes(key[:8], "big") ^ (segment * 0x9E3779B97F4A7C15)
    return (low ^ low >> 29) & 0x7FFF_FFFF_FFFF_FFFF | 1
