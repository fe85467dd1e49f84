"""The control datagram (UDP port 4793): one value class, encode and decode."""

import enum
import math
from dataclasses import dataclass

from kvchunk.ids import ChunkKey
from kvproto.errors import WireError, WireReason
from kvproto.limits import CHUNK_SEGMENTS_MAX
from kvproto.wire import layouts
from kvproto.wire.layouts import KV_CONTROL_BYTES, KvControl


class Op(enum.IntEnum):
    """What a control datagram asks or says."""

    JOIN = layouts.OP_JOIN
    NOTICE = layouts.OP_NOTICE
    LEAVE = layouts.OP_LEAVE
    GET = layouts.OP_GET
    FILL = layouts.OP_FILL
    FILL_ACK = layouts.OP_FILL_ACK
    NAK = layouts.OP_NAK
    HERE = layouts.OP_HERE


class Flag(enum.IntFlag):
    """Flags of NOTICE, GET and FILL."""

    NONE = 0
    JOINED = layouts.FLAG_JOINED
    LEFT = layouts.FLAG_LEFT
    REFUSED = layouts.FLAG_REFUSED
    CACHED = layouts.FLAG_CACHED
    NO_SWITCH = layouts.FLAG_NO_SWITCH
    ONLY_ME = layouts.FLAG_ONLY_ME
    CAST_TOO = layouts.FLAG_CAST_TOO


TAG_LEADS = 0x8000
"""In the tag of a JOIN, echoed to every member in its NOTICE: the joiner pulls this chunk for all from now on."""
TAG_YIELDS = 0x4000
"""In the tag of a JOIN: the joiner no longer pulls this chunk, though it still wants it."""
TAG_READS = 0x2000
"""In the tag of a JOIN: the joiner, who would pull this chunk, found that it is here sooner if each reads it."""
_REACTION_MASK = 0x003F
"""In the tag of a JOIN (echoed to every member) and of a GET: how long the sender takes to act on what it is sent."""


def reaction_code(reaction_ns: int | None) -> int:
    """A reaction time in the low bits of a tag: quarter octaves of a microsecond, 1 us to 55 ms; 0: not known."""
    if reaction_ns is None:
        return 0
    return max(1, min(_REACTION_MASK, math.ceil(4 * math.log2(max(1, reaction_ns) / 1_000))))


def reaction_of(tag: int) -> int | None:
    """The reaction time in a tag, nanoseconds; None: the sender did not know."""
    code = tag & _REACTION_MASK
    return int(1_000 * 2 ** (code / 4)) if code else None


@dataclass(frozen=True, slots=True)
class Control:
    """One control datagram. Fields that an operation does not use are zero."""

    op: Op
    key: ChunkKey
    segments: int
    """Segments in the chunk, 1..CHUNK_SEGMENTS_MAX."""
    segment: int = 0
    """GET, FILL, FILL_ACK: (first) segment. JOIN: first segment that the joiner still wants."""
    count: int = 0
    """GET: segments asked for. NOTICE: 1 + the member that sent the last GET, 0 = nobody (a hint)."""
    tag: int = 0
    """Echoed in what answers."""
    flags: Flag = Flag.NONE
    member: int = 0
    """Whom it speaks of; overwritten by the switch."""
    members: int = 0
    """NOTICE: interest set after the operation, as a bitmap."""

    def encode(self) -> bytes:
        """Its 40 bytes."""
        return KvControl(
            layouts.KV_VERSION,
            self.op,
            self.flags,
            self.member,
            self.count,
            self.tag,
            self.segment,
            self.segments,
            self.key,
            self.members,
        ).pack()


_OPS = {int(op): op for op in Op}
_KNOWN_FLAGS = sum(Flag)


def decode_control(datagram: bytes | bytearray | memoryview) -> Control:
    """The control datagram in a UDP payload.

    FILL is refused here (WireReason.OP): only a switch receives it. Raises WireError; nothing else, whatever the bytes.
    """
    if len(datagram) < KV_CONTROL_BYTES:
        raise WireError(WireReason.TRUNCATED)
    if len(datagram) > KV_CONTROL_BYTES:
        raise WireError(WireReason.OVERSIZED)
    raw = KvControl.unpack(datagram)
    if raw.version != layouts.KV_VERSION:
        raise WireError(WireReason.VERSION)
    op = _OPS.get(raw.op)
    if op is None or op is Op.FILL:
        raise WireError(WireReason.OP)
    if not 1 <= raw.segments <= CHUNK_SEGMENTS_MAX or raw.segment >= raw.segments:
        raise WireError(WireReason.SEGMENT)
    if op is Op.GET and not 1 <= raw.count <= raw.segments - raw.segment:
        raise WireError(WireReason.SEGMENT)
    if raw.flags & ~_KNOWN_FLAGS:
        raise WireError(WireReason.RESERVED)
    return Control(
        op, ChunkKey(raw.key), raw.segments, raw.segment, raw.count, raw.tag, Flag(raw.flags), raw.member, raw.members
    )
