"""Warnings: what is legal and probably not meant. And silence where a program is as it should be."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from p4switch.cli import main
from p4switch.compiler import check
from p4switch.frontend.source import Severity
from p4switch_compiler.programs import program


def warnings(tmp_path: Path, text: str) -> list[str]:
    source = tmp_path / "program.p4"
    source.write_text(text)
    found = check(source)
    assert all(one.severity is Severity.WARNING for one in found), [one.render() for one in found]
    return [one.message for one in found]


TABLE = "action known(bit<8> v) { h.d.b = v; } table t { key = { h.d.a: exact; } actions = { known; } }"


@pytest.mark.parametrize(
    ("pieces", "says"),
    [
        ({"locals": "bit<8> x;"}, ["'x' is unused"]),
        ({"body": "bit<8> x = 1;"}, ["'x' is unused"]),
        ({"locals": TABLE}, ["'t' is unused"]),
        ({"locals": "action gone() { }"}, ["'gone' is unused"]),
        ({"locals": "counter(4, CounterType.packets) c;"}, ["'c' is unused"]),
        ({"locals": "action a(bit<8> v) { }", "body": "a(1);"}, ["'v' is unused"]),
        ({"parser": "state start { pkt.extract(h.d); }"}, ["'start' has no transition: it rejects"]),
        (
            {"parser": "state start { pkt.extract(h.d); transition accept; } state far { transition accept; }"},
            ["no state leads to 'far'"],
        ),
        ({"body": "bit<8> x; h.d.a = x;"}, ["'x' may have no value here"]),
        ({"body": "bit<8> x; if (h.d.a == 1) { x = 2; } h.d.a = x;"}, ["'x' may have no value here"]),
        ({"body": "bit<8> x; x = x + 1;"}, ["'x' may have no value here"]),
        ({"body": "bit<8> x; for (bit<8> i in 0 .. h.d.b) { x = i; } h.d.a = x;"}, ["'x' may have no value here"]),
        (
            {"locals": "action a(out bit<8> v) { if (h.d.a == 1) { v = 1; } }", "body": "a(h.d.b);"},
            ["'a' may end without a value for 'v'"],
        ),
        (
            {"headers": "data_t other;", "body": "h.d.a = h.other.a + h.other.b;"},
            ["nothing makes the header 'other' valid: its fields have no value"],
        ),
        (
            {"body": "data_t own; own.a = 1; h.d.a = own.a;"},
            ["nothing makes the header 'own' valid: its fields have no value"],
        ),
    ],
)
def test_what_is_probably_not_meant(tmp_path: Path, pieces: dict[str, str], says: list[str]) -> None:
    assert warnings(tmp_path, program(**pieces)) == says


@pytest.mark.parametrize(
    "pieces",
    [
        {"locals": TABLE, "body": "t.apply();"},
        {
            "locals": "direct_counter(CounterType.packets) c;" + TABLE.replace("} actions", "} counters = c; actions"),
            "body": "t.apply();",
        },
        {"body": "bit<8> x; if (h.d.a == 1) { x = 2; } else { x = 3; } h.d.a = x;"},
        {"body": "bit<8> x; if (h.d.a == 1) { exit; } else { x = 3; } h.d.a = x;"},
        {"body": "bit<8> x; x[3:0] = 1; h.d.a = x;"},
        {"body": "bit<8> x; switch (h.d.a) { 1: { x = 1; } default: { x = 2; } } h.d.a = x;"},
        {"locals": "action a(out bit<8> v) { v = 1; }", "body": "bit<8> x; a(x); h.d.a = x;"},
        {"top": "bit<8> f(in bit<8> v) { bit<8> r; r = v; return r; }", "body": "h.d.a = f(h.d.b);"},
        {"headers": "data_t other;", "body": "h.other.setValid(); h.other.a = 1;"},
        {"headers": "data_t other;", "body": "h.other = h.d; h.d.a = h.other.a;"},
        {"headers": "data_t[2] many;", "body": "h.many.push_front(1); h.many[0].a = 1;"},
        {"body": "data_t own = h.d; h.d.a = own.a;"},
        {"headers": "data_t other;", "body": "headers_t copy = h; h.d.a = copy.d.a;"},
    ],
)
def test_silence(tmp_path: Path, pieces: dict[str, str]) -> None:
    assert warnings(tmp_path, program(**pieces)) == []


def test_check_shows_warnings_with_their_place(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = tmp_path / "program.p4"
    source.write_text(program("bit<8> x = 1;"))
    assert main([str(source), "--check"]) == 0
    line = next(n for n, text in enumerate(source.read_text().splitlines(), 1) if "bit<8> x" in text)
    assert capsys.readouterr().err.splitlines()[0] == f"{source}:{line}:16: warning: 'x' is unused"


@pytest.mark.parametrize(("text", "severity", "status"), [("bit<8> x = 1;", "warning", 0), ("h.d.z = 1;", "error", 1)])
def test_diagnostics_for_editors(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, severity: str, status: int
) -> None:
    source = tmp_path / "program.p4"
    source.write_text(program(text))
    assert main([str(source), "--check", "--log-format", "json"]) == status
    [line] = capsys.readouterr().err.splitlines()
    found = json.loads(line)
    assert (found["severity"], found["file"]) == (severity, str(source))
    assert found["line"] > 1 and found["column"] > 1 and found["message"]
