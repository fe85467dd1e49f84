"""What a Tofino cannot do is an error that says where; what this switch does not do is unsupported."""

from __future__ import annotations

from pathlib import Path

import pytest

from p4switch.compiler import CompileError, compile_to_ir
from p4switch_tna.tna_bench import TO_PORT_1, program

MISSING = "does not implement abstract method 'apply'"
REGISTER = "Register<bit<32>, bit<8>>(4) cells;"


def action(body: str, name: str = "act", element: str = "bit<32>") -> str:
    return (
        f"RegisterAction<{element}, bit<8>, bit<32>>(cells) {name} = "
        f"{{ void apply(inout {element} v, out bit<32> r) {{ {body} }} }};"
    )


def refusal(tmp_path: Path, text: str) -> CompileError:
    path = tmp_path / "program.p4"
    path.write_text(text)
    with pytest.raises(CompileError) as caught:
        compile_to_ir(path)
    assert "program.p4:" in str(caught.value)
    return caught.value


@pytest.mark.parametrize(
    ("locals_", "message"),
    [
        ("Register<bit<64>, bit<8>>(4) cells;", "a cell is 1, 8, 16 or 32 bits"),
        ("Register<bit<12>, bit<8>>(4) cells;", "a cell is 1, 8, 16 or 32 bits"),
        ("Register<three_t, bit<8>>(4) cells;", "a struct of up to two numbers"),
        ("Register<mixed_t, bit<8>>(4) cells;", "a struct of up to two numbers"),
        ("Register<bit<32>, bit<8>>(0) cells;", "0 cells"),
        ("RegisterParam<pair_t>({ 1, 2 }) parameter;", "one number only"),
        (REGISTER + "".join(action("r = v;", f"act{i}") for i in range(5)), "more than 4 actions"),
        (
            REGISTER + "RegisterAction<bit<32>, bit<8>, bit<32>>(cells) act;",
            MISSING,
        ),
        (
            REGISTER + "RegisterAction<bit<32>, bit<8>, bit<32>>(cells) act = { };",
            MISSING,
        ),
        (
            REGISTER + "RegisterAction<bit<32>, bit<8>, bit<32>>(cells) act = { void apply(inout bit<16> v) { } };",
            "must be 'inout bit<32>'",
        ),
        (
            REGISTER + "RegisterAction<bit<32>, bit<8>, bit<32>>(cells) act = { void other(inout bit<32> v) { } };",
            "no abstract method 'other'",
        ),
        ("Hash<bit<32>>(HashAlgorithm_t.CRC16) hash;", "which gives 16"),
    ],
)
def test_declarations(tmp_path: Path, locals_: str, message: str) -> None:
    top = """struct pair_t { bit<32> a; bit<32> b; } struct three_t { bit<8> a; bit<8> b; bit<8> c; }
             struct mixed_t { bit<8> a; bit<16> b; }"""
    assert message in str(refusal(tmp_path, program(locals=locals_, top=top)))


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("v = v * 3; r = v;", "no operator '*'"),
        ("v = v << 1; r = v;", "no operator '<<'"),
        ("if (v == 1) { v = 2; } else if (v < 5) { v = 3; } else if (v > 9) { v = 4; } r = v;", "3 conditions"),
        ("v = h.d.d + (bit<32>) h.d.c; v = v + (bit<32>) h.d.b; r = v;", "reads 3 fields of the packet"),
        ("h.d.d = v; r = v;", "can only write the cell and its result"),
    ],
)
def test_what_an_action_asks_of_its_alu(tmp_path: Path, body: str, message: str) -> None:
    text = program(TO_PORT_1 + "h.d.d = act.execute(0);", locals=REGISTER + action(body))
    assert message in str(refusal(tmp_path, text))


def test_a_parameter_read_twice_is_compared_twice(tmp_path: Path) -> None:
    """As p4c has it: the remedy is a variable."""
    twice = "if (v < most.read() && h.d.d == 1) { v = 1; } if (v < most.read()) { r = 1; }"
    once = "bit<32> limit = most.read(); if (v < limit && h.d.d == 1) { v = 1; } if (v < limit) { r = 1; }"
    texts = [
        program(
            TO_PORT_1 + "h.d.d = act.execute(0);", locals="RegisterParam<bit<32>>(1) most; " + REGISTER + action(body)
        )
        for body in (twice, once)
    ]
    assert "3 conditions" in str(refusal(tmp_path, texts[0]))
    path = tmp_path / "program.p4"
    path.write_text(texts[1])
    compile_to_ir(path)


def test_the_same_condition_twice_is_one(tmp_path: Path) -> None:
    body = "if (v == h.d.d) { v = 1; } if (!(v != h.d.d)) { r = 2; } if (v >= 7) { r = 3; } if (7 > v) { r = 4; }"
    path = tmp_path / "program.p4"
    path.write_text(program(TO_PORT_1 + "h.d.d = act.execute(0);", locals=REGISTER + action(body)))
    compile_to_ir(path)


@pytest.mark.parametrize(
    "body",
    [
        "h.d.d = act.execute(0); h.d.d = act.execute(1);",
        "h.d.d = act.execute(0); if (h.d.a == 1) { h.d.d = other.execute(1); }",
        "if (h.d.a == 0) { h.d.d = act.execute(0); } h.d.d = other.execute(1);",
        "t.apply(); h.d.d = act.execute(0);",
    ],
)
def test_a_register_is_met_once(tmp_path: Path, body: str) -> None:
    locals_ = f"""{REGISTER} {action("r = v;")} {action("v = 1; r = v;", "other")}
        action look() {{ h.d.d = act.execute(2); }}
        table t {{ actions = {{ look; }} default_action = look(); }}"""
    assert "accessed twice by one packet" in str(refusal(tmp_path, program(TO_PORT_1 + body, locals=locals_)))


@pytest.mark.parametrize(
    "body",
    [
        "if (h.d.a == 0) { h.d.d = act.execute(0); } else { h.d.d = other.execute(1); }",
        "if (h.d.a == 0) { h.d.d = act.execute(0); exit; } h.d.d = other.execute(1);",
        "if (h.d.a == 0) { h.d.d = act.execute(0); return; } h.d.d = other.execute(1);",
    ],
)
def test_ways_that_exclude_each_other(tmp_path: Path, body: str) -> None:
    path = tmp_path / "program.p4"
    path.write_text(
        program(TO_PORT_1 + body, locals=f"{REGISTER} {action('r = v;')} {action('v = 1; r = v;', 'other')}")
    )
    compile_to_ir(path)


def test_asking_for_nothing_is_fine(tmp_path: Path) -> None:
    path = tmp_path / "program.p4"
    path.write_text(program("tm.copy_to_cpu = 0; tm.level1_exclusion_id = 0;", egress="dprsr.mirror_type = 0;"))
    compile_to_ir(path)


def test_another_package_of_that_name(tmp_path: Path) -> None:
    refused = refusal(tmp_path, "package Switch(); Switch() main;")
    assert refused.unsupported
    assert "not tna's" in str(refused)


def test_two_pipes(tmp_path: Path) -> None:
    text = program().replace("Switch(pipe) main;", "Switch(pipe, pipe) main;")
    assert "more than one pipe" in str(refusal(tmp_path, text))


def test_a_register_parameter_belongs_to_register_actions(tmp_path: Path) -> None:
    text = program(TO_PORT_1 + "h.d.d = most.read();", locals="RegisterParam<bit<32>>(1) most;")
    assert "in a register action only" in str(refusal(tmp_path, text))


def test_a_mirror_header_has_whole_bytes(tmp_path: Path) -> None:
    text = program(top="header m_t { bit<8> a; bit<8> b; }", deparser_locals="Mirror() m;", deparser="m.emit(1, h.w);")
    assert refusal(tmp_path, text)
    wide = "header m_t { " + "".join(f"bit<64> f{i}; " for i in range(5)) + "}"
    values = ", ".join("0" for _ in range(5))
    text = program(top=wide, deparser_locals="Mirror(1) m;", deparser=f"m.emit<m_t>(1, {{ {values} }});")
    assert "at most 32" in str(refusal(tmp_path, text))


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({"deparser_locals": "Resubmit() r;"}, "extern Resubmit"),
        ({"locals": "Hash<bit<8>>(HashAlgorithm_t.CRC8) hash;"}, "hash algorithm CRC8"),
        ({"egress_locals": "Checksum() c;", "egress": "h.d.c = c.get();"}, "method get of Checksum"),
        ({"body": "tm.copy_to_cpu = 1;"}, "copy_to_cpu of ingress_intrinsic_metadata_for_tm_t"),
        (
            {"locals": "Meter<bit<8>>(4, MeterType_t.BYTES) m;", "body": "h.d.b = m.execute(0, MeterColor_t.RED, 4);"},
            "an adjust_byte_count that is not zero",
        ),
        ({"body": "tm.level1_exclusion_id = h.d.c;"}, "level1_exclusion_id of"),
        ({"egress": "dprsr.mirror_type = 1;"}, "mirror_type of egress_intrinsic_metadata_for_deparser_t"),
    ],
)
def test_what_is_not_there_is_unsupported(tmp_path: Path, parts: dict[str, str], message: str) -> None:
    refused = refusal(tmp_path, program(**{"body": TO_PORT_1} | parts))
    assert refused.unsupported
    assert message in str(refused)
