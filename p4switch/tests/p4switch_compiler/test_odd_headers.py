"""Headers that are no whole number of bytes: values like others, but in no packet."""

from __future__ import annotations

from pathlib import Path

import pytest

from p4switch.compiler import CompileError, check, compile_to_ir
from p4switch.p4info import p4info_of
from p4switch.testing import memory_switch

PROGRAM = """
#include <core.p4>
#include <v1model.p4>
header whole_t { bit<8> a; bit<8> b; }
header odd_t { bit<3> x; bit<10> y; }
@controller_header("packet_in") header packet_in_t { bit<9> port; bit<9> target; }
struct headers_t { whole_t h; HEADERS }
struct metadata_t { odd_t m; }
parser P(packet_in p, out headers_t h, inout metadata_t m, inout standard_metadata_t s) {
    odd_t seen;
    state start { p.extract(h.h); PARSER transition accept; }
}
control V(inout headers_t h, inout metadata_t m) { apply { } }
control I(inout headers_t h, inout metadata_t m, inout standard_metadata_t s) {
    odd_t local;
    apply {
        local.setValid();
        local.x = h.h.a[2:0];
        local.y = (bit<10>) h.h.b << 2 | 3;
        m.m = local;
        h.h.a = (bit<8>) m.m.x + 1;
        h.h.b = m.m == local ? m.m.y[9:2] : 0xee;
        m.m.setInvalid();
        if (m.m.isValid()) { h.h.b = 0xff; }
        s.egress_spec = 2;
    }
}
control D(packet_out p, in headers_t h) { apply { p.emit(h.h); } }
control E(inout headers_t h, inout metadata_t m, inout standard_metadata_t s) { apply { } }
V1Switch(P(), V(), I(), E(), V(), D()) main;
"""


def program(headers: str = "", parser: str = "") -> str:
    return PROGRAM.replace("HEADERS", headers).replace("PARSER", parser)


def test_they_are_values_like_others():
    with memory_switch(program(), ports=2) as switch:
        switch.send(1, bytes([0b101, 0x7A]) + bytes(60))
        assert switch.expect(2)[:2] == bytes([0b110, 0x7A])


def test_a_controllers_header_may_be_one(tmp_path: Path):
    (tmp_path / "a.p4").write_text(program())
    (header,) = p4info_of(compile_to_ir(tmp_path / "a.p4")[0]).controller_packet_metadata
    assert [(one.name, one.bitwidth) for one in header.metadata] == [("port", 9), ("target", 9)]


@pytest.mark.parametrize(
    ("headers", "parser", "line"),
    [("odd_t o;", "", 9), ("", "p.extract(seen);", 11), ("odd_t[2] o;", "", 9)],
)
def test_packets_carry_none(tmp_path: Path, headers: str, parser: str, line: int):
    (tmp_path / "a.p4").write_text(program(headers, parser))
    first = check(tmp_path / "a.p4")[0]
    assert "odd_t has 13 bits, which is not a whole number of bytes" in first.message
    assert first.line == line


def refused(tmp_path: Path, text: str) -> str:
    (tmp_path / "a.p4").write_text(text)
    with pytest.raises(CompileError) as caught:
        compile_to_ir(tmp_path / "a.p4")
    return caught.value.diagnostics[0].message


def test_a_forgotten_include_is_named(tmp_path: Path):
    text = program()
    assert "packet_in comes with #include <core.p4>" in refused(tmp_path, text.replace("#include", "//"))
    without = text.replace("#include <v1model.p4>", "")
    assert "standard_metadata_t comes with #include <v1model.p4>" in refused(tmp_path, without)


def test_p4_14_is_recognised(tmp_path: Path):
    assert "looks like P4_14" in refused(tmp_path, "header_type e_t {\n    fields { dst : 48; }\n}\n")


def test_two_lpm_keys_are_refused(tmp_path: Path):
    table = "action a() { } table t { key = { h.h.a: lpm; h.h.b: lpm; } actions = { a; } }"
    text = (
        program()
        .replace("    odd_t local;\n", f"    odd_t local; {table}\n")
        .replace("s.egress_spec = 2;", "t.apply();")
    )
    assert "table t has two lpm keys" in refused(tmp_path, text)
