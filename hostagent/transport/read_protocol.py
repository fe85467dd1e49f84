"""Messages of reliable reads between agents, over a TCP connection to a holder's read endpoint. Big-endian.

Request, 48 bytes: magic u32, version u8, kind u8, zero u16, request u64, then 32 bytes by kind:
    READ     offset u64, size u64, key 16 bytes: send me this range of the chunk, through this connection
    CONNECT  queue pair u32, first PSN u32, MTU in bytes u32, RDMA READs in flight u32, GID 16 bytes: my end of a
             reliable connection; answered with yours. Again on the same connection: a fresh one instead of the last
    OPEN     zero u64, zero u64, key 16 bytes: pin this chunk and tell me where it lies, I read it with RDMA
    LEAVES   zero u64, size u64, key 16 bytes: send me the leaves of this chunk's tree (`hostagent.tree`), so many bytes
    CLOSE    bytes read u64, zero u64, zero 16 bytes: unpin what the OPEN of this number pinned; not answered
    TOKEN    size u64, zero u64, zero 16 bytes: `size` bytes of tokens follow (`kvproto.rpc.read_tokens`), filled up
             with zeros to a multiple of 48; not answered. It comes first, and again when the asker has newer tokens
    RELAY    zero 32 bytes: messages of a relay link follow, both ways (`kvproto.wire.relay_messages`), and no requests
Answer, 24 bytes: magic u32, version u8, status u8, load u16, request u64, size u64, followed by `size` bytes when the
status is 0: the range (READ), the leaves (LEAVES), the 32 bytes of CONNECT, or where the chunk lies (OPEN: address u64,
size u64, rkey u32, zero u32). Answers come in the order of the requests. Status 1: chunk not here; 2: range outside of
the chunk; 3: no RDMA here; 4 to 7: not served (`read_tokens.Refusal`): no token, a token of a controller that is not
known here, one that has expired, a wrong one. What the asker's token does not allow is not here, as far as it is told.
Anything else ends the connection, and with it go its pins and its queue pair.

The asker chooses `request`, a holder only repeats it; an agent of an earlier version knows nothing of the following.
The top bit says that the asker reads `load`, and bits 48 to 57 what it still wants of this holder, this request
included. `load` says what others want of the holder when it answers: bits 0 to 9 how much, bits 10 to 15 for how many
readers. Without that bit it is 0. Amounts are 0 for nothing, else 1 + 16 log2(KiB), rounded.
"""

from __future__ import annotations

import math
import socket
import struct
from dataclasses import dataclass
from typing import Any, Self

from hostagent import limits
from kvpolicy.tiers.holder_load import IDLE, HolderLoad
from kvproto import __version__

MAGIC = 0x4B565244
VERSION = 2
"""2: with TOKEN."""
KIND_READ = 1
KIND_CONNECT = 2
KIND_OPEN = 3
KIND_CLOSE = 4
KIND_LEAVES = 5
KIND_TOKEN = 6
KIND_RELAY = 7
STATUS_OK = 0
STATUS_ABSENT = 1
STATUS_RANGE = 2
STATUS_NO_RDMA = 3
TELLS_LOAD = 1 << 63
HEAD = struct.Struct("!IBBHQ")
RANGE = struct.Struct("!QQ16s")
REQUEST_BYTES = HEAD.size + RANGE.size
ANSWER = struct.Struct("!IBBHQQ")
READ_HEAD = struct.pack("!IBBH", MAGIC, VERSION, KIND_READ, 0)
"""What a READ begins with, up to its number."""
ANSWER_HEAD = struct.pack("!IBB", MAGIC, VERSION, STATUS_OK)
"""What its answer begins with, up to `load`."""
_WANTED_SHIFT = 48
_LOAD = struct.Struct("!H")
_LOAD_AT = 6
_LEVEL_MAX = (1 << 10) - 1
_LEVELS_PER_OCTAVE = 16
_READERS_MAX = (1 << 6) - 1
_QUEUE_PAIR = struct.Struct("!IIII16s")
_EXTENT = struct.Struct("!QQII")

assert _QUEUE_PAIR.size == RANGE.size


def skew(version: int) -> str:
    """Why a peer with this version of the protocol is not understood."""
    older = "that one" if version < VERSION else "this one"
    return (
        f"the agent there reads with protocol {version}, this one (kvcast {__version__}) with {VERSION}: no chunks go"
        f" between them until {older} is upgraded"
    )


def pack_request(kind: int, request: int, body: bytes) -> bytes:
    """One request; `body`: its 32 bytes."""
    return HEAD.pack(MAGIC, VERSION, kind, 0, request) + body


def pack_tokens(shown: bytes) -> bytes:
    """The request TOKEN with what follows it."""
    size = len(shown)
    return pack_request(KIND_TOKEN, 0, RANGE.pack(size, 0, bytes(16))) + shown.ljust(padded_bytes(size), b"\0")


def padded_bytes(size: int) -> int:
    """What `size` bytes of tokens take on the wire."""
    return -(-size // REQUEST_BYTES) * REQUEST_BYTES


def pack_answer(status: int, request: int, body_bytes: int) -> bytes:
    """The head of an answer."""
    return ANSWER.pack(MAGIC, VERSION, status, 0, request, body_bytes)


def number_with(number: int, wanted_bytes: int) -> int:
    """The `request` for an asker's own number, below 2**48; `wanted_bytes`: what it still wants of the holder."""
    return TELLS_LOAD | _level_of(wanted_bytes) << _WANTED_SHIFT | number


def wanted_of(request: int) -> int:
    """Bytes that the asker still wants of the holder; 0: it does not say."""
    return _bytes_of(request >> _WANTED_SHIFT & _LEVEL_MAX) if request & TELLS_LOAD else 0


def set_load(answer: memoryview, load: HolderLoad) -> None:
    """Write what is queued for others into the head of an answer."""
    _LOAD.pack_into(answer, _LOAD_AT, _level_of(load.queued_bytes) | min(load.readers, _READERS_MAX) << 10)


def load_of(field: int) -> HolderLoad:
    """What an answer's `load` says."""
    queued_bytes = LEVELS_BYTES[field & _LEVEL_MAX]
    return HolderLoad(queued_bytes, field >> 10) if queued_bytes else IDLE


def _level_of(size_bytes: int) -> int:
    if not size_bytes:
        return 0
    return min(_LEVEL_MAX, 1 + max(0, round(_LEVELS_PER_OCTAVE * math.log2(size_bytes / limits.KIB))))


def _bytes_of(level: int) -> int:
    return round(limits.KIB * 2 ** ((level - 1) / _LEVELS_PER_OCTAVE)) if level else 0


LEVELS_BYTES = tuple(map(_bytes_of, range(_LEVEL_MAX + 1)))
"""Amounts that `request` and `load` can say, by level."""


@dataclass(frozen=True, slots=True)
class QueuePairEnd:
    """One end of a reliable connection."""

    number: int
    psn: int
    mtu_bytes: int
    reads_in_flight: int
    gid: bytes

    def pack(self) -> bytes:
        """As it goes over the wire."""
        return _QUEUE_PAIR.pack(self.number, self.psn, self.mtu_bytes, self.reads_in_flight, self.gid)

    @classmethod
    def unpack(cls, body: bytes) -> Self:
        """Raises ValueError for impossible values."""
        end = cls(*_unpack(_QUEUE_PAIR, body))
        if end.number >= 1 << 24 or end.psn >= 1 << 24 or not end.reads_in_flight:
            raise ValueError("not a queue pair")
        if end.mtu_bytes not in (256, 512, 1024, 2048, 4096):
            raise ValueError("not an RDMA MTU")
        return end


@dataclass(frozen=True, slots=True)
class RemoteExtent:
    """Where a peer's chunk lies."""

    address: int
    size_bytes: int
    rkey: int

    def pack(self) -> bytes:
        """As it goes over the wire."""
        return _EXTENT.pack(self.address, self.size_bytes, self.rkey, 0)

    @classmethod
    def unpack(cls, body: bytes) -> Self:
        """Raises ValueError when `body` has another length."""
        address, size_bytes, rkey, _ = _unpack(_EXTENT, body)
        return cls(address, size_bytes, rkey)


def _unpack(layout: struct.Struct, body: bytes) -> tuple[Any, ...]:
    if len(body) != layout.size:
        raise ValueError(f"{len(body)} bytes instead of {layout.size}")
    return layout.unpack(body)


def watch_peer(sock: socket.socket) -> None:
    """Have the kernel find out that the peer's host is gone; a peer that is merely slow answers its probes."""
    idle_s, interval_s, count = limits.READ_KEEPALIVE_S
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, idle_s)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, interval_s)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, count)
