"""The page on security against the tests: every attack has some that exist, and nothing in tests/security is untold."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.security.table import PAGE, ROOT, Row, named_tests, rows

ROWS = rows(PAGE.read_text())


def functions_in(path: Path) -> set[str]:
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    names = [node.name for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, functions)]
    return {name for name in names if name.startswith("test_")}


def test_the_page_has_the_table() -> None:
    assert len(ROWS) >= 30
    assert rows("| a | tests |\n|---|---|\n| b | `tests/x.py::test_y`, no |\n\n| c | d |\n") == [
        Row("b", ("tests/x.py::test_y",))
    ]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.words[:60])
def test_every_row_names_tests_that_exist(row: Row) -> None:
    assert row.tests, "no test"
    for named in row.tests:
        path, _, name = named.partition("::")
        assert (ROOT / path).is_file(), f"there is no {path}"
        assert name in functions_in(ROOT / path), f"{path} has no {name}"


def test_every_file_of_attacks_is_in_the_table() -> None:
    files = {path.name for path in (ROOT / "tests" / "security").glob("test_*.py")}
    assert files == {Path(named.partition("::")[0]).name for named in named_tests() if "/security/" in named}


def test_make_runs_the_table() -> None:
    target = (ROOT / "Makefile").read_text().partition("\ntest-security:")[2].partition("\n\n")[0]
    assert "-m tests.security" in target
