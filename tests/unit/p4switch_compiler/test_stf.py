"""The STF runner: our own cases pass, wrong expectations fail, p4c's suite where it is at hand."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from programs import program

from p4switch.stf import FAILED, PASSED, UNSUPPORTED, run_stf

CASES = sorted((Path(__file__).parents[2] / "stf").glob("*.stf"))


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


@pytest.mark.long
def test_suite_of_p4c() -> None:
    """At least 90 % of the v1model cases of p4c's own suite, where P4C_SAMPLES names its folder p4_16_samples."""
    folder = os.environ.get("P4C_SAMPLES")
    if folder is None:
        pytest.skip("P4C_SAMPLES does not name p4c's testdata/p4_16_samples")
    results: dict[str, int] = {}
    for case in sorted(Path(folder).glob("*.stf")):
        source = case.with_suffix(".p4")
        if source.exists() and "v1model.p4" in source.read_text(errors="replace"):
            results[case.stem] = run_stf(source, case)
    passed = sum(status == PASSED for status in results.values())
    assert passed >= 0.9 * len(results), {name: status for name, status in results.items() if status != PASSED}
