"""Externs that programs for Tofino use beside stateful ALUs: profiles, direct counters, and what parsers count with."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from p4switch.compiler import CompileError, check, compile_to_ir
from p4switch.p4info import p4info_of
from p4switch.values import ActionCall, CounterValue, GroupRef, MemberRef, WeightedMember
from p4switch_tna.checksums import internet_checksum
from p4switch_tna.tna_bench import FCS_BYTES, TO_PORT_1, TnaBench, frame, program

Make = Callable[..., TnaBench]
FRAME_BYTES = len(frame()) + FCS_BYTES


def test_a_direct_counter_counts_where_an_action_calls_it(tna: Make) -> None:
    locals_ = """DirectCounter<bit<64>>(CounterType_t.PACKETS_AND_BYTES) seen;
    action count() { seen.count(); }
    action pass() { }
    table t { key = { h.d.a: exact; } actions = { count; pass; } default_action = pass(); counters = seen; }"""
    bench = tna(program(TO_PORT_1 + "t.apply();", locals=locals_))
    table = bench.pipeline.program.tables[0]
    batch = bench.pipeline.batch()
    for a, act in ((1, 0), (2, 1)):
        batch.insert(table.index, [(a, 0)], ActionCall(act))
    counted, passed = (result.handle for result in batch.commit())
    for a in (1, 1, 2):
        bench.one(frame(a=a))
    values = [entry.counter for h in (counted, passed) if (entry := bench.pipeline.entry(table.index, h))]
    assert values == [CounterValue(2, 2 * FRAME_BYTES), CounterValue(0, 0)]


def test_a_direct_counter_counts_in_actions_of_its_table_only(tmp_path: Path) -> None:
    locals_ = """DirectCounter<bit<64>>(CounterType_t.PACKETS) seen;
    action count() { seen.count(); }
    table t { key = { h.d.a: exact; } actions = { count; } default_action = count(); }"""
    path = tmp_path / "program.p4"
    path.write_text(program(TO_PORT_1 + "t.apply();", locals=locals_))
    (found,) = check(path)
    assert "seen is counted outside of its table's actions" in found.message


def test_registers_are_read_and_written_without_an_action(tna: Make) -> None:
    bench = tna(
        program(
            TO_PORT_1 + "if (h.d.b == 1) { cells.write(h.d.a, h.d.d); } else { h.d.d = cells.read(h.d.a); }",
            locals="Register<bit<32>, _>(4, 7) cells;",
        )
    )
    bench.one(frame(a=2, b=1, d=0xABCD))
    assert bench.register("cells") == [7, 7, 0xABCD, 7]
    assert bench.one(frame(a=2))[4:8] == (0xABCD).to_bytes(4)
    assert bench.one(frame(a=3))[4:8] == (7).to_bytes(4)


def test_a_register_is_met_once_however_it_is_accessed(tmp_path: Path) -> None:
    path = tmp_path / "program.p4"
    body = TO_PORT_1 + "h.d.d = cells.read(h.d.a); cells.write(h.d.a, h.d.d);"
    path.write_text(program(body, locals="Register<bit<32>, bit<8>>(4) cells;"))
    assert "can be accessed twice by one packet" in check(path)[0].message


PROFILE = """action set(bit<8> v) { h.d.b = v; }
    table t { key = { h.d.a: exact; KEY } actions = { set; } implementation = IMPLEMENTATION; }"""


def test_members_of_an_action_profile_are_shared(tna: Make) -> None:
    table = PROFILE.replace("KEY", "").replace("IMPLEMENTATION", "members")
    bench = tna(program(TO_PORT_1 + "t.apply();", locals="ActionProfile(8) members; " + table))
    batch = bench.pipeline.batch()
    batch.set_member(0, 5, ActionCall(0, (42,)))
    for a in (1, 2):
        batch.insert(0, [(a, 0)], MemberRef(5))
    batch.commit()
    assert [bench.one(frame(a=a))[1] for a in (1, 2, 3)] == [42, 42, 0]


def test_a_selector_spreads_by_its_hash_and_takes_the_place_of_its_profile(tna: Make) -> None:
    locals_ = """ActionProfile(8) members; Hash<bit<16>>(HashAlgorithm_t.CRC16) by;
    ActionSelector(members, by, SelectorMode_t.FAIR, 4, 2) choice; """
    table = PROFILE.replace("KEY", "h.d.d: selector;").replace("IMPLEMENTATION", "choice")
    bench = tna(program(TO_PORT_1 + "t.apply();", locals=locals_ + table))
    assert [(p.name, p.is_selector, p.size) for p in bench.pipeline.program.profiles] == [("I.choice", True, 8)]
    batch = bench.pipeline.batch()
    for member, value in ((1, 10), (2, 20)):
        batch.set_member(0, member, ActionCall(0, (value,)))
    batch.set_group(0, 1, [WeightedMember(1, 1), WeightedMember(2, 1)])
    batch.insert(0, [(1, 0)], GroupRef(1))
    batch.commit()
    assert {bench.one(frame(a=1, d=d))[1] for d in range(32)} == {10, 20}
    assert len({bench.one(frame(a=1, d=7))[1] for _ in range(8)}) == 1


def test_port_metadata_is_zero(tna: Make) -> None:
    text = program(
        TO_PORT_1 + "h.d.d = m.port.number;",
        top="struct port_t { bit<32> number; bit<32> more; }",
        metadata="port_t port;",
    ).replace("pkt.advance(PORT_METADATA_SIZE);", "m.port = port_metadata_unpack<port_t>(pkt);")
    assert tna(text).one(frame(a=1, d=9)) == frame(a=1, d=0)


def parsing(text: str, instance: str, states: str) -> str:
    """The program with an instance in its ingress parser, and with this instead of accepting at once."""
    start = "    state start {\n        pkt.extract(ig)"
    return text.replace(start, f"    {instance}\n{start}").replace(
        "pkt.extract(h.d); transition accept;\n    }", states
    )


def test_a_parser_verifies_a_checksum(tna: Make) -> None:
    """`verify` gives the error bit."""
    text = program(TO_PORT_1 + "h.d.b = m.wrong;", metadata="bit<8> wrong;")
    states = """pkt.extract(h.d); sum.add(h.d); bool bad = sum.verify(); m.wrong = bad ? 8w1 : 8w0; transition accept;
    }"""
    bench = tna(parsing(text, "Checksum() sum;", states))
    octets = frame(a=1, d=0x01020304)
    right = internet_checksum(octets[:2] + octets[4:8])
    assert bench.one(frame(a=1, c=right, d=0x01020304))[1] == 0
    assert bench.one(frame(a=1, c=right ^ 1, d=0x01020304))[1] == 1


def test_a_parser_counts(tna: Make) -> None:
    """Words after the header, until as many octets are read as it says."""
    body = "if (h.words[2].isValid()) { h.d.b = 3; } else if (h.words[1].isValid()) { h.d.b = 2; }"
    body += "else if (h.words[0].isValid()) { h.d.b = 1; }"
    text = program(TO_PORT_1 + body, top="header word_t { bit<32> w; }").replace("extra_t y;", "word_t[3] words;")
    states = """pkt.extract(h.d); left.set(h.d.a); transition select(left.is_zero()) { true: accept; false: word; }
    }
    state word {
        pkt.extract(h.words.next); left.decrement(4);
        transition select(left.is_zero(), left.is_negative()) { (true, _): accept; (_, true): accept; default: word; }
    }"""
    bench = tna(parsing(text, "ParserCounter() left;", states))
    assert [bench.one(frame(a=a, payload=bytes(16)))[1] for a in (0, 4, 5, 8, 12)] == [0, 1, 2, 2, 3]


def test_a_program_for_the_next_generation_is_told_so(tmp_path: Path) -> None:
    path = tmp_path / "program.p4"
    path.write_text("#include <core.p4>\n#include <t2na.p4>\n")
    with pytest.raises(CompileError, match="programs for Tofino 2 and later are not supported"):
        compile_to_ir(path)


def test_profiles_and_counters_are_in_p4info(tmp_path: Path) -> None:
    path = tmp_path / "program.p4"
    table = PROFILE.replace("KEY", "h.d.d: selector;").replace("IMPLEMENTATION", "choice")
    path.write_text(
        program(
            TO_PORT_1 + "t.apply();",
            locals="Hash<bit<16>>(HashAlgorithm_t.CRC16) by; ActionSelector(8, by, SelectorMode_t.FAIR) choice; "
            + table,
        )
    )
    (profile,) = p4info_of(compile_to_ir(path)[0]).action_profiles
    assert (profile.preamble.name, profile.with_selector, profile.size) == ("I.choice", True, 8)
