"""p4switch's tutorial does what it says, and the page of its command lists every flag."""

from __future__ import annotations

import html
import re
import time
from pathlib import Path
from typing import Any

import pytest

from p4switch.cli import main
from p4switch.testing import EXPECT_TIMEOUT_S, memory_switch

FRAME = bytes.fromhex("ffffffffffff 020000000001 88b5") + bytes(46)
DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture(scope="module")
def text() -> str:
    return (DOCS / "tutorial.md").read_text()


@pytest.fixture
def program(text, tmp_path):
    """l2.p4 of the page."""
    found = re.search(r"```p4\n(.*?)```", text, re.DOTALL)
    assert found
    path = tmp_path / "l2.p4"
    path.write_text(found[1])
    return path


def blocks(text: str, language: str, first: str) -> str:
    """The block of code that begins so."""
    return next(b for b in re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL) if b.startswith(first))


def test_the_five_minute_program_does_what_the_page_says(program):
    with memory_switch(program, ports=4, flood_group=1) as switch:
        switch.send(1, FRAME)
        assert switch.take_all(settled_after=1) == {2: [FRAME], 3: [FRAME], 4: [FRAME]}


def test_the_tests_of_the_page_pass(text, program, monkeypatch, p4switch_factory):
    monkeypatch.chdir(program.parent)
    names: dict[str, Any] = {}
    exec(blocks(text, "python", "from p4switch.testing"), names)
    names["test_floods"]()
    exec(blocks(text, "python", "def test_floods(p4switch_factory)"), names)
    names["test_floods"](p4switch_factory)


def test_the_front_page_does_what_it_shows(monkeypatch, capsys, tmp_path):
    readme = (DOCS.parent / "README.md").read_text()
    assert main(["examples"]) == 0
    monkeypatch.chdir(capsys.readouterr().out.strip())
    names: dict[str, Any] = {}
    exec(blocks(readme, "python", "from p4switch.testing"), names)
    names["test_known_addresses_are_not_flooded"]()
    wrong = tmp_path / "l2.p4"
    wrong.write_text(Path("l2.p4").read_text().replace("forward(bit<9>", "forward(bit<8>"))
    (tmp_path / "headers.p4").write_text(Path("headers.p4").read_text())
    assert main([str(wrong), "--check"]) == 1
    picture = re.sub(r"<[^>]+>", "", (DOCS / "terminal.svg").read_text())
    for line in capsys.readouterr().err.replace(f"{tmp_path}/", "").splitlines():
        assert html.escape(line) in picture


def test_the_trace_is_what_the_page_shows(text, program, capsys):
    shown = blocks(text, "text", "port 1: received")
    printed = ""
    with memory_switch(program, ports=4, flood_group=1, trace=True) as switch:
        switch.send(1, FRAME)
        deadline = time.monotonic() + EXPECT_TIMEOUT_S
        while printed.count("\n") < shown.count("\n") and time.monotonic() < deadline:
            switch.switch.runtime.stats()
            printed += capsys.readouterr().out
    assert printed == shown


def test_the_error_is_what_the_page_shows(text, program, capsys):
    program.write_text(program.read_text().replace("forward(bit<9> port)", "forward(bit<8> port)"))
    assert main([str(program), "--check"]) == 1
    shown = blocks(text, "text", "l2.p4:")
    assert capsys.readouterr().err.replace(f"{program.parent}/", "") == shown


def test_every_flag_is_described(capsys):
    with pytest.raises(SystemExit):
        main(["--help"])
    options = set(re.findall(r"--[a-z][a-z0-9-]+", capsys.readouterr().out)) - {"--help"}
    described = set(re.findall(r"--[a-z][a-z0-9-]+", (DOCS / "command.md").read_text()))
    aliases = {"--grpc-server-addr", "--interface", "--log-level"}
    assert options - aliases <= described
