"""The type checker: what it must accept, and what it must reject where."""

from __future__ import annotations

from pathlib import Path

import pytest

from p4switch.compiler import check
from p4switch.frontend.source import Diagnostic, Severity
from p4switch_compiler.programs import program


def errors(tmp_path: Path, text: str) -> list[Diagnostic]:
    path = tmp_path / "a.p4"
    path.write_text(text)
    return [d for d in check(path) if d.severity is not Severity.WARNING]


@pytest.mark.parametrize(
    "body",
    [
        "h.d.a = h.d.b + 1;",
        "h.d.c = h.d.a ++ h.d.b;",
        "h.d.a = (bit<8>) h.d.c;",
        "h.d.a[3:0] = h.d.b[7:4];",
        "h.d.c = (h.d.a == 1) ? 16w5 : h.d.c;",
        "h.d.a = h.d.a |+| 200;",
        "h.d.a = (bit<8>)(int<8>) -1;",
        "bool t = h.d.isValid() && !(h.d.a > 3); if (t) { h.d.setInvalid(); }",
        "tuple<bit<8>, bool> t = { 1, true }; h.d.a = t[0];",
        "h.d = { 1, 2, 3 };",
        "h.d = { c = 1, a = 2, b = 3 };",
        "data_t x = { 1, 2, 3 }; if (x == h.d) { h.d.a = 1; }",
        "switch (h.d.a) { 1: 2: { h.d.b = 1; } default: { } }",
        "for (bit<8> i in 8w0 .. 3) { h.d.a = h.d.a + i; }",
        "h.d.a += 1; h.d.a <<= 2; h.d.a >>= 1;",
    ],
)
def test_accepted(tmp_path: Path, body: str) -> None:
    assert [d.render() for d in errors(tmp_path, program(body))] == []


REJECTED = [
    ("h.d.a = h.d.c;", "h.d.c;", "expected bit<8>, found bit<16>"),
    ("h.d.a = nothing;", "nothing", "'nothing' is not declared"),
    ("h.d.x = 1;", "x = 1", "has no field 'x'"),
    ("h.d.a = h.d.a + h.d.c;", "+ h.d.c", "operator '+' is not defined for bit<8> and bit<16>"),
    ("if (h.d.a) { }", "h.d.a)", "expected bool"),
    ("h.d.a = h.d.a[8:1];", "8:1]", "bit 8 is outside of bit<8>"),
    ("h.d.a = true;", "true", "expected bit<8>, found bool"),
    ("1 = h.d.a;", "1 = h", "this is a value"),
    ("s.egress_spec = (bit<9>) h.d;", "(bit<9>)", "cannot cast data_t to bit<9>"),
    ("h.d.a = h.d.a / 0;", "0;", "division by zero"),
    ("h.d.a = h.d.a << -1;", "-1", "must not be negative"),
    ("mark_to_drop(s, s);", "mark", "takes 2 arguments"),
    ("hash(h.d.c, HashAlgorithm.nope, 16w0, { h.d.a }, 16w5);", "nope", "has no member 'nope'"),
    ("h.d.nope();", "nope", "has no field 'nope'"),
    ("t.apply();", "t.apply", "'t' is not declared"),
    ("h.d = { 1, 2 };", "{ 1, 2 }", "has 3 parts, this list has 2"),
    ("h.d = { a = 1, b = 2 };", "{ a = 1", "field 'c' of data_t has no value"),
    ("bit<8> x; bit<8> x;", "x;", "already declared"),
    ("return 1;", "1;", "nothing can be returned"),
    ("break;", "break", "belong in a loop"),
    ("error e = error.Nope;", "Nope", "error 'Nope' is not declared"),
    ("h.d.a = ((int<8>) h.d.a) ++ 1;", "++ 1", "operator '++'"),
    ("h.d.a = h.d.a / -1;", "-1", "not defined for negative numbers"),
    ("tuple<bit<8>, bit<8>, bit<16>> t = { 1, 2, 3 }; h.d = t;", "t;", "expected data_t, found tuple"),
    ("h.d = { 1, ..., 3 };", "3 }", "'...' must be the last element"),
    ("random(h.d.a, 0, 5); log_msg(6);", "6);", "expected string, found int"),
]


@pytest.mark.parametrize(("body", "where", "message"), REJECTED)
def test_rejected_with_the_place(tmp_path: Path, body: str, where: str, message: str) -> None:
    text = program(body)
    found = errors(tmp_path, text)
    assert found, "accepted"
    first = found[0]
    start = text.index(body)
    at = start + (body.rindex(where) if where == "x;" else body.index(where))
    line = text.count("\n", 0, at) + 1
    column = at - text.rfind("\n", 0, at)
    assert message in first.message
    assert (first.line, first.column) == (line, column), first.render()


@pytest.mark.parametrize(
    ("pieces", "message"),
    [
        ({"locals": "table t { key = { h.d.a : exact; } actions = { nope; } }"}, "'nope' is not declared"),
        ({"locals": "table t { key = { h.d.a : nope; } actions = { NoAction; } }"}, "match kind 'nope'"),
        (
            {"locals": "action a(bit<8> x) { } table t { actions = { a; } default_action = a(); }"},
            "needs an argument for 'x'",
        ),
        (
            {
                "locals": "table t { key = { h.d.a : exact; } actions = { NoAction; }"
                " const entries = { (1, 2) : NoAction(); } }"
            },
            "has 1 keys, this entry 2",
        ),
        ({"locals": "action a(bit<8> x) { x = 1; }"}, "has no direction"),
        ({"parser": "state start { transition nowhere; }"}, "there is no state 'nowhere'"),
        ({"parser": "state begin { transition accept; }"}, "no state 'start'"),
        (
            {"parser": "state start { pkt.extract(h.d); transition select(h.d.a) { 16w1 : accept; } }"},
            "expected bit<8>",
        ),
        ({"top": "struct S { nope x; }"}, "type 'nope' is not declared"),
        ({"top": "enum bit<8> e { a }"}, "needs a value"),
        ({"top": "const bit<8> c = 8w1; const bit<8> c = 8w2;"}, "already declared"),
        ({"top": "bit<8> f(in bit<8> x) { if (x == 1) { return x; } }"}, "does not return a value on every path"),
        ({"top": "control c(inout bit<8> x) { apply { y = 1; } }"}, "'y' is not declared"),
        ({"top": "extern void f<T>(in T x);", "body": "f(5);"}, "the width of argument 'x' cannot be inferred"),
        ({"top": "extern void f<T>(in T x);", "body": 'f("x");'}, "argument 'x' cannot be a string"),
        ({"top": "extern void f<T>(in T x);", "body": "f({ a = h.d.a });"}, "the struct of argument 'x'"),
        ({"top": "extern E { void E(); }"}, "the constructor of extern E cannot have a return type"),
        ({"top": "extern E { E(bit<8> x); void m(bit<8> a); void m(bit<8> a); }"}, "these parameters twice"),
        ({"top": "void f(out bit<8> x = 1) { }"}, "cannot have a default value"),
        ({"top": "void f(@optional in bit<8> x) { }"}, "cannot be optional"),
        ({"top": "control c() { apply { } } control d()(c x) { apply { } }"}, "needs the type of a control"),
        ({"top": "control c(); control d(c x) { apply { } }"}, "cannot have type control c"),
        ({"locals": "action a(int x) { }"}, "cannot have type int"),
        ({"top": "control c(); struct S { tuple<c> x; }"}, "a tuple cannot hold c"),
        ({"top": "type bit<8> t; enum t e { a = 1 }"}, "must be bit<> or int<>"),
        ({"parser": "state start { pkt.extract(m); transition accept; }"}, "only a header can be extracted"),
        ({"parser": "state start { pkt.extract(h.d, 8); transition accept; }"}, "has no varbit field"),
        ({"parser": "state start { transition next; } state next { transition start; }"}, "never reaches accept"),
        (
            {"parser": "state start { pkt.extract(h.d); transition select(h.d) { _ : accept; } }"},
            "select is not defined for data_t",
        ),
        ({"top": "type bit<1> t; t f(bit<2> x) { return (t) x; }"}, "cannot cast bit<2> to t"),
        (
            {
                "locals": "action a(inout bit<8> x, bit<8> y) { x = y; } table t {"
                " actions = { a(h.d.a); } default_action = a(h.d.b, 1); }"
            },
            "differs from the one in the table's action list",
        ),
        ({"locals": "table t { key = { h.d.a + 1 : exact; } actions = { NoAction; } }"}, "needs a @name"),
        (
            {
                "locals": "table t { key = { h.d.a : exact; } actions = { NoAction; }"
                " entries = { priority = 1 : 2 : NoAction(); } }"
            },
            "drop the priority",
        ),
        (
            {
                "locals": "table t { key = { h.d.a : ternary; } actions = { NoAction; }"
                " entries = { 1 : NoAction(); priority = 1 : 2 : NoAction(); } }"
            },
            "the first entry needs a priority",
        ),
        (
            {
                "locals": "table t { key = { h.d.a : exact; } actions = { @defaultonly NoAction; }"
                " const entries = { 1 : NoAction(); } }"
            },
            "is @defaultonly",
        ),
        (
            {"locals": '@name(".x") action a() { } @name(".x") action b() { } table t { actions = { a; b; } }'},
            "another action has the control-plane name 'x' already",
        ),
    ],
)
def test_declarations_rejected(tmp_path: Path, pieces: dict[str, str], message: str) -> None:
    found = errors(tmp_path, program(**pieces))
    assert any(message in d.message for d in found), [d.render() for d in found]
    assert all(d.line > 0 and d.column > 0 and d.file for d in found)


@pytest.mark.parametrize(
    ("pieces", "message"),
    [
        ({"top": "extern void mystery(in bit<8> x);", "body": "mystery(h.d.a);"}, "extern function mystery"),
        ({"fields": "bit<8> a; bit<3> b; bit<8> c;"}, "not a whole number of bytes"),
        ({"top": "extern Box { Box(); void m(); }", "locals": "Box() box;", "body": "box.m();"}, "extern Box"),
    ],
)
def test_unsupported_is_a_located_diagnostic(tmp_path: Path, pieces: dict[str, str], message: str) -> None:
    found = errors(tmp_path, program(**pieces))
    assert [d.severity for d in found] == [Severity.UNSUPPORTED]
    assert message in found[0].message
    assert found[0].line > 0


def test_one_mistake_gives_one_message(tmp_path: Path) -> None:
    found = errors(tmp_path, program("bit<8> x = nothing; x = x + 1; h.d.a = x;"))
    assert len(found) == 1


def test_a_number_too_large_is_a_warning(tmp_path: Path) -> None:
    path = tmp_path / "a.p4"
    path.write_text(program("h.d.a = 256;"))
    assert [(d.severity, d.message) for d in check(path)] == [(Severity.WARNING, "256 does not fit in bit<8>")]


def test_long_sums_and_deep_parentheses(tmp_path: Path) -> None:
    assert errors(tmp_path, program("h.d.a = " + " + ".join(["h.d.b"] * 1500) + ";")) == []
    assert errors(tmp_path, program("h.d.a = " + "(" * 90 + "1" + ")" * 90 + ";")) == []
    found = errors(tmp_path, program("h.d.a = " + " + ".join(["h.d.b"] * 5000) + ";"))
    assert [d.severity for d in found] == [Severity.UNSUPPORTED]
