"""Programs run: what the language and v1model say happens to a packet."""

from __future__ import annotations

import zlib
from collections.abc import Callable

import pytest

from p4switch.runtime import DigestEvent, LogEvent
from p4switch.values import ActionCall, Replica
from p4switch_compiler.conftest import Bench
from p4switch_compiler.programs import program

FRAME = bytes([0x12, 0x34, 0x56, 0x78]) + b"payload"
Make = Callable[[str], Bench]


def out(bench: Make, text: str, frame: bytes = FRAME) -> bytes:
    """The one packet that comes out of port 1."""
    sent = bench(text).send(frame)
    assert [port for port, _ in sent] == [1]
    return sent[0][1]


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("h.d.a = h.d.a + 0xf0;", "02345678"),
        ("h.d.a = h.d.a |+| 0xf0;", "ff345678"),
        ("h.d.a = 0 |-| h.d.a;", "00345678"),
        ("h.d.c = h.d.a ++ h.d.b;", "12341234"),
        ("h.d.a[3:0] = h.d.b[7:4];", "13345678"),
        ("h.d.c = h.d.c << 8; h.d.a = h.d.a >> 9;", "00347800"),
        ("int<8> x = -128; h.d.a = (bit<8>)(x >> 1); h.d.b = (bit<8>)(x |-| 1);", "c0805678"),
        ("h.d.a = h.d.b > 0x33 ? h.d.b : 8w0;", "34345678"),
        ("bit<8> t = h.d.a; h.d.a = h.d.b; h.d.b = t;", "34125678"),
        ("h.d = { h.d.b, h.d.a, 0 };", "34120000"),
        ("tuple<bit<8>, bit<8>> t = { h.d.b, h.d.a }; h.d.a = t[0]; h.d.b = t[1];", "34125678"),
        ("bit<256> w = (bit<256>) h.d.c << 200; w = w + w; h.d.c = w[216:201];", "12345678"),
        ("switch (h.d.a) { 0x11: 0x12: { h.d.b = 1; } default: { h.d.b = 2; } }", "12015678"),
        ("for (bit<8> i in 8w1 .. 4) { if (i == 3) { continue; } h.d.a = h.d.a + i; }", "19345678"),
        ("h.d.a = 255; for (bit<8> i = 0; i < 5; i = i + 1) { if (i == 2) { break; } h.d.a = h.d.a + 1; }", "01345678"),
        ("if (h.d.a == 0x12) { return; } h.d.a = 0;", "12345678"),
        ("h.d.setInvalid();", ""),
        ("exit; h.d.a = 0;", "12345678"),
    ],
)
def test_statements(bench: Make, body: str, expected: str) -> None:
    assert out(bench, program(body)) == bytes.fromhex(expected) + b"payload"


def test_copy_in_copy_out_of_overlapping_arguments(bench: Make) -> None:
    """Both parameters start with the old value; the last one written back wins."""
    top = "void f(inout bit<8> x, inout bit<8> y) { x = x + 1; y = y + 2; }"
    assert out(bench, program("f(h.d.a, h.d.a);", top=top))[:1] == b"\x14"


def test_exit_inside_an_action_copies_out(bench: Make) -> None:
    locals_ = "action a(inout bit<8> x) { x = 0x99; exit; }"
    assert out(bench, program("a(h.d.a); h.d.b = 0;", locals=locals_))[:2] == b"\x99\x34"


def test_side_effects_keep_their_order(bench: Make) -> None:
    """The left operand is read before the call on the right changes it."""
    top = "bit<8> bump(inout bit<8> x) { x = x + 1; return x; }"
    assert out(bench, program("h.d.b = h.d.a + bump(h.d.a);", top=top))[:2] == b"\x13\x25"


def test_short_circuit_skips_calls(bench: Make) -> None:
    top = "bool bump(inout bit<8> x) { x = x + 1; return true; }"
    assert out(bench, program("if (h.d.b == 0 && bump(h.d.a)) { h.d.b = 9; }", top=top))[:2] == b"\x12\x34"


def test_table_hit_miss_and_action_run(bench: Make) -> None:
    locals_ = """
    action set(bit<8> x, bit<128> y) { h.d.a = x; h.d.b = y[7:0]; }
    action miss() { h.d.a = 0xee; }
    table t { key = { h.d.c : exact; h.d.b : exact; } actions = { set; miss; } default_action = miss(); }"""
    body = """switch (t.apply().action_run) { set: { h.d.c = 1; } miss: { h.d.c = 2; } }"""
    b = bench(program(body, locals=locals_))
    assert b.send(FRAME)[0][1] == bytes.fromhex("ee340002") + b"payload"
    batch = b.pipeline.batch()
    batch.insert(0, [(0x5678, 0), (0x34, 0)], ActionCall(0, (7, 0xAB << 64 | 0xCD)))
    batch.commit()
    assert b.send(FRAME)[0][1] == bytes.fromhex("07cd0001") + b"payload"


def test_const_entries_in_every_match_kind(bench: Make) -> None:
    locals_ = """
    action set(bit<8> x) { h.d.a = x; }
    table t {
        key = { h.d.a : ternary; h.d.b : range; h.d.c : optional; }
        actions = { set; NoAction; }
        const entries = {
            (0x10 &&& 0xf0, 0x35 .. 0x40, _) : set(1);
            (0x10 &&& 0xf0, 0x30 .. 0x40, 0x5678) : set(2);
            (_, _, _) : set(3);
        }
    }"""
    b = bench(program("t.apply();", locals=locals_))
    assert [b.send(bytes.fromhex(f))[0][1][0] for f in ("12345678", "12365678", "12345679", "22345678")] == [2, 1, 3, 3]


def test_register_out_of_range_reads_zero(bench: Make) -> None:
    locals_ = "register<bit<160>>(4) r;"
    body = """bit<160> x; r.write(2, (bit<160>) h.d.c); r.write(4, 1);
        r.read(x, 2); h.d.c = x[15:0]; r.read(x, 4); h.d.a = x[7:0];"""
    b = bench(program(body, locals=locals_))
    assert b.send(FRAME)[0][1][:4] == bytes.fromhex("00345678")
    assert b.pipeline.registers(0) == [0, 0, 0x5678, 0]


def test_hash_of_bits_across_bytes(bench: Make) -> None:
    """The fields make one bit string, padded on the right."""
    fields = "{ h.d.a[3:0], h.d.b, h.d.c[3:0] }"
    body = f"bit<32> x; hash(x, HashAlgorithm.crc32, 32w0, {fields}, 64w0x100000000); h.d.c = x[15:0];"
    expected = zlib.crc32(bytes([0x23, 0x48])) & 0xFFFF
    assert out(bench, program(body))[2:4] == expected.to_bytes(2, "big")


def test_parser_loops_over_a_stack_and_stops_at_its_end(bench: Make) -> None:
    parser = """
    state start { pkt.extract(h.d); transition more; }
    state more { pkt.extract(h.s.next); transition select(h.s.last.v) { 0 : accept; default : more; } }"""
    body = (
        "h.d.a = (bit<8>) (h.s[2].isValid() ? 8w1 : 8w0); h.d.b = s.parser_error == error.StackOutOfBounds ? 8w1 : 8w0;"
    )
    text = program(body, parser=parser, headers="item_t[3] s;", top="header item_t { bit<8> v; }")
    b = bench(text)
    assert b.send(FRAME[:4] + b"\x01\x01\x00\x09")[0][1] == bytes.fromhex("01005678") + b"\x01\x01\x00\x09"
    assert b.send(FRAME[:4] + b"\x01\x01\x01\x01")[0][1] == bytes.fromhex("01015678") + b"\x01\x01\x01\x01"
    assert b.send(FRAME[:4] + b"\x01\x00")[0][1] == bytes.fromhex("00005678") + b"\x01\x00"


def test_a_short_packet_is_an_error_and_still_forwarded(bench: Make) -> None:
    assert out(bench, program("h.d.setInvalid();"), b"\x01\x02") == b"\x01\x02"


def test_a_parser_that_never_moves_ends(bench: Make) -> None:
    parser = "state start { transition select(h.d.a) { 1: accept; default: start; } }"
    assert out(bench, program("", parser=parser)) == FRAME


def test_lookahead_varbit_and_advance(bench: Make) -> None:
    parser = """state start {
        bit<8> n = pkt.lookahead<bit<8>>();
        pkt.extract(h.v, (bit<32>) n * 8);
        pkt.advance(8);
        transition accept;
    }"""
    top = "header var_t { bit<8> n; varbit<64> options; bit<8> end; }"
    body = "h.v.end = h.v.end + 1;"
    text = program(body, parser=parser, headers="var_t v;", top=top)
    assert out(bench, text, b"\x03abc\x10Xrest") == b"\x03abc\x11rest"
    assert out(bench, text, b"\x09abcdefghi\x10Xrest") == b"\x09abcdefghi\x10Xrest"  # 72 bits do not fit


def test_unions_hold_one_header(bench: Make) -> None:
    top = "header x_t { bit<8> v; } header y_t { bit<16> v; } header_union u_t { x_t x; y_t y; }"
    body = "h.u.x.setValid(); h.u.x.v = 0xaa; h.u.y.setValid(); h.u.y.v = 0xbbcc; h.d.a = h.u.x.isValid() ? 8w1 : 8w0;"
    assert out(bench, program(body, headers="u_t u;", top=top)) == bytes.fromhex("00345678bbcc") + b"payload"


def test_clone_preserves_its_field_list(bench: Make) -> None:
    metadata = "@field_list(1) bit<8> kept; bit<8> lost;"
    body = "m.kept = h.d.a; m.lost = h.d.b; clone_preserving_field_list(CloneType.I2E, 5, 1); h.d.a = 0;"
    egress = "if (s.instance_type == 1) { h.d.b = m.kept; h.d.c = (bit<16>) m.lost; }"
    b = bench(program(body, metadata=metadata, egress=egress))
    batch = b.pipeline.batch()
    batch.set_clone_session(5, [Replica(3)])
    batch.commit()
    sent = dict(b.send(FRAME))
    assert sent == {1: bytes.fromhex("00345678") + b"payload", 3: bytes.fromhex("12120000") + b"payload"}


def test_recirculate_and_truncate(bench: Make) -> None:
    metadata = "@field_list(2) bit<8> turns;"
    egress = """if (m.turns < 3) {
            m.turns = m.turns + 1; h.d.b = m.turns; recirculate_preserving_field_list(2);
        } else { truncate(5); }"""
    assert out(bench, program("", metadata=metadata, egress=egress)) == bytes.fromhex("12035678") + b"p"


def test_a_digest_of_a_number(bench: Make) -> None:
    b = bench(program("digest<bit<9>>(1, s.ingress_port);"))
    b.send(FRAME, port=3)
    assert [e.values for e in b.switch.events(1.0) if isinstance(e, DigestEvent)] == [(3,)]


def test_drop_and_digest(bench: Make) -> None:
    top = "struct note_t { bit<8> a; bit<128> wide; }"
    body = "digest<note_t>(1, { h.d.a, (bit<128>) h.d.c << 100 }); mark_to_drop(s);"
    b = bench(program(body, top=top))
    assert b.send(FRAME) == []
    events = b.switch.events(1.0)
    assert [e.values for e in events if isinstance(e, DigestEvent)] == [(0x12, 0x5678 << 100)]


def test_assertion_drops_and_logs(bench: Make) -> None:
    b = bench(program("assert(h.d.a != 0x12);"))
    assert b.send(FRAME) == []
    assert b.send(b"\x00" + FRAME[1:]) != []


def test_assertion_in_the_parser(bench: Make) -> None:
    parser = "state start { pkt.extract(h.d); assert(h.d.a == 0x12); h.d.a = 0; transition accept; }"
    b = bench(program("", parser=parser))
    assert b.send(FRAME) == [(1, b"\x00" + FRAME[1:])]
    assert b.send(b"\x13" + FRAME[1:]) == [(1, b"\x13" + FRAME[1:])]  # ingress chooses a port again


def test_generic_and_nested_controls(bench: Make) -> None:
    top = """
    control add(inout bit<8> x)(bit<8> n) { apply { x = x + n; } }
    control twice(inout bit<8> x) { add(3) one; add(4) two; apply { one.apply(x); two.apply(x); add.apply(x); } }
    """
    top = top.replace("add.apply(x);", "")
    assert out(bench, program("t.apply(h.d.a);", locals="twice() t;", top=top))[:1] == b"\x19"


def test_value_sets_choose_states(bench: Make) -> None:
    parser = """
    value_set<bit<8>>(4) vs;
    state start { pkt.extract(h.d); transition select(h.d.a) { vs : mark; default : accept; } }
    state mark { h.d.b = 0xff; transition accept; }"""
    b = bench(program("", parser=parser))
    assert b.send(FRAME)[0][1][1] == 0x34
    batch = b.pipeline.batch()
    batch.insert(0, [(0x12, 0)], None)
    batch.commit()
    assert b.send(FRAME)[0][1][1] == 0xFF


def test_log_messages_show_values(bench: Make) -> None:
    b = bench(program('log_msg("a={} {}% {}", { h.d.a, h.d.c });'))
    b.send(FRAME)
    events = [e for e in b.switch.events(1.0) if isinstance(e, LogEvent) and not e.trace]
    assert [e.text for e in events] == ["a=18 22136% {}"]


def test_trace_tells_states_and_tables(bench: Make) -> None:
    locals_ = "action set() { h.d.a = 0; } table t { key = { h.d.c : exact; } actions = { set; NoAction; } }"
    b = bench(program("t.apply();", locals=locals_))
    b.switch.set_trace(True)
    b.send(FRAME)
    lines = [e.text for e in b.switch.events(1.0) if isinstance(e, LogEvent) and e.trace]
    assert any("parser state start" in line for line in lines)
    assert any("table I.t: h.d.c=0x5678 miss, action NoAction()" in line for line in lines)
