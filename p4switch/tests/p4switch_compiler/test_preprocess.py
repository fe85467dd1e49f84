"""The preprocessor: macros, conditionals, includes, and where its output came from."""

from __future__ import annotations

from pathlib import Path

import pytest

from p4switch.frontend.preprocess import preprocess
from p4switch.frontend.source import CompileError, SourceText


def run(tmp_path: Path, text: str, **defines: str) -> SourceText:
    path = tmp_path / "a.p4"
    path.write_text(text)
    return preprocess(path, defines, [])


def words(tmp_path: Path, text: str, **defines: str) -> list[str]:
    return run(tmp_path, text, **defines).text.split()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("#define A 1\nA B", "1 B"),
        ("#define A B\n#define B A\nA", "A"),
        ("#define F(x, y) x + y\nF(1, F(2, 3))", "1 + 2 + 3"),
        ("#define F(x) [x]\nF", "F"),
        ("#define F(x) [x]\nF((1, 2))", "[(1, 2)]"),
        ("#define F(x) [x]\nF(\n 1\n)", "[1]"),
        ("#define A 1\n#undef A\nA", "A"),
        ('#define A 1\n"A" A', '"A" 1'),
        ("#define LONG 1 + \\\n 2\nLONG", "1 + 2"),
        ("a /* b\n c */ d // e\nf", "a d f"),
        ("#if 0\nno\n#elif 2 > 1\nyes\n#else\nno\n#endif", "yes"),
        ("#if defined(X) || !defined Y\nyes\n#endif", "yes"),
        ("#ifdef X\nno\n#else\nyes\n#endif", "yes"),
        ("#ifndef X\n#if 1\nyes\n#endif\n#endif", "yes"),
        ("#if 0\n#error never\n#if 1\n#endif\n#endif\nyes", "yes"),
        ("#if (1 << 3) == 8 && 0x10 % 3 == 1 ? 1 : 0\nyes\n#endif", "yes"),
    ],
)
def test_expansion(tmp_path: Path, text: str, expected: str) -> None:
    assert words(tmp_path, text) == expected.split()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('#define S(x) #x\nS(a + "b")', '"a + \\"b\\""'),
        ("#define S(x) # x\n#define T(x) S(x)\n#define W 8\nS(W) T(W)", '"W" "8"'),
        ("#define J(a, b) a##b\n#define ab 7\nJ(a, b) J(x, 1)", "7 x1"),
        ("#define J(a, b) a ## _ ## b\n#define W 8\nJ(W, W)", "W_W"),
        ("#define J a ## b\nJ", "ab"),
        ("#define V(...) f(__VA_ARGS__)\nV(1, 2) V()", "f(1,2) f()"),
        ("#define V(x, ...) x(__VA_ARGS__)\nV(f, 1, g(2, 3)) V(f)", "f(1,g(2, 3)) f()"),
        ("#define V(x, rest...) x(rest)\nV(f, 1, 2)", "f(1,2)"),
        ("#define V(x, ...) f(x, ## __VA_ARGS__)\nV(1) V(1, 2)", "f(1) f(1,2)"),
    ],
)
def test_strings_joints_and_variadic_macros(tmp_path: Path, text: str, expected: str) -> None:
    assert run(tmp_path, text).text.split() == expected.split()


def test_what_macros_make_of_a_line_is_bounded(tmp_path: Path) -> None:
    doubles = "#define D(x) x x\n" + "D(" * 40 + "a" + ")" * 40
    with pytest.raises(CompileError, match="characters of a line"):
        run(tmp_path, doubles)
    with pytest.raises(CompileError, match="characters of a line"):
        run(tmp_path, f"#define L {'x' * 5000}\n{'L ' * 300}")


def test_strings_over_lines_keep_what_looks_like_a_comment(tmp_path: Path) -> None:
    text = '@a("\n  // one\n  /* two */ three") x; // four\n#if 0\na lone " quote\n#endif\ny; // five'
    assert run(tmp_path, text).text.split() == ['@a("', "//", "one", "/*", "two", "*/", 'three")', "x;", "y;"]


def test_a_string_goes_on_behind_lines_that_nobody_compiles(tmp_path: Path) -> None:
    text = '@a("one\n#if 0\nno // no\nno") no\n#endif\n// two") x; // three'
    assert words(tmp_path, text) == ['@a("one', "//", 'two")', "x;"]


def test_definitions_from_outside(tmp_path: Path) -> None:
    assert words(tmp_path, "#if SEGMENT_BYTES > 256\nbig\n#endif\nSEGMENT_BYTES", SEGMENT_BYTES="4096") == [
        "big",
        "4096",
    ]


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        ("\n#error not today", 2, "not today"),
        ('\n\n#include "missing.p4"', 3, "missing.p4 not found"),
        ("#if 1\n", 1, "no #endif"),
        ("#endif", 1, "#endif without #if"),
        ("#if 1 +\n#endif", 1, "ends too early"),
        ("#if 1 / 0\n#endif", 1, "zero"),
        ("#define F(x) x\nF(1, 2)", 2, "takes 1 arguments, not 2"),
        ("#nonsense", 1, "unknown preprocessor directive"),
        ("a\n/* b", 2, "does not end"),
    ],
)
def test_errors_are_located(tmp_path: Path, text: str, line: int, message: str) -> None:
    with pytest.raises(CompileError) as caught:
        run(tmp_path, text)
    diagnostic = caught.value.diagnostics[0]
    assert diagnostic.line == line
    assert message in diagnostic.message


def test_positions_map_back_through_includes(tmp_path: Path) -> None:
    (tmp_path / "b.p4").write_text("first\nsecond\n")
    source = run(tmp_path, '#define W 8\n\n#include "b.p4"\nbit<W> x;')
    file, line, column = source.locate(source.text.index("second"))
    assert (Path(file).name, line, column) == ("b.p4", 2, 1)
    file, line, column = source.locate(source.text.index("x;"))
    assert (Path(file).name, line, column) == ("a.p4", 4, 8)


def test_include_loops_end(tmp_path: Path) -> None:
    with pytest.raises(CompileError, match="nest deeper"):
        run(tmp_path, '#include "a.p4"')
