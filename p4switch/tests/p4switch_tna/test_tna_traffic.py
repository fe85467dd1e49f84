"""The traffic manager: unicast, two groups, drops, mirroring, and what egress sees."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from p4switch.errors import SwitchError
from p4switch_tna.tna_bench import FCS_BYTES, TO_PORT_1, TnaBench, frame, program

Make = Callable[..., TnaBench]
GROUPS = "tm.mcast_grp_a = (bit<16>) h.d.a; tm.mcast_grp_b = (bit<16>) h.d.b; "
UNICAST = "if (h.d.c != 0) { tm.ucast_egress_port = h.d.c[8:0]; }"
MIRROR_TOP = "header tag_t { bit<8> tag; bit<8> value; }"
BIG = bytes(range(256)) * 4


def ports(sent: list[tuple[int, bytes]]) -> list[int]:
    return sorted(port for port, _ in sent)


@pytest.mark.parametrize(
    ("a", "b", "c", "expected"),
    [
        (0, 0, 0, []),
        (0, 0, 3, [3]),
        (7, 0, 0, [1, 2]),
        (0, 8, 0, [2, 4, 5]),
        (7, 8, 3, [1, 2, 2, 3, 4, 5]),
        (9, 0, 3, [3]),
    ],
)
@pytest.mark.parametrize("payload", [b"short", BIG])
def test_unicast_and_two_groups_at_once(tna: Make, a: int, b: int, c: int, expected: list[int], payload: bytes) -> None:
    """A copy of each; a request never made, and a group that nobody made, is none. Port 0 is a port."""
    bench = tna(program(GROUPS + UNICAST))
    bench.group(7, [(1, 0), (2, 0)])
    bench.group(8, [(2, 0), (4, 0), (5, 0)])
    octets = frame(a, b, c, payload=payload)
    sent = bench.send(octets)
    assert ports(sent) == expected
    assert all(f == octets for _, f in sent)


def test_port_zero_is_a_port(tna: Make) -> None:
    assert ports(tna(program("tm.ucast_egress_port = 0;")).send(frame())) == [0]


def test_drop_control_stops_all_copies(tna: Make) -> None:
    bench = tna(program(GROUPS + UNICAST + "dprsr.drop_ctl = 1;"))
    bench.group(7, [(1, 0)])
    assert bench.send(frame(7, 0, 3)) == []
    assert bench.switch.stats().dropped_ingress == 1


def test_copies_know_their_port_and_replication_id(tna: Make) -> None:
    parse = "pkt.extract(h.d);"
    egress = "h.d.c = eg.egress_rid; h.d.b = (bit<8>) eg.egress_port; h.d.d[0:0] = eg.egress_rid_first;"
    bench = tna(program(GROUPS, egress_parser=parse, egress=egress))
    bench.group(7, [(1, 0x101), (2, 0x202)])
    assert sorted(bench.send(frame(7))) == [(1, frame(7, 1, 0x101, 1)), (2, frame(7, 2, 0x202, 0))]


@pytest.mark.parametrize("payload", [b"short", BIG])
@pytest.mark.parametrize(
    ("rid", "exclusion", "expected"),
    [(5, 3, [3, 4]), (6, 3, [1, 2, 3]), (7, 3, [1, 2, 3, 4]), (5, 4, [1, 2, 3, 4]), (5, 9, [4])],
)
def test_pruning_by_replication_and_exclusion_id(
    tna: Make, rid: int, exclusion: int, expected: list[int], payload: bytes
) -> None:
    """A replica with the packet's replication id has no copy for the ports of the packet's exclusion id."""
    bench = tna(program(GROUPS + "tm.rid = h.d.c; tm.level2_exclusion_id = h.d.d[8:0];"))
    bench.group(7, [(4, 6), (1, 5), (2, 5), (3, 5)])
    bench.switch.set_exclusion(3, [1, 2, 4])
    bench.switch.set_exclusion(9, [1, 2, 3])
    sent = bench.send(frame(7, 0, rid, exclusion, payload=payload))
    assert ports(sent) == expected
    assert all(f == frame(7, 0, rid, exclusion, payload=payload) for _, f in sent)


def test_all_copies_may_be_pruned(tna: Make) -> None:
    bench = tna(program(GROUPS + "tm.rid = 5; tm.level2_exclusion_id = 3;"))
    bench.group(7, [(1, 5), (2, 5)])
    bench.switch.set_exclusion(3, [1, 2])
    assert bench.send(frame(7, payload=BIG)) == []
    bench.switch.set_exclusion(3, [])
    assert ports(bench.send(frame(7, payload=BIG))) == [1, 2]
    with pytest.raises(SwitchError):
        bench.switch.set_exclusion(512, [])
    with pytest.raises(SwitchError):
        bench.switch.set_exclusion(0, [512])


@pytest.mark.parametrize("payload", [b"short", BIG])
def test_egress_of_one_copy_leaves_the_others_alone(tna: Make, payload: bytes) -> None:
    """One copy grows by two headers, one is dropped, one loses its header."""
    egress = """if (eg.egress_port == 1) { h.x.setValid(); h.x.bits = 1; h.y.setValid(); h.y.bits = 2; }
                if (eg.egress_port == 2) { dprsr.drop_ctl = 1; }
                if (eg.egress_port == 3) { h.d.setInvalid(); }"""
    bench = tna(program(GROUPS, egress_parser="pkt.extract(h.d);", egress=egress))
    bench.group(7, [(port, 0) for port in (4, 1, 2, 3, 5)])
    octets = frame(7, payload=payload)
    grown = (1).to_bytes(16, "big") + octets[:8] + (2).to_bytes(16, "big") + payload
    assert dict(bench.send(octets)) == {4: octets, 1: grown, 3: payload, 5: octets}
    assert bench.switch.stats().dropped_egress == 1


def test_packet_length_is_that_of_the_arrival_with_fcs(tna: Make) -> None:
    body = TO_PORT_1 + "h.x.setValid(); h.x.bits = 0;"
    bench = tna(program(body, egress_parser="pkt.extract(h.x); pkt.extract(h.d);", egress="h.d.c = eg.pkt_length;"))
    octets = frame(payload=BIG)
    assert int.from_bytes(bench.one(octets)[18:20], "big") == len(octets) + FCS_BYTES


def test_bypassed_egress(tna: Make) -> None:
    body = GROUPS + UNICAST + "tm.bypass_egress = 1;"
    bench = tna(program(body, egress="dprsr.drop_ctl = 1;"))
    bench.group(7, [(1, 0), (2, 0)])
    sent = bench.send(frame(7, 0, 3, payload=BIG))
    assert ports(sent) == [1, 2, 3]
    assert all(f == frame(7, 0, 3, payload=BIG) for _, f in sent)


def test_lookahead_of_what_ingress_put_in_front(tna: Make) -> None:
    body = TO_PORT_1 + "h.x.setValid(); h.x.bits = 0xAB; h.x.bits[127:120] = 0x5A;"
    parse = "bit<8> tag = pkt.lookahead<bit<8>>(); pkt.extract(h.x); pkt.extract(h.d); h.d.a = tag;"
    bench = tna(program(body, egress_parser=parse, egress="h.x.setInvalid();"))
    assert bench.one(frame(1, 2, payload=BIG)) == frame(0x5A, 2, payload=BIG)


# ------------------------------------------------------------------ the parser and its errors


def test_a_short_packet_is_dropped_unless_ingress_looks_at_the_error(tna: Make) -> None:
    blind = tna(program())
    assert blind.send(b"short") == []
    assert (blind.switch.stats().parser_errors, blind.switch.stats().dropped_ingress) == (1, 1)


def test_a_short_packet_that_ingress_looks_at(tna: Make) -> None:
    body = TO_PORT_1 + "if (prsr.parser_err != 0) { h.x.setValid(); h.x.bits = (bit<128>) prsr.parser_err; }"
    bench = tna(program(body, egress_parser=""))
    assert bench.one(b"short") == (2).to_bytes(16, "big") + b"short"
    assert bench.one(frame()) == frame()


def test_rejected_packets(tna: Make) -> None:
    parse = "transition select(pkt.lookahead<bit<8>>()) { 1: more; 2: reject; } } state more {"
    bench = tna(program(ingress_parser=parse))
    assert bench.one(frame(1)) == frame(1)
    assert bench.send(frame(2)) == bench.send(frame(3)) == []
    assert bench.switch.stats().parser_errors == 2


def test_time_is_in_nanoseconds(tna: Make) -> None:
    bench = tna(program(TO_PORT_1 + "h.d.d = prsr.global_tstamp[31:0]; h.d.c = ig.ingress_mac_tstamp[15:0];"))
    bench.switch.advance(5)
    assert bench.one(frame())[2:8] == (5000).to_bytes(2, "big") + (5000).to_bytes(4, "big")


def test_ingress_port(tna: Make) -> None:
    bench = tna(program(TO_PORT_1 + "h.d.c = (bit<16>) ig.ingress_port;"))
    assert bench.send(frame(), port=9) == [(1, frame(c=9))]


# ------------------------------------------------------------------ mirroring

MIRROR = {
    "top": MIRROR_TOP,
    "deparser_locals": "Mirror(1) copy;",
    "deparser": "if (dprsr.mirror_type == 1) { copy.emit<tag_t>((bit<10>) h.d.a, { 0xEE, h.d.b }); }",
}


def mirroring(body: str, **parts: str) -> str:
    return program("dprsr.mirror_type = 1; " + body, **MIRROR | parts)


def test_a_mirrored_copy_is_the_packet_as_it_arrived(tna: Make) -> None:
    bench = tna(mirroring(TO_PORT_1 + "h.d.c = 0xFFFF;"))
    bench.session(5, 3)
    octets = frame(5, 6, 7, payload=BIG)
    assert dict(bench.send(octets)) == {1: frame(5, 6, 0xFFFF, payload=BIG), 3: b"\xee\x06" + octets}


@pytest.mark.parametrize("length", [1, 2, 6, 600, 4000])
def test_a_session_cuts_with_the_header_counted(tna: Make, length: int) -> None:
    bench = tna(mirroring(""))
    bench.session(5, 3, length)
    octets = frame(5, 6, payload=BIG)
    assert bench.send(octets) == [(3, (b"\xee\x06" + octets)[:length])]


def test_a_dropped_packet_is_mirrored_all_the_same(tna: Make) -> None:
    bench = tna(mirroring(TO_PORT_1 + "dprsr.drop_ctl = 1;"))
    bench.session(5, 3)
    assert ports(bench.send(frame(5))) == [3]


def test_no_session_no_copy(tna: Make) -> None:
    bench = tna(mirroring(TO_PORT_1))
    assert ports(bench.send(frame(5))) == [1]
    assert bench.switch.stats().no_session == 1


def test_egress_tells_a_mirrored_copy_by_its_header(tna: Make) -> None:
    parse = "bit<8> tag = pkt.lookahead<bit<8>>(); pkt.advance(16); pkt.extract(h.d); h.d.b = tag;"
    bench = tna(mirroring("", egress_parser=parse, egress="h.d.c = eg.pkt_length;"))
    bench.session(5, 3, 20)
    octets = frame(5, 6, payload=BIG)
    assert bench.send(octets) == [(3, frame(5, 0xEE, 20 + FCS_BYTES, payload=BIG)[:18])]


def test_no_way_through_keeps_a_buffer(tna: Make) -> None:
    """More packets than there are buffers, on each way that a packet can take."""
    body = GROUPS + UNICAST + "if (h.d.d == 1) { dprsr.drop_ctl = 1; } if (h.d.d == 2) { tm.bypass_egress = 1; }"
    body += "if (h.d.d == 3) { tm.rid = 5; tm.level2_exclusion_id = 3; }"
    bench = tna(mirroring(body, egress="if (eg.egress_port == 2) { dprsr.drop_ctl = 1; }"))
    bench.group(7, [(1, 5), (2, 5), (3, 5)])
    bench.session(7, 4, 100)
    bench.switch.set_exclusion(3, [1, 2, 3])
    ways = [
        (b"x", 0),
        *((frame(a, b, c, d, payload=payload), 0) for a, b, c in ((7, 0, 0), (7, 7, 5), (9, 0, 0), (0, 0, 0))
          for d in range(4) for payload in (b"short", BIG)),
    ]  # fmt: skip
    for _ in range(9000 // len(ways)):
        for octets, port in ways:
            bench.switch.inject(port, octets)
        bench.switch.collect()
    for _ in range(9000):
        bench.switch.inject(0, frame(7, 7, 5, 3, payload=BIG))
        bench.switch.collect()
    stats = bench.switch.stats()
    assert (stats.no_buffer, stats.received) == (0, 9000 // len(ways) * len(ways) + 9000)


# ------------------------------------------------------------------ what is told


def test_trace(tna: Make) -> None:
    bench = tna(mirroring(GROUPS + UNICAST), trace=True)
    bench.group(7, [(1, 0), (2, 0)])
    bench.session(7, 3, 5)
    bench.send(frame(7, 9, 4))
    told = bench.traces()
    assert "port 0: received, 15 bytes" in told
    assert "parser state start" in told
    assert "multicast group 7, 2 copies" in told
    assert "multicast group 9, 0 copies" in told
    assert "mirrored to session 7, 5 bytes" in told
    assert [t for t in told if t.endswith("bytes") and "sent" in t] == [
        "port 1: sent, 15 bytes", "port 2: sent, 15 bytes", "port 4: sent, 15 bytes", "port 3: sent, 5 bytes"
    ]  # fmt: skip
