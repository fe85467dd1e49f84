"""What scripts of the reader say: events that reach it, and what to find among its commands."""

import numpy as np

from kvchunk.ids import ChunkKey
from kvproto.commands import (
    SendControl,
)
from kvproto.events import (
    ChunkWanted,
    ControlReceived,
    HolderRef,
    SegmentsReceived,
)
from kvproto.ids import Address, Member, NodeId
from kvproto.session.parameters import ReaderParameters
from kvproto.session.reader import Reader
from kvproto.wire.control import Control, Flag, Op

ME, OTHER = Member(2), Member(5)
KEYS = [ChunkKey(bytes([index]) * 16) for index in range(4)]
HOLDER = HolderRef(NodeId("h"), Address(1))
SECOND = HolderRef(NodeId("s"), Address(2))
SWITCH = Address(99)
SEGMENTS = 64


def reader(member: Member | None = ME) -> Reader:
    return Reader(ReaderParameters(member))


def wanted(key: ChunkKey, *holders: HolderRef) -> ChunkWanted:
    return ChunkWanted(key, SEGMENTS, SEGMENTS * 4096, holders or (HOLDER,), KEYS.index(key))


def notice(key: ChunkKey, *members: int, who: int = ME, flags: Flag = Flag.JOINED, tag: int = 0) -> ControlReceived:
    bitmap = sum(1 << member for member in members)
    return ControlReceived(Control(Op.NOTICE, key, SEGMENTS, flags=flags, member=who, members=bitmap, tag=tag), SWITCH)


def cast(key: ChunkKey, *segments: int) -> SegmentsReceived:
    return SegmentsReceived(key, np.array(segments, np.uint32), HOLDER.address)


def controls(commands: list, op: Op) -> list[Control]:
    return [each.message for each in commands if isinstance(each, SendControl) and each.message.op is op]


def kinds(commands: list, kind: type) -> list:
    return [each for each in commands if isinstance(each, kind)]


def asked(commands: list) -> list[int]:
    return [segment for get in controls(commands, Op.GET) for segment in range(get.segment, get.segment + get.count)]
