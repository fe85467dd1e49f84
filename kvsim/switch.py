"""A model of the switch program (not the program): interest table, NOTICE, replication, chunk cache.

It follows docs/explanation/protocol.md and the P4 program's description; the real program is tested with the real
switch elsewhere.
"""

import functools
import zlib
from dataclasses import dataclass, field, replace
from typing import Protocol

from kvchunk.ids import ChunkKey
from kvproto.blocks import members_in
from kvproto.errors import WireError
from kvproto.ids import Address, Member, members_of
from kvproto.limits import MEMBERS_MAX
from kvproto.wire.control import Control, Flag, Op, decode_control
from kvproto.wire.data import DEFAULT_GROUP
from kvsim.bodies import CONTROL_BYTES, DATA_OVERHEAD_BYTES, ControlBody, DataBody, FillBody
from kvsim.engine import Engine
from kvsim.link import Link, Packet


class Port(Protocol):
    """Where packets of one port go."""

    def deliver(self, packet: Packet, at_ns: int) -> None:
        """The packet arrives at this time."""


class Uplink(Protocol):
    """The way to nodes of other switches."""

    def forward(self, packet: Packet) -> None:
        """Send it on."""


@functools.lru_cache(maxsize=1024)
def _members(bitmap: int) -> tuple[Member, ...]:
    """The same few sets, for every packet of a cast."""
    return tuple(members_of(bitmap))


POOL_ADDRESS = Address(0x0A4BFFFE)


def group_of(block: int) -> Address:
    """The IP group of a block of members."""
    return Address(DEFAULT_GROUP + block)


INTEREST_OF_PORT = 512
"""Entries that a member can pay for in a time to live; a test compares with p4/include/sizes.p4."""


@dataclass(slots=True)
class Interest:
    """One entry of the interest table."""

    key: ChunkKey
    members: int
    seen_ns: int
    leader: int = 0
    """1 + the member that sent the last GET; 0: none did."""
    sponsor: Member | None = None
    """Who has paid for it."""


@dataclass(slots=True)
class Budget:
    """What a member has paid for in its window."""

    since_ns: int
    used: int = 0


@dataclass(slots=True)
class Cached:
    """One chunk in the cache."""

    segments: int
    filling_member: Member | None
    """Whose FILLs are accepted; None: serving."""
    slots: dict[int, DataBody] = field(default_factory=dict)


class SwitchModel:
    """Ports are members; `attach` gives each its links. `plain`: an ordinary switch that knows nothing of kvcast, but
    that members have joined the groups of their blocks."""

    def __init__(
        self,
        engine: Engine,
        entries: int,
        ttl_ns: int,
        segment_bytes: int,
        *,
        entries_of_port: int = INTEREST_OF_PORT,
        plain: bool = False,
        cast_ns: int = 0,
    ) -> None:
        """`cast_ns`: what it needs for each segment that it casts; others pass meanwhile."""
        self._engine = engine
        self._cast_ns, self._casts_until_ns = cast_ns, 0
        self._entries = entries
        self._entries_of_port = entries_of_port
        self._ttl_ns = ttl_ns
        self._segment_bytes = segment_bytes
        self.plain = plain
        self._table: dict[int, Interest] = {}
        self._budgets: dict[Member, Budget] = {}
        self.refused_entries = 0
        """JOINs of ports that had too many entries already."""
        self.cache: dict[ChunkKey, Cached] = {}
        self._ports: dict[Member, tuple[Link, Port]] = {}
        self._members: dict[Address, Member] = {}
        self.uplink: Uplink | None = None
        self._stalled_until_ns = 0

    def stall(self, until_ns: int) -> None:
        """Halt its process until then: packets wait at its ports."""
        self._stalled_until_ns = until_ns

    def attach(self, member: Member, address: Address, link: Link, port: Port) -> None:
        """A node's link from the switch, and where its packets go."""
        self._ports[member] = (link, port)
        self._members[address] = member

    def reboot(self) -> None:
        """The program restarts: interest and cache are empty."""
        self._table.clear()
        self._budgets.clear()
        self.cache.clear()

    def interest_left(self) -> dict[ChunkKey, int]:
        """Entries that are alive now."""
        now = self._engine.now_ns
        return {entry.key: entry.members for entry in self._table.values() if self._alive(entry, now)}

    def entries_paid_by(self, member: Member) -> int:
        """Live entries of the interest table that this member has paid for."""
        now = self._engine.now_ns
        return sum(entry.sponsor == member and self._alive(entry, now) for entry in self._table.values())

    # --- packets -----------------------------------------------------------------------------------------------------

    def receive(self, packet: Packet, member: Member | None) -> None:
        """A packet has arrived from a member's port, or from another switch (None)."""
        if self._engine.now_ns < self._stalled_until_ns:
            self._engine.at(self._stalled_until_ns, functools.partial(self.receive, packet, member))
            return
        body = packet.body
        if not self.plain and member is not None:
            if isinstance(body, ControlBody) and self._control(packet, body, member):
                return
            if isinstance(body, FillBody):
                self._fill(packet, body, member)
                return
            if isinstance(body, DataBody):
                self._data(packet, body, member)
                return
        self._forward(packet, member)

    def flood(self, packet: Packet, member: Member) -> None:
        """A packet that the program does not recognise, from a member's port: to its destination, or to all others."""
        self._forward(packet, member)

    def _forward(self, packet: Packet, member: Member | None) -> None:
        if packet.destination is None:
            for other in self._ports:
                if other != member:
                    self._emit(other, packet)
            return
        port = self._members.get(packet.destination)
        if DEFAULT_GROUP < packet.destination <= group_of(2 * MEMBERS_MAX):
            for other in _members(members_in(packet.destination - DEFAULT_GROUP)):
                if other != member and other in self._ports:
                    self._emit(other, packet)
        elif port is not None:
            self._emit(port, packet)
        elif self.uplink is not None and member is not None:
            self.uplink.forward(packet)

    def _emit(self, member: Member, packet: Packet) -> None:
        link, port = self._ports[member]
        for at in link.send(packet, self._engine.now_ns):
            port.deliver(packet, at)

    def _control(self, packet: Packet, body: ControlBody, member: Member) -> bool:
        """Handle what the switch consumes. False: forward it."""
        try:
            message = replace(decode_control(body.payload), member=member)
        except WireError:
            return True
        if message.op is Op.JOIN:
            self._join(message, member)
            return True
        if message.op is Op.LEAVE:
            self._leave(message, member)
            return True
        if message.op is Op.GET:
            entry = self._entry(message.key)
            if entry is None or not entry.members >> member & 1:
                return True  # only who waits for a chunk may ask for it
            self._touch(entry, member)
            if not message.flags & Flag.ONLY_ME:
                entry.leader = member + 1
            if self._serve(message, member, entry):
                return True
            self._forward(replace(packet, body=ControlBody(message.encode())), member)
            return True
        return False

    def _index(self, key: ChunkKey) -> int:
        return zlib.crc32(key) % self._entries

    def _alive(self, entry: Interest, now_ns: int) -> bool:
        return entry.members != 0 and now_ns - entry.seen_ns < self._ttl_ns

    def _entry(self, key: ChunkKey) -> Interest | None:
        entry = self._table.get(self._index(key))
        return entry if entry is not None and entry.key == key and self._alive(entry, self._engine.now_ns) else None

    def _join(self, join: Control, member: Member) -> None:
        now = self._engine.now_ns
        entry = self._table.get(self._index(join.key))
        if entry is not None and entry.key != join.key and self._alive(entry, now):
            self._notice(join, Flag.REFUSED, 0, 0, 1 << member)
            return
        if entry is None or entry.key != join.key or not self._alive(entry, now):
            entry = Interest(join.key, 0, now)
            if not self._touch(entry, member):
                self.refused_entries += 1
                return
            self._table[self._index(join.key)] = entry
        else:
            self._touch(entry, member)
        entry.members |= 1 << member
        self._notice(join, Flag.JOINED, entry.members, entry.leader, entry.members)

    def _paid(self, entry: Interest) -> bool:
        """It counts in the window of its sponsor."""
        budget = None if entry.sponsor is None else self._budgets.get(entry.sponsor)
        if budget is None or self._engine.now_ns >= budget.since_ns + self._ttl_ns:
            return False
        return entry.seen_ns >= budget.since_ns

    def _touch(self, entry: Interest, payer: Member) -> bool:
        """Keep an entry alive. False: no member has paid for it, and this one has paid for as many as it may."""
        now = self._engine.now_ns
        if not self._paid(entry):
            budget = self._budgets.setdefault(payer, Budget(now))
            if now >= budget.since_ns + self._ttl_ns:
                budget.since_ns, budget.used = now, 0
            if budget.used >= self._entries_of_port:
                return False
            budget.used += 1
            entry.sponsor = payer
        entry.seen_ns = now
        return True

    def _leave(self, leave: Control, member: Member) -> None:
        entry = self._entry(leave.key)
        if entry is None or not entry.members >> member & 1:
            return
        entry.members &= ~(1 << member)
        if entry.leader == member + 1:
            entry.leader = 0
        if entry.sponsor == member:
            if self._paid(entry):
                self._budgets[member].used -= 1
            entry.sponsor = None
        if entry.members:
            self._notice(leave, Flag.LEFT, entry.members, entry.leader, entry.members)

    def _notice(self, cause: Control, flags: Flag, members: int, count: int, to: int) -> None:
        cached = self.cache.get(cause.key)
        if cached is not None and cached.filling_member is None:
            flags |= Flag.CACHED
        notice = replace(cause, op=Op.NOTICE, flags=flags, members=members, count=count)
        packet = Packet(POOL_ADDRESS, None, CONTROL_BYTES, ControlBody(notice.encode()))
        for member in members_of(to):
            self._emit(member, packet)

    def _data(self, packet: Packet, body: DataBody, member: Member) -> None:
        entry = self._entry(body.key)
        if entry is None:
            return
        if entry.sponsor is not None:
            self._touch(entry, entry.sponsor)
        to = entry.members & ~(1 << member)
        if self._cast_ns:
            self._casts_until_ns = max(self._casts_until_ns, self._engine.now_ns) + self._cast_ns
            self._engine.at(self._casts_until_ns, functools.partial(self._cast, to, packet))
        else:
            self._cast(to, packet)

    def _cast(self, to: int, packet: Packet) -> None:
        for other in _members(to):
            self._emit(other, packet)

    # --- cache -------------------------------------------------------------------------------------------------------

    def _serve(self, get: Control, member: Member, entry: Interest) -> bool:
        cached = self.cache.get(get.key)
        if cached is None or cached.filling_member is not None:
            return False
        to = 1 << member
        if not get.flags & Flag.ONLY_ME:
            to |= entry.members
        for segment in range(get.segment, min(get.segment + get.count, cached.segments)):
            stored = cached.slots[segment]
            served = Packet(
                stored.holder, None, self._segment_bytes + DATA_OVERHEAD_BYTES, replace(stored, from_switch=True)
            )
            for other in members_of(to):
                self._emit(other, served)
        return True

    def _fill(self, packet: Packet, body: FillBody, member: Member) -> None:
        cached = self.cache.get(body.data.key)
        if cached is None or cached.filling_member != member:
            return
        cached.slots[body.data.segment] = body.data
        fill, source = _any_control(body.control), packet.source
        ack = replace(fill, op=Op.FILL_ACK, member=member, flags=Flag.NONE)
        self._emit(self._members[source], Packet(POOL_ADDRESS, source, CONTROL_BYTES, ControlBody(ack.encode())))
        if fill.flags & Flag.CAST_TOO:
            data = Packet(source, None, self._segment_bytes + DATA_OVERHEAD_BYTES, body.data)
            self._data(data, body.data, member)


def _any_control(payload: bytes) -> Control:
    """Decode a FILL's control header, which hosts refuse."""
    return decode_control(payload[:1] + bytes([Op.FILL_ACK]) + payload[2:])
