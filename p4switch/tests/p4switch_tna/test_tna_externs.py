"""Externs of TNA: what each does to a packet and to its state."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from pathlib import Path

import pytest

from p4switch.compiler import check
from p4switch.values import ActionCall, ColorCounts, CounterValue, MeterConfig
from p4switch_tna.checksums import crc16_arc, internet_checksum
from p4switch_tna.tna_bench import FCS_BYTES, TO_PORT_1, TnaBench, frame, program

Make = Callable[..., TnaBench]
PAIR = "struct pair_t { bit<32> first; bit<32> second; }"


def action(element: str, result: str, body: str, *, name: str = "act", out: bool = True) -> str:
    """A register action on `cells`; its cell is `v`, its result `r`."""
    given = f", out {result} r" if out else ""
    return (
        f"RegisterAction<{element}, bit<8>, {result}>(cells) {name} = "
        f"{{ void apply(inout {element} v{given}) {{ {body} }} }};"
    )


def test_register_action_reads_changes_and_gives_back(tna: Make) -> None:
    count = action("bit<32>", "bit<32>", "v = v + h.d.d; r = v;")
    bench = tna(
        program(TO_PORT_1 + "h.d.d = act.execute(h.d.a);", locals=f"Register<bit<32>, bit<8>>(4, 100) cells; {count}")
    )
    assert bench.one(frame(a=1, d=5))[4:8] == (105).to_bytes(4, "big")
    assert bench.one(frame(a=1, d=5))[4:8] == (110).to_bytes(4, "big")
    assert bench.register("cells") == [100, 110, 100, 100]


def test_result_is_what_the_action_gave_when_it_gave_it(tna: Make) -> None:
    swap = action("bit<8>", "bit<8>", "r = v; v = h.d.b;")
    bench = tna(program(TO_PORT_1 + "h.d.a = act.execute(0);", locals=f"Register<bit<8>, bit<8>>(1) cells; {swap}"))
    assert bench.one(frame(b=7))[0] == 0
    assert bench.one(frame(b=9))[0] == 7


def test_action_without_result(tna: Make) -> None:
    put = action("bit<16>", "bit<16>", "v = h.d.c;", out=False)
    bench = tna(program(TO_PORT_1 + "act.execute(h.d.a);", locals=f"Register<bit<16>, bit<8>>(3) cells; {put}"))
    bench.one(frame(a=2, c=0x1234))
    assert bench.register("cells") == [0, 0, 0x1234]


def test_an_index_out_of_range_reads_zero_and_writes_nothing(tna: Make) -> None:
    count = action("bit<8>", "bit<8>", "v = v + 1; r = v;")
    locals_ = f"Register<bit<8>, bit<8>>(2, 50) cells; {count}"
    bench = tna(program(TO_PORT_1 + "h.d.b = act.execute(h.d.a);", locals=locals_))
    assert bench.one(frame(a=2))[1] == 1
    assert bench.register("cells") == [50, 50]


def test_pairs_and_their_initial_value(tna: Make) -> None:
    body = "if (v.first == h.d.d) { v.second = v.second + 1; } else { v.first = h.d.d; v.second = 0; } r = v.second;"
    locals_ = f"Register<pair_t, bit<8>>(2, {{ 7, 0x80000000 }}) cells; {action('pair_t', 'bit<32>', body)}"
    bench = tna(program(TO_PORT_1 + "h.d.d = act.execute(0);", locals=locals_, top=PAIR))
    assert bench.register("cells") == [7 << 32 | 0x80000000] * 2
    assert bench.one(frame(d=7))[4:8] == (0x80000001).to_bytes(4, "big")
    assert bench.one(frame(d=8))[4:8] == bytes(4)
    assert bench.register("cells")[0] == 8 << 32


@pytest.mark.parametrize(("d", "c", "expected"), [(1, 5, 1), (9, 5, 2), (1, 15, 4), (9, 15, 8)])
def test_predicate_is_one_of_four(tna: Make, d: int, c: int, expected: int) -> None:
    look = action("pair_t", "bit<8>", "r = this.predicate(v.first == h.d.d, v.second < (bit<32>) h.d.c);")
    locals_ = f"Register<pair_t, bit<8>>(1, {{ 9, 10 }}) cells; {look}"
    bench = tna(program(TO_PORT_1 + "h.d.a = act.execute(0);", locals=locals_, top=PAIR))
    assert bench.one(frame(c=c, d=d))[0] == expected


@pytest.mark.parametrize(("d", "expected"), [(1, 1), (9, 2)])
def test_predicate_of_one_condition(tna: Make, d: int, expected: int) -> None:
    look = action("bit<32>", "bit<8>", "r = this.predicate(v == h.d.d);")
    bench = tna(program(TO_PORT_1 + "h.d.a = act.execute(0);", locals=f"Register<bit<32>, bit<8>>(1, 9) cells; {look}"))
    assert bench.one(frame(d=d))[0] == expected


def test_register_parameter_is_a_register_of_one_cell(tna: Make) -> None:
    count = action("bit<32>", "bit<32>", "if (v < most.read()) { v = v + 1; } r = v;")
    locals_ = f"RegisterParam<bit<32>>(2) most; Register<bit<32>, bit<8>>(1) cells; {count}"
    bench = tna(program(TO_PORT_1 + "h.d.d = act.execute(0);", locals=locals_))
    assert [bench.one(frame())[7] for _ in range(3)] == [1, 2, 2]
    assert bench.register("most") == [2]
    bench.set_register("most", 0, [3])
    assert [bench.one(frame())[7] for _ in range(2)] == [3, 3]


def test_actions_of_one_register_on_different_ways(tna: Make) -> None:
    up = action("bit<8>", "bit<8>", "v = v + 1; r = v;", name="up")
    down = action("bit<8>", "bit<8>", "v = v - 1; r = v;", name="down")
    locals_ = f"""Register<bit<8>, bit<8>>(1) cells; {up} {down}
        action do_up() {{ h.d.b = up.execute(0); }}
        action do_down() {{ h.d.b = down.execute(0); }}
        table t {{ key = {{ h.d.a : exact; }} actions = {{ do_up; do_down; }} default_action = do_up();
                   const entries = {{ 1 : do_down(); }} }}"""
    bench = tna(program(TO_PORT_1 + "t.apply();", locals=locals_))
    assert [bench.one(frame(a=a))[1] for a in (0, 0, 1, 0)] == [1, 2, 1, 2]


@pytest.mark.parametrize(
    ("width", "algorithm", "expected"),
    [
        (16, "CRC16", lambda data: crc16_arc(data)),
        (12, "CRC16", lambda data: crc16_arc(data) & 0xFFF),
        (32, "CRC32", lambda data: zlib.crc32(data)),
        (10, "CRC32", lambda data: zlib.crc32(data) & 0x3FF),
    ],
)
def test_hashes_are_cut_to_their_low_bits(
    tna: Make, width: int, algorithm: str, expected: Callable[[bytes], int]
) -> None:
    locals_ = f"Hash<bit<{width}>>(HashAlgorithm_t.{algorithm}) hash;"
    body = TO_PORT_1 + "h.d.d = (bit<32>) hash.get({ h.d.a, h.d.b, h.d.c, h.d.d });"
    octets = frame(1, 2, 0x0304, 0x05060708)
    assert int.from_bytes(tna(program(body, locals=locals_)).one(octets)[4:8], "big") == expected(octets[:8])


def test_counters_count_packets_and_bytes_with_their_fcs(tna: Make) -> None:
    locals_ = "Counter<bit<64>, bit<8>>(4, CounterType_t.PACKETS_AND_BYTES) seen;"
    bench = tna(program(TO_PORT_1 + "seen.count(h.d.a);", locals=locals_))
    for _ in range(3):
        bench.one(frame(a=2))
    assert bench.pipeline.counters(0) == [
        CounterValue(), CounterValue(), CounterValue(3, 3 * (len(frame()) + FCS_BYTES)), CounterValue()
    ]  # fmt: skip


GREEN, YELLOW, RED = 0, 1, 3
"""MeterColor_t."""


@pytest.mark.parametrize(("unit", "each"), [("PACKETS", 1), ("BYTES", len(frame()) + FCS_BYTES)])
def test_a_meter_marks_packets(tna: Make, unit: str, each: int) -> None:
    locals_ = f"Meter<bit<8>>(4, MeterType_t.{unit}) meter;"
    bench = tna(program(TO_PORT_1 + "h.d.b = meter.execute(h.d.a);", locals=locals_))
    assert [bench.one(frame(a=2))[1] for _ in range(3)] == [GREEN] * 3, "not configured"
    batch = bench.pipeline.batch()
    batch.set_meters(0, 2, [MeterConfig(0, each, 0, 2 * each)])
    batch.commit()
    assert [bench.one(frame(a=2))[1] for _ in range(4)] == [GREEN, YELLOW, RED, RED]
    assert [bench.one(frame(a=1))[1] for _ in range(3)] == [GREEN] * 3, "another cell"
    counts = bench.pipeline.colors(0, 2, 1)[0]
    assert [c.packets for c in (counts.green, counts.yellow, counts.red)] == [4, 1, 2]
    assert counts.red.bytes == 2 * (len(frame()) + FCS_BYTES)


def test_a_color_aware_meter_makes_no_packet_better(tna: Make) -> None:
    """RFC 2698: red stays red and takes no tokens, yellow takes of the peak bucket only."""
    body = "h.d.b = meter.execute(0, (MeterColor_t) h.d.b, 0);"
    bench = tna(program(TO_PORT_1 + body, locals="Meter<bit<8>>(1, MeterType_t.PACKETS) meter;"))
    batch = bench.pipeline.batch()
    batch.set_meters(0, 0, [MeterConfig(0, 1, 0, 3)])
    batch.commit()
    arriving = [RED, RED, YELLOW, GREEN, YELLOW, GREEN]
    assert [bench.one(frame(b=color))[1] for color in arriving] == [RED, RED, YELLOW, GREEN, YELLOW, RED]


def test_a_direct_meter_marks_where_an_action_calls_it(tna: Make) -> None:
    locals_ = """DirectMeter(MeterType_t.PACKETS) meter;
    action mark() { h.d.b = meter.execute(); }
    action mark_again() { h.d.b = meter.execute((MeterColor_t) h.d.b, 0); }
    action pass() { }
    table t {
        key = { h.d.a: exact; } actions = { mark; mark_again; pass; } default_action = mark(); meters = meter;
    }"""
    bench = tna(program(TO_PORT_1 + "t.apply();", locals=locals_))
    table = bench.pipeline.program.tables[0]
    mark, again, skip = range(3)
    batch = bench.pipeline.batch()
    burst = MeterConfig(0, 1, 0, 2)
    for a, act in ((1, mark), (2, again), (3, skip)):
        batch.insert(table.index, [(a, 0)], ActionCall(act), meter=burst)
    batch.set_entry_meter(table.index, None, burst)
    handles = [result.handle for result in batch.commit()]
    assert [bench.one(frame(a=1))[1] for _ in range(3)] == [GREEN, YELLOW, RED]
    assert [bench.one(frame(a=2, b=YELLOW))[1] for _ in range(3)] == [YELLOW, YELLOW, RED]
    assert [bench.one(frame(a=3, b=7))[1] for _ in range(3)] == [7, 7, 7]
    assert [bench.one(frame(a=9))[1] for _ in range(3)] == [GREEN, YELLOW, RED], "the default entry has a meter, too"
    uncalled = bench.pipeline.entry(table.index, handles[2])
    assert uncalled is not None
    assert uncalled.colors == ColorCounts()


def test_a_direct_meter_is_executed_in_actions_of_its_table_only(tmp_path: Path) -> None:
    locals_ = """DirectMeter(MeterType_t.PACKETS) meter;
    action mark() { h.d.b = meter.execute(); }
    table t { key = { h.d.a: exact; } actions = { mark; } default_action = mark(); }"""
    path = tmp_path / "program.p4"
    path.write_text(program(TO_PORT_1 + "t.apply();", locals=locals_))
    (found,) = check(path)
    assert "meter is executed outside of its table's actions" in found.message


def test_checksum_of_the_deparser(tna: Make) -> None:
    bench = tna(
        program(
            deparser_locals="Checksum() sum;",
            deparser="if (h.d.a == 1) { h.d.c = sum.update({ h.d.a, h.d.b, h.d.d }); }",
        )
    )
    octets = frame(a=1, b=2, c=0xFFFF, d=0x01020304)
    expected = internet_checksum(octets[:2] + octets[4:8])
    assert bench.one(octets) == octets[:2] + expected.to_bytes(2, "big") + octets[4:]
    assert bench.one(frame(a=0, c=0xFFFF)) == frame(a=0, c=0xFFFF)


def test_digests_of_two_kinds(tna: Make) -> None:
    bench = tna(
        program(
            TO_PORT_1 + "dprsr.digest_type = (bit<3>) h.d.a;",
            top="struct one_t { bit<8> b; } struct two_t { bit<16> c; bit<32> d; }",
            deparser_locals='@name("first") Digest<one_t>() one; Digest<two_t>() two;',
            deparser="if (dprsr.digest_type == 1) { one.pack({ h.d.b }); } "
            "if (dprsr.digest_type == 2) { two.pack({ h.d.c, h.d.d }); }",
        )
    )
    for a in range(3):
        bench.one(frame(a=a, b=4, c=5, d=6))
    assert bench.digests() == [("first", (4,)), ("two", (5, 6))]


def test_min_and_max(tna: Make) -> None:
    bench = tna(program(TO_PORT_1 + "bit<8> least = min(h.d.a, h.d.b); h.d.b = max(h.d.a, h.d.b); h.d.a = least;"))
    assert bench.one(frame(a=9, b=3))[:2] == bytes([3, 9])
    assert bench.one(frame(a=3, b=9))[:2] == bytes([3, 9])


def test_random_numbers_differ(tna: Make) -> None:
    bench = tna(program(TO_PORT_1 + "h.d.d = any.get();", locals="Random<bit<32>>() any;"))
    assert len({bench.one(frame())[4:8] for _ in range(8)}) > 1
