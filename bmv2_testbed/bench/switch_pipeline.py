"""kvcast's P4 program on p4switch, the pipeline alone: packets from memory into ports that only count. How fast the
switch forwards, serves a cached segment, and casts, on one core and apart from any network."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from bmv2_testbed.bench.switch_traffic import (
    FROM_SWITCH_DSCP,
    GROUP_MAC,
    HEAT_GETS,
    POOL_IP,
    POOL_MAC,
    SEGMENTS,
    TTL_US,
    ChunkTraffic,
    Host,
)
from bmv2_testbed.spec import Target
from bmv2_testbed.switches import program_of
from p4switch.bench.packets import Measurement, measured, rate
from p4switch.compiler import compile_program
from p4switch.runtime import Batch, Pipeline, Program, Status, Switch
from p4switch.values import ActionCall, Replica

MEMBERS = 8
SEGMENT_BYTES = 4096
GROUP_ALL, GROUP_CAST, SESSION_NEXT = 1, 2, 500
_MASK_ALL = (1 << MEMBERS) - 1


class _KvcastSwitch:
    """A switch with eight members, one chunk in its memory."""

    def __init__(self, switch: Switch, program: Program) -> None:
        self.switch, self._program = switch, program
        for port in range(1, MEMBERS + 2):
            switch.add_memory(port, discard=True)
        self._pipeline: Pipeline = switch.prepare(program)
        self.traffic = ChunkTraffic(Host(1), SEGMENT_BYTES)
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
        addresses = GROUP_MAC, self.traffic.fabric.group, POOL_MAC, POOL_IP
        fabric = self._call("set_fabric", *addresses, FROM_SWITCH_DSCP, TTL_US, TTL_US, HEAT_GETS)
        batch.set_default(self._table("fabric"), fabric)
        for port in range(1, MEMBERS + 1):
            host = Host(port)
            batch.insert(self._table("port_member"), [(port, 0)], self._call("set_member", host.member, host.bit))
            batch.insert(self._table("egress_member"), [(port, 0)], self._call("set_receiver", host.bit))
            batch.insert(self._table("dmac"), [(host.mac, 0)], self._call("forward", port))
            batch.insert(self._table("source"), [(part, 0) for part in (port, host.mac, host.ip)], self._call("known"))
            batch.insert(self._table("replicate"), [(host.bit, 0)], self._call("to_port", port))
        batch.insert(self._table("replicate"), [(_MASK_ALL, 0)], self._call("to_group", GROUP_CAST))
        for group in (GROUP_ALL, GROUP_CAST):
            batch.set_multicast_group(group, [Replica(port, 1) for port in range(1, MEMBERS + 1)])
        batch.set_clone_session(SESSION_NEXT, [Replica(1, 1)])
        self._commit(batch)

    def _fill(self) -> None:
        table, key = self._table("kv_cache"), int.from_bytes(self.traffic.key, "big")
        batch = self._pipeline.batch()
        batch.insert(table, [(key, 0)], self._call("filling", 0, SEGMENTS, 1))
        self._commit(batch)
        before = self.switch.port_stats(1).tx_packets
        for segment in range(SEGMENTS):
            self.switch.inject(1, self.traffic.fill(segment))
        if self.switch.port_stats(1).tx_packets - before != SEGMENTS:
            raise RuntimeError("the switch did not acknowledge what it was filled with")
        handle = self._pipeline.find(table, (key,))
        assert handle is not None
        batch.modify(table, handle, self._call("serving", 0, SEGMENTS))
        self._commit(batch)

    def gets(self, count: int) -> list[bytes]:
        """GETs of member 2, one for each first segment that leaves room for ``count``."""
        return [self.traffic.get(Host(2), first, count) for first in range(SEGMENTS - count + 1)]

    def join(self, ports: range) -> None:
        """These members want the chunk."""
        for port in ports:
            self.switch.inject(port, self.traffic.join(Host(port)))

    def sent(self) -> int:
        """Packets that have left."""
        return sum(self.switch.port_stats(port).tx_packets for port in range(1, MEMBERS + 2))


@contextmanager
def _kvcast_switch() -> Iterator[_KvcastSwitch]:
    program = Program.load(compile_program(program_of(Target.P4SWITCH)).shared_object_path)
    with Switch() as switch:
        yield _KvcastSwitch(switch, program)


def _copies(made: _KvcastSwitch, port: int, frame: bytes, expected: int) -> None:
    """Make sure that the benchmark measures what its name says."""
    before = made.sent()
    made.switch.inject(port, frame)
    if made.sent() - before != expected:
        raise RuntimeError(f"{made.sent() - before} packets left the switch, not {expected}")


def run_switch_pipeline() -> Iterator[Measurement]:
    """Figures of kvcast.p4, one after the other. A packet here is one that leaves or, recirculated, one segment."""
    with _kvcast_switch() as made:
        switch = made.switch
        plain = Host(2).mac.to_bytes(6, "big") + Host(3).mac.to_bytes(6, "big") + b"\x90\x00" + bytes(50)
        _copies(made, 3, plain, 1)
        yield measured("kvcast.p4: L2, 64 B", rate(switch, [plain]))
        made.join(range(2, 3))
        _copies(made, 2, made.gets(1)[0], 1)
        alone = measured("kvcast.p4: GET of a 4 KiB segment", _rate_of(made, 2, made.gets(1)))
        yield alone
        _copies(made, 2, made.gets(SEGMENTS)[0], SEGMENTS)
        seconds = _rate_of(made, 2, made.gets(SEGMENTS)) / SEGMENTS
        yield measured(f"kvcast.p4: GET of {SEGMENTS} segments, each", seconds, alone)
        _copies(made, 1, made.traffic.cast(), 1)
        one = measured("kvcast.p4: cast of 4 KiB to one member", rate(switch, [made.traffic.cast()]))
        yield one
        made.join(range(1, MEMBERS + 1))
        _copies(made, 1, made.traffic.cast(), MEMBERS - 1)
        yield measured(f"kvcast.p4: cast of 4 KiB to {MEMBERS - 1} members", rate(switch, [made.traffic.cast()]), one)
        _copies(made, 2, made.gets(1)[0], MEMBERS)
        yield measured(f"kvcast.p4: GET of 4 KiB, to {MEMBERS} members", _rate_of(made, 2, made.gets(1)), alone)


def _rate_of(made: _KvcastSwitch, port: int, frames: list[bytes]) -> float:
    return rate(made.switch, frames, port)
