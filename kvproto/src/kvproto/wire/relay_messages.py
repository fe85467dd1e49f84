"""Messages of a relay link: one TCP connection from a reader to one who passes chunks on to it. Big-endian.

Each message: kind u8, size of its body u32, body. A reader and its parent call a chunk by a number that the reader
chooses. Pieces are counted from 0; a run has at least one.

    from the reader    HELLO its read endpoint (text)      WANT number u32, key 16 bytes, pieces u32, keeper u8
                       DROP number                          ROOM count u32
                       DONE number, first, count            BEG, ORPHAN number, first, count
    from its parent    HAVE number, first, count            GRANT number, first, count
                       RATE bytes a second u64, has room u8  PEERS number, endpoints (text, apart by a zero)
                       LEAVES number, 32 bytes a piece      GONE number
"""

import enum
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from kvchunk.ids import ChunkKey
from kvproto.errors import WireError, WireReason

LEAF_BYTES: Final = 32
PIECES_MAX: Final = 1 << 16
"""Of a chunk that is relayed: 4 GiB in pieces of 64 KiB."""
BODY_BYTES_MAX: Final = 4 + LEAF_BYTES * PIECES_MAX
ENDPOINT_BYTES_MAX: Final = 64
PEERS_MAX: Final = 64
_HEAD: Final = struct.Struct("!BI")


class RunKind(enum.IntEnum):
    """What is said of pieces that follow each other."""

    DONE = 5
    """Granted ones are here and right."""
    BEG = 6
    """The others give me too little: may I read these from you?"""
    ORPHAN = 7
    """Others should long have these, and nobody has: who was granted them died, or lies."""
    HAVE = 17
    """They are proven here: read them."""
    GRANT = 18
    """Read them from me, and pass them on."""


@dataclass(frozen=True, slots=True)
class Hello:
    """The reader says where it answers reads itself."""

    endpoint: str


@dataclass(frozen=True, slots=True)
class Want:
    """The reader wants a chunk."""

    number: int
    key: ChunkKey
    pieces: int
    keeper: bool
    """The parent has all of it, and is to say who reads what."""


@dataclass(frozen=True, slots=True)
class Drop:
    """The reader wants nothing more of a chunk: it is whole, or given up."""

    number: int


@dataclass(frozen=True, slots=True)
class Room:
    """The reader would take so many pieces more from its keeper."""

    count: int


@dataclass(frozen=True, slots=True)
class Run:
    """See `RunKind`."""

    kind: RunKind
    number: int
    first: int
    count: int


@dataclass(frozen=True, slots=True)
class Rate:
    """What the keeper's uplink carries."""

    rate: int
    """Bytes a second."""
    has_room: bool
    """For whoever begs."""


@dataclass(frozen=True, slots=True)
class Peers:
    """Who else reads the chunk now."""

    number: int
    endpoints: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Leaves:
    """The leaves of the chunk's tree."""

    number: int
    leaves: bytes


@dataclass(frozen=True, slots=True)
class Gone:
    """The parent does not have the chunk, nor is it coming there."""

    number: int


Message: TypeAlias = Hello | Want | Drop | Room | Run | Rate | Peers | Leaves | Gone
_HELLO, _PEERS, _LEAVES = 1, 20, 21
_NUMBER: Final = struct.Struct("!I")
_RUN: Final = struct.Struct("!III")
_FIXED: Final[Mapping[type, tuple[int, struct.Struct]]] = {
    Want: (2, struct.Struct("!I16sI?")),
    Drop: (3, _NUMBER),
    Room: (4, _NUMBER),
    Rate: (19, struct.Struct("!Q?")),
    Gone: (22, _NUMBER),
}
"""Their kinds, and their fields in order."""
_OF_KIND: Final[Mapping[int, tuple[Any, struct.Struct]]] = {kind: (made, form) for made, (kind, form) in _FIXED.items()}
_RUNS: Final = {int(kind): kind for kind in RunKind}


def encode(message: Message) -> bytes:
    """As it goes over the wire."""
    match message:
        case Run(kind, number, first, count):
            return _packed(kind, _RUN.pack(number, first, count))
        case Hello(endpoint):
            return _packed(_HELLO, endpoint.encode())
        case Peers(number, endpoints):
            return _packed(_PEERS, _NUMBER.pack(number) + b"\0".join(one.encode() for one in endpoints))
        case Leaves(number, leaves):
            return _packed(_LEAVES, _NUMBER.pack(number) + leaves)
        case Want() | Drop() | Room() | Rate() | Gone():
            code, form = _FIXED[type(message)]
            return _packed(code, form.pack(*(getattr(message, name) for name in message.__slots__)))


def _packed(kind: int, body: bytes) -> bytes:
    return _HEAD.pack(kind, len(body)) + body


class Decoder:
    """One direction of a link."""

    def __init__(self) -> None:
        self._stream = bytearray()

    def feed(self, received: bytes) -> list[Message]:
        """Messages that are whole now, in order. Raises WireError, and nothing else: the link is to end."""
        self._stream += received
        messages, at = [], 0
        while len(self._stream) - at >= _HEAD.size:
            kind, size = _HEAD.unpack_from(self._stream, at)
            if size > BODY_BYTES_MAX:
                raise WireError(WireReason.OVERSIZED)
            end = at + _HEAD.size + size
            if len(self._stream) < end:
                break
            messages.append(_decoded(kind, bytes(self._stream[at + _HEAD.size : end])))
            at = end
        del self._stream[:at]
        return messages


def _decoded(kind: int, body: bytes) -> Message:
    try:
        return _message(kind, body)
    except (struct.error, UnicodeDecodeError) as error:
        raise WireError(WireReason.LENGTH) from error


def _message(kind: int, body: bytes) -> Message:
    if kind in _RUNS:
        number, first, count = _RUN.unpack(body)
        if not 1 <= count <= PIECES_MAX or first + count > PIECES_MAX:
            raise WireError(WireReason.SEGMENT)
        return Run(_RUNS[kind], number, first, count)
    if kind == _HELLO:
        return Hello(_endpoint(body))
    if kind in _OF_KIND:
        made, form = _OF_KIND[kind]
        message: Message = made(*form.unpack(body))
        if isinstance(message, Want) and not 1 <= message.pieces <= PIECES_MAX:
            raise WireError(WireReason.SEGMENT)
        return message
    if kind not in (_PEERS, _LEAVES):
        raise WireError(WireReason.OP)
    (number,) = _NUMBER.unpack_from(body)
    rest = body[_NUMBER.size :]
    if kind == _LEAVES:
        return Leaves(number, rest)
    endpoints = rest.split(b"\0") if rest else []
    if len(endpoints) > PEERS_MAX:
        raise WireError(WireReason.OVERSIZED)
    return Peers(number, tuple(map(_endpoint, endpoints)))


def _endpoint(text: bytes) -> str:
    if not 1 <= len(text) <= ENDPOINT_BYTES_MAX:
        raise WireError(WireReason.LENGTH)
    return text.decode("ascii")
