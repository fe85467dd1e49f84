"""Recirculation ports: what orbits, what is lost, how fast it goes, and that others get their turn."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest

from p4switch_tna.tna_bench import ROUND, TnaBench, frame, program

Make = Callable[..., TnaBench]
WIRE_BYTES = 24

# `a` counts the rounds that a packet has yet to go; it then leaves by port 1. `b` is the queue.
ROUNDS = f"""
    tm.qid = h.d.b[4:0];
    if (ig.ingress_port == {ROUND}) {{ h.d.c = h.d.c + 1; }}
    if (h.d.a == 0) {{ tm.ucast_egress_port = 1; }}
    else {{ if (h.d.a != 255) {{ h.d.a = h.d.a - 1; }} tm.ucast_egress_port = {ROUND}; }}
"""
FOR_EVER = 255


def orbiting(number: int, length: int = 1000) -> bytes:
    """A frame that never stops, of so many bytes."""
    return frame(FOR_EVER, d=number, payload=bytes(length - len(frame(payload=b""))))


def test_frames_of_any_length_through_everything_at_once(tna: Make) -> None:
    """Rounds with copies for two groups and a mirror, headers that come and go at egress: every byte accounted for."""
    body = ROUNDS + "tm.mcast_grp_a = 7; tm.mcast_grp_b = 8; dprsr.mirror_type = 1;"
    egress = f"""if (eg.egress_port == 2) {{ h.x.setValid(); h.x.bits = 1; }}
                 if (eg.egress_port == 3) {{ h.d.setInvalid(); }}
                 if (eg.egress_port == {ROUND}) {{ h.d.b = h.d.b; }}"""
    mirror = "if (dprsr.mirror_type == 1) { copy.emit(9); }"
    bench = tna(
        program(
            body, deparser_locals="Mirror() copy;", deparser=mirror, egress_parser="pkt.extract(h.d);", egress=egress
        )
    )
    bench.group(7, [(2, 0), (3, 0)])
    bench.group(8, [(4, 0)])
    bench.session(9, 5, 700)
    random = Random(11)
    for number in range(200):
        rounds, payload = random.randrange(4), random.randbytes(random.choice([0, 1, 255, 256, 257, 4186, 9000]))
        seen: dict[int, list[bytes]] = {}
        for port, octets in bench.send(frame(rounds, d=number, payload=payload)):
            seen.setdefault(port, []).append(octets)
        passes = [frame(max(rounds - 1 - c, 0), c=c, d=number, payload=payload) for c in range(rounds + 1)]
        arrivals = [frame(rounds, d=number, payload=payload), *passes[:-1]]
        assert seen[4] == passes
        assert seen[2] == [(1).to_bytes(16, "big") + octets for octets in passes]
        assert seen[3] == [payload] * (rounds + 1) or payload == b""
        assert seen[5] == [octets[:700] for octets in arrivals]
        assert seen[1] == [passes[-1]]
    assert bench.switch.stats().no_buffer == 0


@pytest.mark.parametrize("payload", [b"", b"short", bytes(range(256)) * 16])
@pytest.mark.parametrize("rounds", [1, 7])
def test_a_packet_comes_round_unchanged(tna: Make, payload: bytes, rounds: int) -> None:
    bench = tna(program(ROUNDS))
    assert bench.one(frame(rounds, payload=payload)) == frame(0, c=rounds, payload=payload)
    assert bench.switch.stats().recirculated == rounds


def test_headers_may_grow_on_every_round(tna: Make) -> None:
    """More than the room in front of a frame."""
    body = ROUNDS + "h.x.setValid(); h.x.bits = 1;"
    bench = tna(program(body, ingress_parser="", egress_parser="pkt.extract(h.x);", egress="h.x.setInvalid();"))
    assert bench.one(frame(40, payload=bytes(2000))) == frame(0, c=40, payload=bytes(2000))
    grows = tna(program(ROUNDS, deparser="pkt.emit(h.d); h.d.setInvalid(); h.y.setValid(); h.y.bits = 3;"))
    assert grows.one(frame(40, payload=b"p")) == frame(0, c=40, payload=(3).to_bytes(16, "big") * 41 + b"p")


def test_a_copy_leaves_while_the_packet_goes_on(tna: Make) -> None:
    bench = tna(program(ROUNDS + "tm.mcast_grp_a = 7;"))
    bench.group(7, [(2, 0), (3, 0)])
    sent = bench.send(frame(3, payload=bytes(5000)))
    copies = [f for port, f in sent if port == 2]
    assert [f[0] for f in copies] == [2, 1, 0, 0]
    assert [f[3] for f in copies] == [0, 1, 2, 3]
    assert all(f[8:] == bytes(5000) for _, f in sent)


def test_what_finds_the_queue_full_is_lost_and_counted(tna: Make) -> None:
    bench = tna(program(ROUNDS), rate_bits=1_000_000, queue_bytes=3500)
    for number in range(5):
        bench.switch.inject(0, orbiting(number))
    stats = bench.switch.stats()
    assert (stats.recirculating, stats.recirculating_bytes, stats.recirculation_lost) == (3, 3000, 2)
    for number in range(5, 10):
        bench.switch.inject(0, orbiting(number))
    assert bench.switch.stats().recirculation_lost == 7
    bench.switch.advance(1_000_000)
    assert bench.switch.stats().recirculation_lost == 7  # what orbits has its place


def test_an_orbit_takes_the_time_of_the_line(tna: Make) -> None:
    """Ten frames on a line of 8 Mbit/s: 1,024 us each, 10.24 ms an orbit."""
    bench = tna(program(ROUNDS), rate_bits=8_000_000)
    for number in range(10):
        bench.switch.inject(0, orbiting(number, 1024 - WIRE_BYTES))
    bench.switch.advance(20_000)  # tokens that had gathered are used up
    before = bench.switch.stats().processed
    bench.switch.advance(1_024_000)
    assert bench.switch.stats().processed - before == pytest.approx(1000, abs=2)


def test_a_line_without_a_rate_leaves_front_ports_their_turn(tna: Make) -> None:
    """Each step moves a bounded number of rounds, however many are left."""
    bench = tna(program(ROUNDS))
    for number in range(100):
        bench.switch.inject(0, orbiting(number))
    bench.switch.inject(3, frame(0))
    assert (1, frame(0)) in bench.switch.collect()


def test_an_endless_orbit_does_not_stop_the_clock(tna: Make) -> None:
    bench = tna(program(ROUNDS))
    bench.switch.inject(0, orbiting(1))
    bench.switch.advance(10)
    assert bench.switch.now_us() == 10


def test_queues_take_turns(tna: Make) -> None:
    """A packet of another queue does not wait until the full one has gone round."""
    bench = tna(program(ROUNDS), rate_bits=8_000_000)
    for number in range(100):
        bench.switch.inject(0, orbiting(number))
    bench.switch.inject(0, frame(4, b=1))
    bench.switch.inject(0, frame(4, b=0))
    bench.switch.advance(20_000)
    assert [f[1] for port, f in bench.switch.collect() if port == 1] == [1]
    bench.switch.advance(1_000_000)
    assert [f[1] for port, f in bench.switch.collect() if port == 1] == [0]


def test_a_mirrored_copy_may_go_round(tna: Make) -> None:
    """It takes the queue that is its session's class of service, comes in as a packet of its own and leaves."""
    body = f"if (ig.ingress_port != {ROUND}) {{ dprsr.mirror_type = 1; }} else {{ tm.ucast_egress_port = 1; }}"
    bench = tna(
        program(body, deparser_locals="Mirror(1) copy;", deparser="if (dprsr.mirror_type == 1) { copy.emit(9); }")
    )
    bench.session(9, ROUND, 12)
    assert bench.one(frame(payload=bytes(100))) == frame(payload=bytes(4))


def test_a_new_program_starts_with_an_empty_orbit(tna: Make) -> None:
    bench = tna(program(ROUNDS), rate_bits=1_000_000)
    for number in range(10):
        bench.switch.inject(0, orbiting(number))
    assert bench.switch.stats().recirculating > 0
    bench.switch.commit(bench.pipeline)
    assert bench.switch.stats().recirculating == 0
