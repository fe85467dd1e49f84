"""kvcast's program for Tofino when its recirculation queue overflows: what is lost is noticed, asked of its holder, and
enters again. On a virtual clock, so that "not seen for 17 ms" is what the test says it is."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from p4switch.compiler import compile_program
from p4switch.runtime import SwitchConfig
from p4switch.values import ActionCall
from p4switch_tna.tna_bench import ROUND, TnaBench
from tests.dataplane.frames import (
    CONTROL_PORT,
    FROM_SWITCH_DSCP,
    GROUP_IP,
    GROUP_MAC,
    POOL_IP,
    POOL_MAC,
    Control,
    Host,
    Op,
    Segment,
    control_frame,
    parse,
)

PROGRAM = Path(__file__).resolve().parents[2] / "p4" / "tna" / "kvcast.p4"
SIZES = {"SEGMENT_BYTES": "1024", "INTEREST": "4096", "SLOTS": "256", "HEAT_CELLS": "1024", "ORBIT_LOST_TICKS": "256"}
SEGMENT_BYTES = 1024
FRAME_BYTES = 98 + SEGMENT_BYTES
LOST_US = 256 * 66
ROUND_US = 1000  # longer than any round here
HOLDER, READER = 1, 2
FLOOD, SESSION = 0x8000, 500
ALL_MEMBERS_US = 60_000_000


class KvcastBench(TnaBench):
    """Two members, the holder on port 1 and a reader on port 2; the queue has room for so many segments."""

    def __init__(self, room: int) -> None:
        config = SwitchConfig(
            virtual_clock=True,
            recirculation_ports=(ROUND,),
            recirculation_rate_bits=1_000_000_000,
            recirculation_queue_bytes=room * FRAME_BYTES + 200,  # and a control datagram
        )
        super().__init__(compile_program(PROGRAM, SIZES), config)
        self.group(FLOOD, [(HOLDER, 0), (READER, 0)])
        self.session(SESSION, ROUND, 86)
        self.default(
            "fabric",
            "set_fabric",
            group_mac=int.from_bytes(GROUP_MAC, "big"),
            group_ip=int.from_bytes(GROUP_IP, "big"),
            pool_mac=int.from_bytes(POOL_MAC, "big"),
            pool_ip=int.from_bytes(POOL_IP, "big"),
            from_switch_dscp=FROM_SWITCH_DSCP,
            interest_ttl_us=ALL_MEMBERS_US,
            heat_window_us=ALL_MEMBERS_US,
            heat_gets=9,
        )
        for port in (HOLDER, READER):
            host = Host(port)
            self.entry("port_member", port, "set_member", member=host.member, member_bit=host.bit)
            self.entry("egress_member", port, "set_receiver", member_bit=host.bit)
            mac, ip = int.from_bytes(host.mac, "big"), int.from_bytes(host.ip, "big")
            self.entry("dmac", mac, "forward", port=port)
            self.entry("station", mac, "stands_at", port=port)
            self.insert("source", (port, mac, ip), "known")
            self.entry("address", ip, "taken")
        self.switch.advance(2 * LOST_US)  # cells start with a time that was long ago

    def call(self, name: str, given: dict[str, int]) -> ActionCall:
        (action,) = (a for a in self.pipeline.program.actions if a.name.rsplit(".", 1)[-1] == name)
        return ActionCall(action.index, tuple(given.get(p.name, 0) for p in action.params))

    def table(self, name: str) -> int:
        (found,) = (t.index for t in self.pipeline.program.tables if t.name.rsplit(".", 1)[-1] == name)
        return found

    def default(self, table: str, action: str, **given: int) -> None:
        batch = self.pipeline.batch()
        batch.set_default(self.table(table), self.call(action, given))
        batch.commit()

    def entry(self, table: str, key: int, action: str, **given: int) -> None:
        """One entry in place of any that the key had."""
        batch = self.pipeline.batch()
        for old in self.pipeline.entries(self.table(table)):
            if old.match[0][0] == key:
                batch.delete(self.table(table), old.handle)
        batch.insert(self.table(table), [(key, 0)], self.call(action, given))
        batch.commit()

    def insert(self, table: str, keys: tuple[int, ...], action: str) -> None:
        batch = self.pipeline.batch()
        batch.insert(self.table(table), [(key, 0) for key in keys], self.call(action, {}))
        batch.commit()

    def chunk(self, segments: list[Segment], action: str, base_slot: int) -> None:
        key = int.from_bytes(segments[0].key, "big")
        self.entry("kv_cache", key, action, base_slot=base_slot, segments=len(segments), port=HOLDER)

    def exchange(self, port: int, *frames: bytes) -> list[tuple[int, bytes]]:
        """Frames in, and everything that comes out within some rounds."""
        for octets in frames:
            self.switch.inject(port, octets)
        self.switch.advance(3 * ROUND_US)
        return self.switch.collect()

    def fill(self, segments: list[Segment], base_slot: int) -> list[int]:
        """FILLs a chunk; the segments that were acknowledged."""
        self.chunk(segments, "filling", base_slot)
        sent = self.exchange(HOLDER, *(s.fill_frame() for s in segments))
        self.chunk(segments, "serving", base_slot)
        return [parse(octets).control.segment for port, octets in sent if port == HOLDER]

    def get(self, key: bytes, segment: int, segments: int) -> list[tuple[int, bytes]]:
        control = Control(Op.GET, key, segment, segments, count=1)
        join = Control(Op.JOIN, key, segments=segments)
        frames = [control_frame(Host(READER), one, Host(HOLDER)) for one in (join, control)]
        return [(port, octets) for port, octets in self.exchange(READER, *frames) if _is_no_notice(octets)]


def _is_no_notice(octets: bytes) -> bool:
    datagram = parse(octets)
    return datagram.dst_port != CONTROL_PORT or datagram.control.op != Op.NOTICE


def chunk(name: int, amount: int) -> list[Segment]:
    key = bytes([name] * 16)
    return [Segment(Host(HOLDER), key, i, amount, bytes([name, i]) * (SEGMENT_BYTES // 2)) for i in range(amount)]


@pytest.fixture
def bench() -> Iterator[KvcastBench]:
    made = KvcastBench(room=6)
    yield made
    made.switch.close()


def test_what_is_lost_on_its_round_is_noticed_and_enters_again(bench: KvcastBench) -> None:
    first, second = chunk(1, 4), chunk(2, 4)
    assert sorted(bench.fill(first, 0)) == [0, 1, 2, 3]
    assert bench.switch.stats().recirculation_lost == 0
    bench.fill(second, 8)
    lost = bench.switch.stats().recirculation_lost
    assert lost > 0, "eight segments have found room for six"

    bench.switch.advance(LOST_US)
    missing = []
    for segments in (first, second):
        for segment in segments:
            ((port, octets),) = bench.get(segment.key, segment.segment, 4)
            if port == READER:
                assert octets[34:] == segment.frame()[34:], "UDP to ICRC as its holder casts it"
            else:
                assert (port, parse(octets).control.op) == (HOLDER, Op.GET)
                missing.append(segment)
    assert 2 <= len(missing) <= lost
    reports = [values for name, values in bench.digests() if name == "lost_report_t"]
    assert reports == [(int.from_bytes(s.key, "big"), s.segment) for s in missing]

    # The controller takes the second chunk out; what is missing of the first is filled in and comes by again.
    bench.chunk(second, "absent", 8)
    bench.switch.advance(3 * ROUND_US)
    bench.fill(first, 0)
    assert [port for s in first for port, _ in bench.get(s.key, s.segment, 4)] == [READER] * 4
    assert bench.switch.stats().recirculating == 4
