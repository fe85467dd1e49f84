"""Three that keep interest, behind one seam: the P4 programs in a switch, the simulator's switch, a keeper.

Members are numbered as in the data plane's suite: the host on port p is member p - 1, and port 1 is the holder's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import NamedTuple, Protocol

from kvchunk.ids import ChunkKey
from kvproto.ids import Address, Member
from kvproto.session.interest import InterestTable
from kvproto.session.keeper import NEWS_WAIT_NS, Keeper
from kvproto.wire.control import Control, Flag, Op, decode_control
from kvsim.bodies import CONTROL_BYTES, ControlBody, DataBody
from kvsim.chance import Chance
from kvsim.engine import Engine
from kvsim.link import Link, Packet
from kvsim.switch import SwitchModel
from tests.dataplane import frames
from tests.dataplane.bench import MEMBER_PORTS, STRANGER_PORT, Bench, counts
from tests.dataplane.frames import Host, control_frame, parse
from tests.dataplane.targets import INTEREST_OF_PORT

HOLDER = 1
SEGMENTS = 8
TTL_NS = 60_000_000_000
ENTRIES_OF_MEMBER = INTEREST_OF_PORT


class Told(NamedTuple):
    """What a NOTICE says."""

    flags: Flag
    member: int
    members: int
    leader: int
    tag: int


class InterestKeeper(Protocol):
    """What is tested."""

    begins_anew: bool
    """A JOIN finds a chunk's old entry empty. Tofino's ticks of 65 us are too long for the test to see that."""

    def say(self, port: int, control: Control) -> Mapping[int, Told]:
        """A control datagram from a port's host to the holder: the NOTICEs that follow, by port."""

    def asks(self, port: int, key: ChunkKey, flags: Flag = Flag.NONE) -> bool:
        """A GET: whether it is listened to."""

    def cast(self, key: ChunkKey) -> set[int]:
        """A segment leaves the holder: the ports that get it."""

    def expire(self) -> None:
        """More time than one to live passes."""

    def key(self) -> ChunkKey:
        """One that no other has the place of."""


def address(port: int) -> Address:
    return Address(int.from_bytes(Host(port).ip, "big"))


def told(notice: Control) -> Told:
    assert notice.op is Op.NOTICE
    return Told(notice.flags, notice.member, notice.members, notice.count, notice.tag)


class OfKeeper:
    """`kvproto.session.keeper`, with a clock that is moved."""

    begins_anew = True

    def __init__(self) -> None:
        self._now_ns = 1
        self._keys = 0
        self._keeper = Keeper(InterestTable(TTL_NS, ENTRIES_OF_MEMBER), self, Member(HOLDER - 1))

    def member_at(self, at: Address) -> Member | None:
        return next((Member(port - 1) for port in MEMBER_PORTS if address(port) == at), None)

    def address_of(self, member: Member) -> Address | None:
        return address(member + 1)

    def say(self, port: int, control: Control) -> Mapping[int, Told]:
        if control.op is Op.JOIN:
            self._keeper.join(control, address(port), self._now_ns)
        else:
            self._keeper.leave(control, address(port), self._now_ns)
        self._now_ns += NEWS_WAIT_NS
        sent = self._keeper.take(self._now_ns)
        assert self._keeper.next_timeout_ns() is None, "nothing rings when nothing is due"
        found = {port: told(one.message) for one in sent for port in MEMBER_PORTS if address(port) == one.address}
        assert len(found) == len(sent), "one NOTICE to each"
        return found

    def asks(self, port: int, key: ChunkKey, flags: Flag = Flag.NONE) -> bool:
        get = Control(Op.GET, key, SEGMENTS, count=1, flags=flags, member=63)
        taken = self._keeper.may_ask(get, address(port), self._now_ns)
        assert taken is None or taken.member == port - 1
        return taken is not None

    def cast(self, key: ChunkKey) -> set[int]:
        to = self._keeper.cast(key, self._now_ns)
        return {port for port in MEMBER_PORTS if to >> (port - 1) & 1}

    def expire(self) -> None:
        self._now_ns += TTL_NS + 1

    def key(self) -> ChunkKey:
        self._keys += 1
        return ChunkKey(self._keys.to_bytes(16, "big"))


class OfSimulator:
    """`kvsim.switch`."""

    begins_anew = True

    def __init__(self) -> None:
        self._engine = Engine()
        self._keys = 0
        sizes = (1 << 20, TTL_NS, 4096)
        self._switch = SwitchModel(self._engine, *sizes, entries_of_port=ENTRIES_OF_MEMBER)
        self._came: list[tuple[int, Packet]] = []
        for port in MEMBER_PORTS:
            link = Link(1e12, 0, 1 << 40, Chance(0))
            self._switch.attach(Member(port - 1), address(port), link, _Port(port, self._came))

    def _exchange(self, port: int, body: object, destination: Address | None) -> list[tuple[int, Packet]]:
        self._came.clear()
        member = None if port == STRANGER_PORT else Member(port - 1)
        if member is not None:  # what stands at no member's port, the model does not know
            self._switch.receive(Packet(address(port), destination, CONTROL_BYTES, body), member)
        return self._came[:]

    def say(self, port: int, control: Control) -> Mapping[int, Told]:
        came = self._exchange(port, ControlBody(control.encode()), address(HOLDER))
        return {port: told(decode_control(packet.body.payload)) for port, packet in came}  # type: ignore[attr-defined]

    def asks(self, port: int, key: ChunkKey, flags: Flag = Flag.NONE) -> bool:
        get = Control(Op.GET, key, SEGMENTS, count=1, flags=flags)
        return [at for at, _ in self._exchange(port, ControlBody(get.encode()), address(HOLDER))] == [HOLDER]

    def cast(self, key: ChunkKey) -> set[int]:
        body = DataBody(key, 0, SEGMENTS, 1, address(HOLDER))
        return {port for port, _ in self._exchange(HOLDER, body, None)}

    def expire(self) -> None:
        self._engine.run(self._engine.now_ns + TTL_NS + 1, lambda: False)

    def key(self) -> ChunkKey:
        self._keys += 1
        return ChunkKey(self._keys.to_bytes(16, "big"))


class _Port:
    def __init__(self, port: int, came: list[tuple[int, Packet]]) -> None:
        self._port, self._came = port, came

    def deliver(self, packet: Packet, _: int) -> None:
        self._came.append((self._port, packet))


class OfProgram:
    """A P4 program in a switch."""

    def __init__(self, bench: Bench) -> None:
        self._bench = bench
        self.begins_anew = not bench.target.profile.circulates

    def say(self, port: int, control: Control) -> Mapping[int, Told]:
        frame = control_frame(Host(port), _as_frame(control), Host(HOLDER))
        found = {}
        for at, (received,) in self._bench.exchange((port, frame)).items():
            notice = parse(received).control
            assert notice.op == frames.Op.NOTICE
            found[at] = Told(Flag(notice.flags), notice.member, notice.members, notice.count, notice.tag)
        return found

    def asks(self, port: int, key: ChunkKey, flags: Flag = Flag.NONE) -> bool:
        get = frames.Control(frames.Op.GET, key, 0, SEGMENTS, count=1, flags=frames.Flag(flags))
        return counts(self._bench.control(port, get, HOLDER)) == {HOLDER: 1}

    def cast(self, key: ChunkKey) -> set[int]:
        segment = self._bench.segments(key, SEGMENTS, holder=HOLDER)[0]
        return set(self._bench.exchange((HOLDER, segment.frame())))

    def expire(self) -> None:
        """From now on all that is there is too old."""
        self._bench.fabric(ttl_us=1)

    def key(self) -> ChunkKey:
        return ChunkKey(self._bench.key())


def _as_frame(control: Control) -> frames.Control:
    return frames.Control(
        frames.Op(control.op),
        control.key,
        control.segment,
        control.segments,
        count=control.count,
        tag=control.tag,
        member=control.member,
    )


MAKERS: Mapping[str, Callable[[], InterestKeeper]] = {"keeper": OfKeeper, "simulator": OfSimulator}


def join(key: ChunkKey, tag: int = 0, **fields: int) -> Control:
    return replace(Control(Op.JOIN, key, SEGMENTS, tag=tag), **fields)


def leave(key: ChunkKey) -> Control:
    return Control(Op.LEAVE, key, SEGMENTS)
