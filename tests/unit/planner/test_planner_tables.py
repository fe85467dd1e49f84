"""The tables of the page of planner studies: made from a case's figures, and put where the page wants them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from planner.cluster.options import Sharing
from tools import planner_tables
from tools.planner_tables import Case, Found, code_of, put_into, run_case

PAGE = Path(planner_tables.__file__).parents[1] / "docs" / "research" / "planner.md"


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Found:
    results = tmp_path_factory.mktemp("results")
    case = Case("rollout8", 12, nodes=3)
    told: list[float] = []
    first = run_case(case, results, "commit", lambda _, share: told.append(share))
    assert told[-1] == 1.0
    told.clear()
    assert run_case(case, results, "commit", lambda _, share: told.append(share)) == first
    assert told == [], "what a file has is not replayed again"
    return first


def test_each_table_has_a_row_for_a_case_and_as_many_cells_as_heads(found: Found) -> None:
    assert set(found.replays) == set(Sharing)
    for name, (_, make) in planner_tables.TABLES.items():
        heads, rule, *rows = make([found]).splitlines()
        assert rows and set(rule) == {"|", "-"}, name
        assert {line.count("|") for line in (rule, *rows)} == {heads.count("|")}, name


def test_a_row_names_its_trace_and_what_pays_is_bold(found: Found) -> None:
    (row,) = planner_tables.pays([found]).splitlines()[2:]
    assert row.startswith("| rollout8, 12 | ")
    assert ("**" in row) == any(found.times(way).startswith("**") for way in Sharing)


def test_the_page_has_a_place_for_each_table() -> None:
    page = PAGE.read_text()
    for name in planner_tables.TABLES:
        changed = put_into(page, name, "| new |")
        assert "| new |" in changed
        assert changed.count("<!-- table: ") == page.count("<!-- table: ")
    with pytest.raises(ValueError, match="0 places for the table 'nothing'"):
        put_into(page, "nothing", "")


def test_a_page_that_changes_leaves_what_was_found(tmp_path: Path) -> None:
    def git(*words: str) -> None:
        who = ("-c", "user.name=tester", "-c", "user.email=tester@example.org")
        subprocess.run(["git", *who, *words], cwd=tmp_path, check=True, capture_output=True)

    code, page = tmp_path / "planner" / "replay.py", tmp_path / "page.md"
    code.parent.mkdir()
    code.write_text("1\n")
    page.write_text("1\n")
    git("init")
    git("add", "-A")
    git("commit", "-m", "first")
    first = code_of(tmp_path)
    page.write_text("2\n")
    assert code_of(tmp_path) == first
    git("commit", "-am", "a page")
    assert code_of(tmp_path) == first
    code.write_text("2\n")
    assert code_of(tmp_path) == f"{first}-dirty"
    git("commit", "-am", "code")
    assert code_of(tmp_path) not in (first, f"{first}-dirty")


def test_small_traces_do_not_stand_for_whole_ones(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("planner.traces.catalog.CHECKOUT", tmp_path)
    monkeypatch.setenv("KVCAST_TRACES", str(tmp_path))
    monkeypatch.setattr(sys, "argv", ["planner_tables.py", "--table", "fast", "--results", str(tmp_path)])
    with pytest.raises(SystemExit):
        planner_tables.main()
    assert "the trace rollout8 is not here, only a small one: set KVCAST_TRACES" in capsys.readouterr().err
