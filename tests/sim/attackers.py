"""Nodes that mean harm: they hear all that a port hears, and send what the rules of the protocol forbid.

A *member* has a port that the switch counts among the fabric's, so the switch program handles what it sends. A
*stranger* sends packets that the program does not recognise (IP options, fragments, tags): the switch floods them as
they are, with whatever source address is on them.
"""

import enum
from dataclasses import dataclass
from functools import partial

from kvchunk.ids import ChunkKey
from kvproto.ids import Address, Member
from kvproto.limits import MS
from kvproto.wire.control import TAG_LEADS, Control, Flag, Op
from kvsim.bodies import CONTROL_BYTES, DATA_OVERHEAD_BYTES, ControlBody, DataBody
from kvsim.link import CLEAN, Link, Packet
from kvsim.switch import POOL_ADDRESS
from kvsim.world import World

_WRONG_CONTENT = 0x0BAD
_CAMPED = 64
"""Keys that are joined at a time."""


class Attack(enum.Enum):
    """What an attacker does, again and again."""

    FORGED_SEGMENTS = "casts segments with wrong bytes and the holder's address"
    REPEATED_SEGMENT = "casts one segment with wrong bytes without end"
    LEADS = "says that it leads every chunk, and brings nothing"
    NOTICES = "forges NOTICEs of all kinds"
    NAKS = "says with the holder's address that the chunks are not there"
    MARKS = "casts segments with wrong bytes and the switch's mark"
    CAMPS = "takes entries of the interest table with keys that nobody wants, and renews them"


@dataclass(frozen=True, slots=True)
class Harm:
    """An attack and how hard."""

    attack: Attack
    stranger: bool
    period_ns: int = 2 * MS
    """Between two packets."""


class Attacker:
    """One port with somebody at it who does harm from the beginning until every reader has its answer."""

    def __init__(self, world: World, harm: Harm) -> None:
        setting = world.setting
        self._world = world
        self._harm = harm
        self._chance = world.chance.fork(f"attacker {harm}")
        self.member = Member(60)
        self.address = Address(0x0A4B00FE)
        self._up, down = (
            Link(setting.rate_bytes_per_s, setting.delay_ns, setting.queue_ns, self._chance.fork(way), CLEAN)
            for way in ("up", "down")
        )
        self.packets_sent = 0
        self._camps: list[ChunkKey] = []
        world.switch.attach(self.member, self.address, down, self)
        world.engine.at(harm.period_ns, self._strike)

    def deliver(self, packet: Packet, at_ns: int) -> None:
        """It listens, and knows all keys already."""

    def _strike(self) -> None:
        world = self._world
        if world.finished():
            return
        key = world.keys[self._chance.below(len(world.keys))]
        for packet in self._packets(key):
            self._send(packet)
        world.engine.at(world.engine.now_ns + self._harm.period_ns, self._strike)

    def _packets(self, key: ChunkKey) -> list[Packet]:
        setting, holder = self._world.setting, self._world.holders[0]
        match self._harm.attack:
            case Attack.FORGED_SEGMENTS:
                return [self._data(key, self._chance.below(setting.segments))]
            case Attack.MARKS:
                return [self._data(key, self._chance.below(setting.segments), marked=True)]
            case Attack.REPEATED_SEGMENT:
                return [self._data(key, 0)]
            case Attack.LEADS if self._harm.stranger:
                return [self._notice(one, Flag.JOINED, TAG_LEADS) for one in self._world.keys]
            case Attack.LEADS:
                return [
                    self._control(Control(Op.JOIN, one, setting.segments, tag=TAG_LEADS), holder.address)
                    for one in self._world.keys
                ]
            case Attack.NOTICES:
                flags = (Flag.JOINED, Flag.REFUSED, Flag.JOINED | Flag.CACHED, Flag.LEFT, Flag.NO_SWITCH)
                return [self._notice(key, flags[self._chance.below(len(flags))], self._chance.below(1 << 16))]
            case Attack.CAMPS:
                self._camps += [ChunkKey(self._chance.below(1 << 128).to_bytes(16, "big")) for _ in range(_CAMPED)]
                renewed = [self._camps[self._chance.below(len(self._camps))] for _ in range(_CAMPED)]
                joins = (Control(Op.JOIN, one, setting.segments) for one in (*self._camps[-_CAMPED:], *renewed))
                return [self._control(join, holder.address) for join in joins]
            case Attack.NAKS:
                nak = Control(Op.NAK, key, setting.segments)
                return [self._control(nak, reader.address, source=holder.address) for reader in self._world.readers]

    def _data(self, key: ChunkKey, segment: int, *, marked: bool = False) -> Packet:
        setting, holder = self._world.setting, self._world.holders[0]
        body = DataBody(key, segment, setting.segments, _WRONG_CONTENT, holder.address, from_switch=marked)
        return Packet(holder.address, None, setting.segment_bytes + DATA_OVERHEAD_BYTES, body)

    def _notice(self, key: ChunkKey, flags: Flag, tag: int) -> Packet:
        everybody = (1 << 20) - 1 | 1 << self.member
        notice = Control(
            Op.NOTICE, key, self._world.setting.segments, flags=flags, member=self.member, members=everybody, tag=tag
        )
        return self._control(notice, None, source=POOL_ADDRESS)

    def _control(self, message: Control, to: Address | None, source: Address | None = None) -> Packet:
        return Packet(source or self.address, to, CONTROL_BYTES, ControlBody(message.encode()))

    def _send(self, packet: Packet) -> None:
        self.packets_sent += 1
        switch, engine = self._world.switch, self._world.engine
        take = switch.flood if self._harm.stranger else switch.receive
        for at in self._up.send(packet, engine.now_ns):
            engine.at(at, partial(take, packet, self.member))
