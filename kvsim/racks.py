"""Switches that cast to each other's racks: docs/explanation/tofino.md, "Several racks".

To the switch of the holder's rack, every other rack is one more member, behind a tunnel. To the switch of a reader's
rack, the way to the holder is member 0. Both keep interest as usual and relay what only the other needs to know, and a
cast crosses the core once per rack. Member 0 is the lowest: of leaders in several racks, all but the one nearest to the
holder step back.
"""

from dataclasses import replace
from typing import Protocol

from kvproto.errors import WireError
from kvproto.ids import Address, Member, members_of
from kvproto.wire.control import TAG_LEADS, Control, Flag, Op, decode_control
from kvsim.bodies import CONTROL_BYTES, ControlBody, DataBody
from kvsim.engine import Engine
from kvsim.link import Link, Packet
from kvsim.switch import POOL_ADDRESS, SwitchModel

UPSTREAM = Member(0)
"""In a reader's rack: whatever lies beyond the core."""
FIRST_TUNNEL = 48
"""In a holder's rack: member FIRST_TUNNEL + r is rack r. More than 48 nodes in a rack would need a wider set."""
TUNNEL_BYTES = 50
"""Outer Ethernet, IP, UDP and VXLAN headers."""


class RackMap(Protocol):
    """Who lives where."""

    def rack_of(self, address: Address) -> int | None:
        """The rack of a node."""


def tunnel(rack: int) -> Member:
    """The member that a rack is to the others."""
    return Member(FIRST_TUNNEL + rack)


class RackSwitch(SwitchModel):
    """The switch of one rack of several."""

    def __init__(
        self, engine: Engine, entries: int, ttl_ns: int, segment_bytes: int, rack: int, racks: RackMap
    ) -> None:
        super().__init__(engine, entries, ttl_ns, segment_bytes)
        self._rack = rack
        self._racks = racks
        self._others: dict[int, tuple[Link, RackSwitch]] = {}

    def connect(self, rack: int, link: Link, switch: "RackSwitch") -> None:
        """A tunnel to another rack, and the link that its packets take into it."""
        self._others[rack] = (link, switch)

    def receive(self, packet: Packet, member: Member | None) -> None:
        body = packet.body
        home = self._elsewhere(packet)
        if isinstance(body, ControlBody) and member is not None and home is not None:
            consumed = self._from_reader(packet, body, member, home)
        else:
            consumed = False
        if not consumed:
            super().receive(packet, member)

    def _elsewhere(self, packet: Packet) -> int | None:
        """The rack that a packet is for; None when it is this one or none."""
        rack = self._racks.rack_of(packet.destination) if packet.destination is not None else None
        return rack if rack != self._rack else None

    def _from_reader(self, packet: Packet, body: ControlBody, member: Member, home: int) -> bool:
        """A node of this rack speaks to a holder of another. False: nothing for a switch."""
        try:
            message = decode_control(body.payload)
        except WireError:
            return False
        if message.op not in (Op.JOIN, Op.LEAVE, Op.GET):
            return False
        self._control(packet, body, member)
        if message.op is Op.GET:
            return True
        entry = self._table.get(self._index(message.key))
        if entry is None or entry.key != message.key:
            return True
        if message.op is Op.LEAVE:
            if entry.members & ~(1 << UPSTREAM):
                return True
            entry.members = 0
        self._relay(packet, home)
        return True

    def _forward(self, packet: Packet, member: Member | None) -> None:
        # A GET for another rack goes through the tunnel, where that rack's switch may serve it.
        body = packet.body
        home = self._elsewhere(packet)
        if home is not None and isinstance(body, ControlBody) and decode_control(body.payload).op is Op.GET:
            self._relay(packet, home)
        else:
            super()._forward(packet, member)

    def _relay(self, packet: Packet, rack: int) -> None:
        link, switch = self._others[rack]
        outer = replace(packet, size_bytes=packet.size_bytes + TUNNEL_BYTES)
        for at in link.send(outer, self._engine.now_ns):
            self._engine.at(at, lambda: switch.from_tunnel(packet, self._rack))

    def _emit(self, member: Member, packet: Packet) -> None:
        if member == UPSTREAM:
            return
        if member >= FIRST_TUNNEL:
            self._relay(packet, member - FIRST_TUNNEL)
        else:
            super()._emit(member, packet)

    def from_tunnel(self, packet: Packet, rack: int) -> None:
        """A packet of another rack's switch."""
        body = packet.body
        if isinstance(body, DataBody):
            self._data(packet, body, UPSTREAM)
        elif isinstance(body, ControlBody):
            message = decode_control(body.payload)
            if message.op is Op.NOTICE:
                self._notice_from(message)
            else:
                self._control(packet, body, tunnel(rack))

    def _notice_from(self, notice: Control) -> None:
        """What the holder's switch says becomes what member 0 does."""
        entry = self._entry(notice.key)
        if entry is None:
            return
        own = tunnel(self._rack)
        others = notice.members & ~(1 << own)
        before = entry.members
        entry.members = entry.members | 1 << UPSTREAM if others else entry.members & ~(1 << UPSTREAM)
        entry.seen_ns = self._engine.now_ns
        if notice.member == own and entry.members == before:
            return
        # When several racks lead at once, the first goes on: a later one's claim to lead does not concern this one.
        later = notice.member > own
        tag = notice.tag & ~TAG_LEADS if later or notice.member == own else notice.tag
        leader = entry.leader
        if notice.count and notice.count - 1 < own:
            leader = UPSTREAM + 1
        flags = Flag.JOINED if others else Flag.LEFT
        relayed = replace(notice, member=UPSTREAM, members=entry.members, tag=tag, count=leader, flags=flags)
        out = Packet(POOL_ADDRESS, None, CONTROL_BYTES, ControlBody(relayed.encode()))
        for member in members_of(entry.members):
            self._emit(member, out)
