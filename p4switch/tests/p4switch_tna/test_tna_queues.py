"""What a TNA program sees of the queue in front of its egress: depths in cells, times, and its queue id."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest

from p4switch.runtime import Queue, Shape
from p4switch_tna.tna_bench import TO_PORT_1, TnaBench, frame, program

Make = Callable[..., TnaBench]
PACKET_BYTES = 1000
PACKET_US = 8000  # at a Mbit/s
CELLS = 13  # 1,000 bytes in cells of 80
ONE_PACKET = Shape(rate_bits=1_000_000, burst_bytes=PACKET_BYTES, queue_bytes=1 << 20)
TOLD_BYTES = 16
TELLS = (
    "h.x.setValid(); h.x.bits = 13w0 ++ eg.enq_qdepth ++ 13w0 ++ eg.deq_qdepth"
    " ++ 14w0 ++ eg.deq_timedelta ++ 14w0 ++ eg.enq_tstamp;"
)
TO_QUEUE = TO_PORT_1 + "tm.qid = h.d.a[4:0];"


@dataclass(frozen=True, slots=True)
class Told:
    """What the program wrote in front of a packet; times in ns."""

    number: int
    enq: int
    deq: int
    waited: int
    at: int


def packet(number: int, queue: int = 0) -> bytes:
    return frame(queue, number).ljust(PACKET_BYTES, b"\0")


def told(frames: list[tuple[int, bytes]]) -> list[Told]:
    return [
        Told(f[TOLD_BYTES + 1], *(int.from_bytes(f[at : at + 4]) for at in range(0, TOLD_BYTES, 4))) for _, f in frames
    ]


def slow(tna: Make, text: str) -> TnaBench:
    """A bench whose port 1 sends a packet in PACKET_US."""
    bench = tna(text)
    bench.switch.set_shape(1, ONE_PACKET)
    return bench


def test_depths_and_times_are_those_of_the_queue(tna: Make) -> None:
    bench = slow(tna, program(TO_QUEUE, egress_parser="pkt.extract(h.d);", egress=TELLS))
    bench.switch.advance(PACKET_US)
    sent_ns = bench.switch.now_us() * 1000 & 0x3FFFF
    for number in range(5):
        bench.switch.inject(0, packet(number))
    # What the program adds is sent as well: a packet of 1,016 bytes behind a bucket of 1,000 is one of 1,000.
    bench.switch.advance(5 * PACKET_US)
    seen = told(bench.switch.collect(1))
    assert [t.number for t in seen] == [0, 1, 2, 3, 4]
    assert [t.enq for t in seen] == [0, 0, CELLS, 2 * CELLS, 3 * CELLS]  # the first one found the port free
    assert [t.deq for t in seen] == [0, 3 * CELLS, 2 * CELLS, CELLS, 0]
    assert [t.waited for t in seen] == [n * PACKET_US * 1000 & 0x3FFFF for n in range(5)]
    assert {t.at for t in seen} == {sent_ns}


@pytest.mark.parametrize("reads", ["h.d.d = (bit<32>) eg.deq_qdepth;", "h.d.d = (bit<32>) eg.egress_port;"])
def test_only_programs_that_look_at_queues_wait_before_egress(tna: Make, reads: str) -> None:
    times = "h.d.c = (bit<16>) (prsr.global_tstamp >> 10);"
    bench = slow(tna, program(TO_QUEUE, egress_parser="pkt.extract(h.d);", egress=reads + times))
    for number in range(3):
        bench.switch.inject(0, packet(number))
    bench.switch.advance(3 * PACKET_US)
    at = [int.from_bytes(f[2:4]) for _, f in bench.switch.collect(1)]
    assert len(at) == 3
    assert (at[0] < at[1] < at[2]) == ("deq_qdepth" in reads)


def test_a_key_of_a_table_looks_at_queues_too(tna: Make) -> None:
    table = "action mark() { h.d.d = 7; } table deep { key = { eg.enq_qdepth: range; } actions = { mark; NoAction; }"
    table += f" const entries = {{ {CELLS} .. 100000: mark(); }} default_action = NoAction; size = 4; }}"
    text = program(TO_QUEUE, egress_parser="pkt.extract(h.d);", egress_locals=table, egress="deep.apply();")
    bench = slow(tna, text)
    for number in range(4):
        bench.switch.inject(0, packet(number))
    bench.switch.advance(4 * PACKET_US)
    assert [f[7] for _, f in bench.switch.collect(1)] == [0, 0, 7, 7]


def test_the_highest_queue_goes_first_and_has_a_depth_of_its_own(tna: Make) -> None:
    bench = slow(tna, program(TO_QUEUE, egress_parser="pkt.extract(h.d);", egress=TELLS))
    bench.switch.set_queue(1, Queue(priorities=3))
    for number, queue in enumerate([0, 0, 1, 2, 0, 31]):  # 31: the highest that there is
        bench.switch.inject(0, packet(number, queue))
    bench.switch.advance(6 * PACKET_US)
    seen = told(bench.switch.collect(1))
    assert [t.number for t in seen] == [0, 3, 5, 2, 1, 4]
    assert [t.enq for t in seen] == [0, 0, CELLS, 0, 0, CELLS]


@pytest.mark.parametrize("goes_by", ["groups", "mirror"])
def test_copies_share_their_frame_while_they_wait(tna: Make, goes_by: str) -> None:
    """Each copy comes out whole, whichever left first."""
    if goes_by == "groups":
        body, deparser, locals = "tm.mcast_grp_a = 7; tm.ucast_egress_port = 1;", "", ""
    else:
        body, locals = TO_PORT_1 + "dprsr.mirror_type = 1;", "Mirror() mirror;"
        deparser = "if (dprsr.mirror_type == 1) { mirror.emit(10w5); }"
    text = program(body, deparser=deparser, deparser_locals=locals, egress_parser="pkt.extract(h.d);", egress=TELLS)
    bench = slow(tna, text)
    bench.group(7, [(1, 1), (2, 2), (1, 3)])
    bench.session(5, 2)
    for number in range(3):
        bench.switch.inject(0, packet(number))
    bench.switch.advance(12 * PACKET_US)
    sent = bench.switch.collect()
    copies = {"groups": [1, 1, 1, 2], "mirror": [1, 2]}[goes_by]
    assert sorted((port, f[TOLD_BYTES:]) for port, f in sent) == sorted(
        (port, packet(number)) for number in range(3) for port in copies
    )


def test_a_full_queue_drops_and_a_new_program_starts_with_none(tna: Make) -> None:
    bench = slow(tna, program(TO_QUEUE, egress_parser="pkt.extract(h.d);", egress=TELLS))
    bench.switch.set_queue(1, Queue(packets=2))
    for number in range(5):
        bench.switch.inject(0, packet(number))
    assert bench.switch.port_stats(1).tx_queue_dropped == 2
    assert len(bench.switch.collect(1)) == 1
    bench.switch.commit(bench.pipeline)
    bench.switch.advance(10 * PACKET_US)
    assert bench.switch.collect(1) == []
