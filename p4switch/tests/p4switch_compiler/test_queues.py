"""What a program sees of the queue of its port: depths, times and priorities, on a virtual clock."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest

from p4switch.runtime import Queue, Shape
from p4switch.values import Replica
from p4switch_compiler.conftest import Bench
from p4switch_compiler.programs import program

FIELDS = "bit<16> number; bit<8> level; bit<8> pad; bit<32> enq; bit<32> deq; bit<32> waited; bit<32> at;"
TELLS = (
    "h.d.enq = (bit<32>)s.enq_qdepth; h.d.deq = (bit<32>)s.deq_qdepth;"
    " h.d.waited = s.deq_timedelta; h.d.at = s.enq_timestamp;"
)
PACKET_BYTES = 1000
PACKET_US = 8000  # at a Mbit/s
ONE_PACKET = Shape(rate_bits=1_000_000, burst_bytes=PACKET_BYTES, queue_bytes=1 << 20)


@dataclass(frozen=True, slots=True)
class Told:
    """What the program wrote into a packet."""

    number: int
    enq: int
    deq: int
    waited: int
    at: int


def packet(number: int, level: int = 0) -> bytes:
    return (number.to_bytes(2) + bytes([level])).ljust(PACKET_BYTES, b"\0")


def told(frames: list[tuple[int, bytes]]) -> list[Told]:
    return [Told(int.from_bytes(f[:2]), *(int.from_bytes(f[at : at + 4]) for at in (4, 8, 12, 16))) for _, f in frames]


def test_depths_and_times_are_those_of_the_queue(bench: Callable[[str], Bench]) -> None:
    b = bench(program(fields=FIELDS, egress=TELLS))
    b.switch.set_shape(1, ONE_PACKET)
    sent = b.switch.now_us()
    for number in range(5):
        b.switch.inject(0, packet(number))
    b.switch.advance(5 * PACKET_US)
    seen = told(b.switch.collect(1))
    assert [t.number for t in seen] == [0, 1, 2, 3, 4]
    assert [t.enq for t in seen] == [0, 0, 1, 2, 3]  # the first one found the port free
    assert [t.deq for t in seen] == [0, 3, 2, 1, 0]
    assert [t.waited for t in seen] == [n * PACKET_US for n in range(5)]
    assert {t.at for t in seen} == {sent}


def test_a_program_that_looks_at_no_queue_runs_egress_at_once(bench: Callable[[str], Bench]) -> None:
    tells = "h.d.waited = (bit<32>)s.egress_global_timestamp;"
    b = bench(program(fields=FIELDS, egress=tells))
    b.switch.set_shape(1, ONE_PACKET)
    b.switch.advance(100)
    sent = b.switch.now_us()
    for number in range(3):
        b.switch.inject(0, packet(number))
    b.switch.advance(3 * PACKET_US)
    assert [t.waited for t in told(b.switch.collect(1))] == [sent] * 3


def test_a_full_queue_drops_what_comes(bench: Callable[[str], Bench]) -> None:
    b = bench(program(fields=FIELDS, egress=TELLS))
    b.switch.set_shape(1, ONE_PACKET)
    b.switch.set_queue(1, Queue(packets=2))
    for number in range(5):
        b.switch.inject(0, packet(number))
    assert b.switch.port_stats(1).tx_queue_dropped == 2
    b.switch.advance(5 * PACKET_US)
    assert [t.number for t in told(b.switch.collect(1))] == [0, 1, 2]


def test_the_bytes_of_a_queue_are_bounded(bench: Callable[[str], Bench]) -> None:
    b = bench(program(fields=FIELDS, egress=TELLS))
    b.switch.set_shape(1, ONE_PACKET)
    b.switch.set_queue(1, Queue(bytes=3 * PACKET_BYTES))
    for number in range(6):
        b.switch.inject(0, packet(number))
    assert b.switch.port_stats(1).tx_queue_dropped == 2


def test_the_highest_priority_goes_first(bench: Callable[[str], Bench]) -> None:
    b = bench(program("s.priority = (bit<3>)h.d.level;", fields=FIELDS))
    b.switch.set_shape(1, ONE_PACKET)
    b.switch.set_queue(1, Queue(priorities=3))
    for number, level in enumerate([0, 0, 1, 2, 0, 7]):  # 7: the highest that there is
        b.switch.inject(0, packet(number, level))
    b.switch.advance(6 * PACKET_US)
    assert [t.number for t in told(b.switch.collect(1))] == [0, 3, 5, 2, 1, 4]
    b.switch.set_queue(1, Queue())
    for number, level in enumerate([0, 0, 1]):
        b.switch.inject(0, packet(number, level))
    b.switch.advance(3 * PACKET_US)
    assert [t.number for t in told(b.switch.collect(1))] == [0, 1, 2]


def test_copies_wait_each_at_its_own_port(bench: Callable[[str], Bench]) -> None:
    b = bench(program("s.mcast_grp = 5;", fields=FIELDS, egress=TELLS))
    batch = b.pipeline.batch()
    batch.set_multicast_group(5, [Replica(1), Replica(2)])
    batch.commit()
    b.switch.set_shape(1, ONE_PACKET)
    for number in range(3):
        b.switch.inject(0, packet(number))
    assert [t.enq for t in told(b.switch.collect(2))] == [0, 0, 0]
    b.switch.advance(3 * PACKET_US)
    assert [t.waited for t in told(b.switch.collect(1))] == [0, PACKET_US, 2 * PACKET_US]


def test_what_egress_drops_takes_no_time_of_the_port(bench: Callable[[str], Bench]) -> None:
    b = bench(program(fields=FIELDS, egress=TELLS + " if (h.d.level == 1) mark_to_drop(s);"))
    b.switch.set_shape(1, ONE_PACKET)
    for number, level in enumerate([0, 1, 1, 0]):
        b.switch.inject(0, packet(number, level))
    b.switch.advance(PACKET_US)
    assert [(t.number, t.waited) for t in told(b.switch.collect(1))] == [(0, 0), (3, PACKET_US)]


@pytest.mark.parametrize("goes", ["port", "program"])
def test_waiting_packets_go_with_their_port_and_their_program(bench: Callable[[str], Bench], goes: str) -> None:
    b = bench(program(fields=FIELDS, egress=TELLS))
    b.switch.set_shape(1, ONE_PACKET)
    for number in range(4):
        b.switch.inject(0, packet(number))
    assert len(b.switch.collect(1)) == 1
    if goes == "port":
        b.switch.remove_port(1)
        b.switch.add_memory(1)
    else:
        b.switch.commit(b.pipeline)
    b.switch.advance(10 * PACKET_US)
    assert b.switch.collect(1) == []


@pytest.mark.parametrize("queue", [Queue(packets=0), Queue(packets=1025), Queue(priorities=9), Queue(bytes=-1)])
def test_bounds_of_a_queue(bench: Callable[[str], Bench], queue: Queue) -> None:
    with pytest.raises(ValueError, match="1 to 1024 packets, 1 to 8 priorities"):
        bench(program()).switch.set_queue(1, queue)
