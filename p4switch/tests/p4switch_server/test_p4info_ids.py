"""Ids and aliases: p4c's rules, with numbers that p4c was seen to give."""

from __future__ import annotations

from pathlib import Path

from p4switch.compiler import compile_to_ir
from p4switch.ir.types import Annotation
from p4switch.p4info import allocate_field_ids, allocate_ids, jenkins_one_at_a_time, p4info_of, shortest_unique_suffixes
from p4switch_compiler.programs import program


def test_ids_are_p4c_s():
    actions = allocate_ids(0x01, dict.fromkeys(["NoAction", "IngressI.aux.a", "ingress.add", "ingress.do_thing"]))
    assert actions == {
        "NoAction": 21257015,
        "IngressI.aux.a": 27422362,
        "ingress.add": 20728178,
        "ingress.do_thing": 26431821,
    }


def test_given_ids_get_the_prefix_of_their_kind_and_collisions_the_next_number():
    first = jenkins_one_at_a_time(b"b") & 0xFFFFFF
    ids = allocate_ids(0x02, {"a": first, "b": None})
    assert ids == {"a": 0x02000000 | first, "b": 0x02000000 | (first + 1)}


def test_aliases_are_the_shortest_suffixes_that_are_unique():
    assert shortest_unique_suffixes(["d.a.c", "e.b.c", "x.y", "y", "NoAction"]) == {
        "d.a.c": "a.c",
        "e.b.c": "b.c",
        "x.y": "x.y",
        "y": "y",
        "NoAction": "NoAction",
    }


def test_field_ids_count_around_those_given():
    given = Annotation("id", body=(1,))
    assert allocate_field_ids([[], [given], []]) == [2, 1, 3]
    assert allocate_field_ids([[], [], []]) == [1, 2, 3]


def test_actions_are_listed_control_by_control_as_by_p4c(tmp_path: Path):
    """What is declared outside of controls comes where it is first used; a control's own in order, by any name."""
    source = tmp_path / "order.p4"
    key = "key = { h.d.a : exact; }"
    source.write_text(
        program(
            top="action late(inout bit<8> b) { b = 1; } action early() { }",
            locals=f"""action second() {{ }}
            @name(".first") action first() {{ }}
            table t {{ {key} actions = {{ first; second; early; }} const default_action = early; }}""",
            body="t.apply();",
        ).replace(
            "control E(inout headers_t h, inout metadata_t m, inout standard_metadata_t s) { apply {  } }",
            f"""control E(inout headers_t h, inout metadata_t m, inout standard_metadata_t s) {{
                action own() {{ }}
                table u {{ {key} actions = {{ own; late(h.d.b); }} }}
                apply {{ u.apply(); }} }}""",
        )
    )
    names = [a.preamble.name for a in p4info_of(compile_to_ir(source)[0]).actions]
    assert names == ["early", "I.second", "first", "late", "NoAction", "E.own"]


def test_a_digest_of_a_number_is_numbered(tmp_path: Path):
    source = tmp_path / "digest.p4"
    source.write_text(program("digest<bit<9>>(1, s.ingress_port); digest<bool>(1, h.d.a == 1); digest(1, h.d);"))
    digests = p4info_of(compile_to_ir(source)[0]).digests
    assert [d.preamble.name for d in digests] == ["digest_0", "digest_1", "data_t"]
    assert digests[0].type_spec.bitstring.bit.bitwidth == 9
    assert digests[1].type_spec.HasField("bool")
