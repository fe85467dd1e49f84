"""docs/p4switch.md: its program compiles and floods, and its flags are those that there are."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from p4switch.cli import main
from p4switch.testing import memory_switch

DOCS = Path(__file__).parents[3] / "docs" / "p4switch.md"


@pytest.fixture(scope="module")
def text() -> str:
    return DOCS.read_text()


def test_the_five_minute_program_does_what_the_page_says(text, tmp_path):
    program = tmp_path / "l2.p4"
    found = re.search(r"```p4\n(.*?)```", text, re.DOTALL)
    assert found
    program.write_text(found[1])
    frame = bytes.fromhex("ffffffffffff 020000000001 88b5") + bytes(46)
    with memory_switch(program, ports=4, flood_group=1) as switch:
        switch.send(1, frame)
        assert switch.take_all(settled_after=1) == {2: [frame], 3: [frame], 4: [frame]}


def test_every_flag_is_described(text, capsys):
    with pytest.raises(SystemExit):
        main(["--help"])
    options = set(re.findall(r"--[a-z][a-z0-9-]+", capsys.readouterr().out)) - {"--help"}
    described = set(re.findall(r"--[a-z][a-z0-9-]+", text))
    aliases = {"--grpc-server-addr", "--interface", "--log-level"}
    assert options - aliases <= described
