"""The tables of the page of planner studies: made from a case's figures, and put where the page wants them."""

from __future__ import annotations

from pathlib import Path

import pytest

from planner.cluster.options import Sharing
from tools import planner_tables
from tools.planner_tables import Case, Found, put_into, run_case

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
