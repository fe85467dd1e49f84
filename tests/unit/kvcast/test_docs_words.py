"""The counter of the documentation's words."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tools import count_words


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    pages = {
        "README.md": "three plain words",
        "docs/index.md": "two words",
        "docs/how-to/run.md": "| a table |",
        "p4switch/README.md": "of another house",
        "CHANGELOG.md": "what was new",
    }
    for name, text in pages.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    subprocess.run(["git", "add", "-A"], cwd=tmp_path, check=True)
    (tmp_path / "notes.md").write_text("git does not know this page")
    return tmp_path


def test_words_are_counted_by_section(checkout: Path) -> None:
    assert count_words.words_by_section(checkout) == {"outside docs/": 3, "docs": 2, "docs/how-to": 4}


def test_a_page_that_was_deleted_counts_no_more(checkout: Path) -> None:
    (checkout / "README.md").unlink()
    assert sum(count_words.words_by_section(checkout).values()) == 6


@pytest.mark.parametrize(("budget", "status"), [(9, 0), (8, 1)])
def test_a_documentation_above_its_budget_fails(
    checkout: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], budget: int, status: int
) -> None:
    monkeypatch.setattr(count_words, "ROOT", checkout)
    monkeypatch.setattr(count_words, "BUDGET", budget)
    assert count_words.main() == status
    assert f"9  in all; the budget is {budget}" in capsys.readouterr().out
