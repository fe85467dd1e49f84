"""Findings on terminals of any width: no word is broken, and what operators' commands print for programs is whole."""

from __future__ import annotations

import pytest
from rich.console import Console, RenderableType
from rich.table import Table

from kvcast import operator
from kvcast.doctor.findings import Row, laid_out
from kvcast.operator import print_whole
from kvcast.terminal import Terminal

REMEDY = "correct data.interface in /etc/kvcast/n1-of-the-long-name/agent.yaml, then systemctl restart kvcast-agent"
ROWS = [
    Row("broken", "red", ("addresses", "controller -> switch"), "a-word-of-more-than-twenty-letters is there", REMEDY),
    Row("ok", "green", ("MTU", "n1"), "9000", ""),
]


@pytest.mark.parametrize("width", [30, 60, 80, 100, 200])
def test_no_word_is_broken(width: int) -> None:
    lines = [line.plain for line in laid_out(ROWS, width)]
    words = " ".join(lines).split()
    for row in ROWS:
        assert all(word in words for word in f"{row.found} {row.remedy}".split())
    assert all(len(line) <= width or len(line.split()) <= 6 for line in lines)


def test_remedies_stand_below_what_was_found() -> None:
    assert [line.plain for line in laid_out(ROWS, 100)] == [
        "broken addresses controller -> switch a-word-of-more-than-twenty-letters is there",
        "  -> correct data.interface in /etc/kvcast/n1-of-the-long-name/agent.yaml, then systemctl restart",
        "     kvcast-agent",
        "ok     MTU       n1                   9000",
    ]


def _table() -> Table:
    table = Table(box=None, pad_edge=False)
    for name in ("KEY", "NAMESPACE"):
        table.add_column(name, no_wrap=True, overflow="ellipsis")
    table.add_row("0123456789ab", "n" * 300)
    return table


def test_a_table_in_a_pipe_is_whole(capsys: pytest.CaptureFixture[str]) -> None:
    print_whole(_table())
    assert capsys.readouterr().out.splitlines()[1] == f"0123456789ab  {'n' * 300}"


@pytest.mark.parametrize("table", [_table(), "a line"])
def test_a_table_on_a_terminal_ends_at_its_edge(table: RenderableType, monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Console(force_terminal=True, no_color=True, width=40)
    monkeypatch.setattr(operator, "Terminal", lambda **options: Terminal(**options) if options else terminal)
    with terminal.capture() as shown:
        print_whole(table)
    *_, last = shown.get().splitlines()
    assert last == ("a line" if table == "a line" else f"0123456789ab  {'n' * 26}")
