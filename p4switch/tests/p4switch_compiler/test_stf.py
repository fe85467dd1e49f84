"""The STF runner: our own cases pass, wrong expectations fail."""

from __future__ import annotations

from pathlib import Path

import pytest

from p4switch.stf import FAILED, PASSED, UNSUPPORTED, run_stf
from p4switch_compiler.programs import program

CASES = sorted((Path(__file__).parents[1] / "stf").glob("*.stf"))


@pytest.mark.parametrize("case", CASES, ids=lambda p: p.stem)
def test_own_cases(case: Path) -> None:
    assert run_stf(case.with_suffix(".p4"), case) == PASSED


def run(tmp_path: Path, text: str, case: str) -> int:
    (tmp_path / "a.p4").write_text(text)
    (tmp_path / "a.stf").write_text(case)
    return run_stf(tmp_path / "a.p4", tmp_path / "a.stf")


@pytest.mark.parametrize(
    ("case", "status"),
    [
        ("packet 0 01020304 FF\nexpect 1 01020304 FF $", PASSED),
        ("packet 0 01020304 FF\nexpect 1 0102****", PASSED),
        ("packet 0 01020304 FF\nexpect 1", PASSED),
        ("packet 0 01020304 FF\nexpect 1 01020304 $", FAILED),
        ("packet 0 01020304 FF\nexpect 1 01020305", FAILED),
        ("packet 0 01020304 FF\nexpect 2 01020304", FAILED),
        ("packet 1 01020304 FF", FAILED),
        ("packet 0 01020304 FF\nexpect 1 01\nexpect 1 01", FAILED),
        ("dance 1", UNSUPPORTED),
        ("add nothing x:1 y()", UNSUPPORTED),
    ],
)
def test_expectations_decide(tmp_path: Path, case: str, status: int) -> None:
    assert run(tmp_path, program(), case + "\n") == status


def test_unsupported_and_wrong_programs(tmp_path: Path) -> None:
    assert run(tmp_path, program("mystery();", top="extern void mystery();"), "packet 0 00") == UNSUPPORTED
    assert run(tmp_path, program("nothing = 1;"), "packet 0 00") == FAILED
