"""kvcast's P4 program on p4switch, the pipeline alone: packets from memory into ports that only count. How fast the
switch forwards, serves a cached segment, and casts, on one core and apart from any network."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from kvproto.ids import Address, ChunkKey
from kvproto.wire import layouts
from kvproto.wire.control import Control, Op
from kvproto.wire.data import ChunkFraming, Fabric
from p4switch.bench.pipeline import Measurement, measured, rate
from p4switch.compiler import compile_program
from p4switch.runtime import Batch, Pipeline, Program, Status, Switch
from p4switch.values import ActionCall, Replica

PROGRAM = Path(__file__).resolve().parents[2] / "p4" / "v1model" / "kvcast.p4"
MEMBERS = 8
SEGMENTS = 8
GROUP_ALL, GROUP_CAST, SESSION_NEXT = 1, 2, 500
_MASK_ALL = (1 << MEMBERS) - 1
_POOL_MAC = 0x02_4B_56_00_FF_FE
_POOL_IP = 0x0A_4B_FF_FE
_GROUP_MAC = 0x01_00_5E_4B_56_01
_SOURCE_PORT = 0xC000
_TTL_US = 60_000_000


@dataclass(frozen=True, slots=True)
class _Host:
    """The host at a port."""

    port: int

    @property
    def mac(self) -> int:
        return 0x02_4B_56_00_00_00 + self.port

    @property
    def ip(self) -> int:
        return 0x0A_4B_00_00 + self.port

    @property
    def bit(self) -> int:
        return 1 << (self.port - 1)


def _frame(sender: _Host, dst_mac: int, dst_ip: int, dst_port: int, payload: bytes, src_port: int) -> bytes:
    ethernet = layouts.Ethernet(dst_mac, sender.mac, 0x0800).pack()
    ipv4 = layouts.Ipv4(
        version=4, ihl=5, total_length=28 + len(payload), flags=2, ttl=64, protocol=17, src=sender.ip, dst=dst_ip
    ).pack()
    udp = src_port.to_bytes(2, "big") + dst_port.to_bytes(2, "big") + (8 + len(payload)).to_bytes(2, "big") + b"\0\0"
    return ethernet + ipv4 + udp + payload


class _KvcastSwitch:
    """A switch with eight members, one chunk in its memory."""

    def __init__(self, switch: Switch, program: Program) -> None:
        self.switch, self._program = switch, program
        for port in range(1, MEMBERS + 2):
            switch.add_memory(port, discard=True)
        self._pipeline: Pipeline = switch.prepare(program)
        self.fabric = Fabric()
        self.key = ChunkKey(bytes(range(16)))
        chunk = memoryview(bytes(range(256)) * (SEGMENTS * self.fabric.segment_bytes // 256))
        self._framing = ChunkFraming(self.key, chunk, self.fabric, Address(_Host(1).ip), _SOURCE_PORT)
        self._attach()
        switch.commit(self._pipeline)
        self._fill()

    def _table(self, name: str) -> int:
        return next(table.index for table in self._program.tables if table.name.endswith(f".{name}"))

    def _call(self, name: str, *arguments: int) -> ActionCall:
        return ActionCall(
            next(action.index for action in self._program.actions if action.name.endswith(f".{name}")), arguments
        )

    def _commit(self, batch: Batch) -> None:
        if any(result.status is not Status.OK for result in batch.commit()):
            raise RuntimeError("the switch refused an entry of the benchmark")

    def _attach(self) -> None:
        batch = self._pipeline.batch()
        fabric = self._call("set_fabric", _GROUP_MAC, self.fabric.group, _POOL_MAC, _POOL_IP, 0x2A, _TTL_US, _TTL_US, 4)
        batch.set_default(self._table("fabric"), fabric)
        for port in range(1, MEMBERS + 1):
            host = _Host(port)
            batch.insert(self._table("port_member"), [(port, 0)], self._call("set_member", port - 1, host.bit))
            batch.insert(self._table("egress_member"), [(port, 0)], self._call("set_receiver", host.bit))
            batch.insert(self._table("dmac"), [(host.mac, 0)], self._call("forward", port))
            batch.insert(self._table("replicate"), [(host.bit, 0)], self._call("to_port", port))
        batch.insert(self._table("replicate"), [(_MASK_ALL, 0)], self._call("to_group", GROUP_CAST))
        for group in (GROUP_ALL, GROUP_CAST):
            batch.set_multicast_group(group, [Replica(port, 1) for port in range(1, MEMBERS + 1)])
        batch.set_clone_session(SESSION_NEXT, [Replica(1, 1)])
        self._commit(batch)

    def _fill(self) -> None:
        table, key = self._table("kv_cache"), int.from_bytes(self.key, "big")
        batch = self._pipeline.batch()
        batch.insert(table, [(key, 0)], self._call("filling", 0, SEGMENTS, 1))
        self._commit(batch)
        holder = _Host(1)
        before = self.switch.port_stats(1).tx_packets
        for segment in range(SEGMENTS):
            fill = Control(Op.FILL, self.key, SEGMENTS, segment).encode() + self._framing.datagram(segment)
            self.switch.inject(1, _frame(holder, _POOL_MAC, _POOL_IP, layouts.UDP_PORT_CONTROL, fill, _SOURCE_PORT))
        if self.switch.port_stats(1).tx_packets - before != SEGMENTS:
            raise RuntimeError("the switch did not acknowledge what it was filled with")
        handle = self._pipeline.find(table, (key,))
        assert handle is not None
        batch.modify(table, handle, self._call("serving", 0, SEGMENTS))
        self._commit(batch)

    def control(self, port: int, control: Control) -> bytes:
        """A control datagram from a member to the holder."""
        holder = _Host(1)
        return _frame(
            _Host(port), holder.mac, holder.ip, layouts.UDP_PORT_CONTROL, control.encode(), layouts.UDP_PORT_CONTROL
        )

    def gets(self, count: int) -> list[bytes]:
        """GETs of member 2, one for each first segment that leaves room for ``count``."""
        firsts = range(SEGMENTS - count + 1)
        return [self.control(2, Control(Op.GET, self.key, SEGMENTS, first, count)) for first in firsts]

    def cast(self) -> bytes:
        """A data datagram of the holder, to the fabric's group."""
        return _frame(
            _Host(1), _GROUP_MAC, self.fabric.group, layouts.UDP_PORT_ROCE, self._framing.datagram(0), _SOURCE_PORT
        )

    def join(self, ports: range) -> None:
        """These members want the chunk."""
        for port in ports:
            self.switch.inject(port, self.control(port, Control(Op.JOIN, self.key, SEGMENTS)))

    def sent(self) -> int:
        """Packets that have left."""
        return sum(self.switch.port_stats(port).tx_packets for port in range(1, MEMBERS + 2))


@contextmanager
def _kvcast_switch() -> Iterator[_KvcastSwitch]:
    program = Program.load(compile_program(PROGRAM).shared_object_path)
    with Switch() as switch:
        yield _KvcastSwitch(switch, program)


def _copies(made: _KvcastSwitch, port: int, frame: bytes, expected: int) -> None:
    """Makes sure that what is measured is what its name says."""
    before = made.sent()
    made.switch.inject(port, frame)
    if made.sent() - before != expected:
        raise RuntimeError(f"{made.sent() - before} packets left the switch, not {expected}")


def run_switch_pipeline() -> Iterator[Measurement]:
    """Figures of kvcast.p4, one after the other. A packet here is one that leaves or, recirculated, one segment."""
    with _kvcast_switch() as made:
        switch = made.switch
        plain = _Host(2).mac.to_bytes(6, "big") + _Host(3).mac.to_bytes(6, "big") + b"\x90\x00" + bytes(50)
        _copies(made, 3, plain, 1)
        yield measured("kvcast.p4: L2, 64 B", rate(switch, [plain]))
        _copies(made, 2, made.gets(1)[0], 1)
        alone = measured("kvcast.p4: GET of a 4 KiB segment", _rate_of(made, 2, made.gets(1)))
        yield alone
        _copies(made, 2, made.gets(SEGMENTS)[0], SEGMENTS)
        seconds = _rate_of(made, 2, made.gets(SEGMENTS)) / SEGMENTS
        yield measured(f"kvcast.p4: GET of {SEGMENTS} segments, each", seconds, alone)
        made.join(range(2, 3))
        _copies(made, 1, made.cast(), 1)
        one = measured("kvcast.p4: cast of 4 KiB to one member", rate(switch, [made.cast()]))
        yield one
        made.join(range(1, MEMBERS + 1))
        _copies(made, 1, made.cast(), MEMBERS - 1)
        yield measured(f"kvcast.p4: cast of 4 KiB to {MEMBERS - 1} members", rate(switch, [made.cast()]), one)
        _copies(made, 2, made.gets(1)[0], MEMBERS)
        yield measured(f"kvcast.p4: GET of 4 KiB, to {MEMBERS} members", _rate_of(made, 2, made.gets(1)), alone)


def _rate_of(made: _KvcastSwitch, port: int, frames: list[bytes]) -> float:
    return rate(made.switch, frames, port)
