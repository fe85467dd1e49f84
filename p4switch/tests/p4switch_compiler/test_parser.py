"""The parser: the ambiguous corners of the grammar, and syntax errors with their places."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest

from p4switch.frontend import ast
from p4switch.frontend.parser import parse
from p4switch.frontend.preprocess import preprocess
from p4switch.frontend.source import CompileError, Reporter


def parse_text(tmp_path: Path, text: str) -> tuple[ast.Program, Reporter]:
    path = tmp_path / "a.p4"
    path.write_text(text)
    reporter = Reporter(preprocess(path, {}, []))
    return parse(reporter), reporter


def expression(tmp_path: Path, text: str) -> ast.Expr:
    program, _ = parse_text(tmp_path, f"struct S {{ }}\nextern void f<T>(in T x);\nconst bit<8> c = {text};")
    decl = program.declarations[-1]
    assert isinstance(decl, ast.Constant)
    return decl.init


def shape(e: ast.Expr) -> str:
    """An expression with every operation in parentheses."""
    if isinstance(e, ast.Binary):
        return f"({shape(e.left)} {e.op} {shape(e.right)})"
    if isinstance(e, ast.Unary):
        return f"({e.op} {shape(e.operand)})"
    if isinstance(e, ast.Ternary):
        return f"({shape(e.condition)} ? {shape(e.yes)} : {shape(e.no)})"
    if isinstance(e, ast.Cast):
        return f"(cast {shape(e.operand)})"
    if isinstance(e, ast.Member):
        return f"{shape(e.base)}.{e.name}"
    if isinstance(e, ast.Index):
        return f"{shape(e.base)}[{shape(e.index)}]"
    if isinstance(e, ast.Slice):
        return f"{shape(e.base)}[{shape(e.high)}:{shape(e.low)}]"
    if isinstance(e, ast.Call):
        arguments = ", ".join(shape(a.expr) for a in e.arguments if a.expr is not None)
        return f"{shape(e.function)}{'<>' if e.type_arguments else ''}({arguments})"
    return e.name if isinstance(e, ast.Name) else str(getattr(e, "number", e))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a + b * c", "(a + (b * c))"),
        ("a - b - c", "((a - b) - c)"),
        ("a & b == c", "((a & b) == c)"),  # P4: bitwise binds closer than comparison
        ("a == b < c", "(a == (b < c))"),
        ("a || b && c", "(a || (b && c))"),
        ("a | b ^ c & d << 1", "(a | (b ^ (c & (d << 1))))"),
        ("a >> 1", "(a >> 1)"),
        ("a > b", "(a > b)"),
        ("a ++ b ++ c", "((a ++ b) ++ c)"),
        ("-a[3:0] + ~b", "((- a[3:0]) + (~ b))"),
        ("(bit<8>) a + b", "((cast a) + b)"),
        ("(a) + b", "(a + b)"),
        ("a < b ? c : d", "((a < b) ? c : d)"),
        ("f<bit<8>>(a)", "f<>(a)"),
        ("f<S>(a)", "f<>(a)"),
        ("a < (b)", "(a < b)"),
        ("h.x[2].y", "h.x[2].y"),
        ("a |+| b |-| c", "((a |+| b) |-| c)"),
    ],
)
def test_precedence(tmp_path: Path, text: str, expected: str) -> None:
    assert shape(expression(tmp_path, text)) == expected


@pytest.mark.parametrize(
    ("text", "line", "column", "message"),
    [
        ("header h { bit<8> a }", 1, 21, "expected ';'"),
        ("const bit<8> a = ;", 1, 18, "expected an expression"),
        ("struct S {\n  bit<8 a;\n}", 2, 9, "expected '>'"),
        ("control c() {\n  apply { x = 1 }\n}", 2, 17, "expected ';'"),
        ("control c() { action a() { } }", 1, 30, "apply"),
        ("parser p() { }", 1, 14, "no states"),
        ("\n`", 2, 1, "unexpected character"),
        ('const bit<8> a = "x', 1, 18, "string does not end"),
        ("Nothing x;", 1, 1, "'Nothing' is not a type"),
        ("control c() { apply { a.b(1) + 2; } }", 1, 30, "expected ';'"),
        ("table t { }", 1, 1, "declaration"),
    ],
)
def test_syntax_errors_are_located(tmp_path: Path, text: str, line: int, column: int, message: str) -> None:
    path = tmp_path / "a.p4"
    path.write_text(text)
    reporter = Reporter(preprocess(path, {}, []))
    with contextlib.suppress(CompileError):
        parse(reporter)
    first = reporter.diagnostics[0]
    assert (first.line, first.column) == (line, column), first.render()
    assert message in first.message


def test_deep_nesting_is_a_diagnostic(tmp_path: Path) -> None:
    path = tmp_path / "a.p4"
    path.write_text("const int a = " + "(" * 5000 + "1" + ")" * 5000 + ";")
    reporter = Reporter(preprocess(path, {}, []))
    with pytest.raises(CompileError):
        parse(reporter)
    assert "nesting deeper" in reporter.diagnostics[0].message


def test_rendering_shows_the_line_and_a_caret(tmp_path: Path) -> None:
    path = tmp_path / "a.p4"
    path.write_text("header h { bit<8> a }\n")
    reporter = Reporter(preprocess(path, {}, []))
    with pytest.raises(CompileError):
        parse(reporter)
    assert reporter.diagnostics[0].render().splitlines()[1:] == ["header h { bit<8> a }", " " * 20 + "^"]
