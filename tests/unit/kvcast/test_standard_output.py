"""Every command, with standard output as users have it: full, gone, or in an encoding without our characters."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from kvcast.cli import COMMANDS, LAB, bad_word

FULL = "kvcast: cannot write to standard output: No space left on device\n"


def run(*words: str | bytes, output: str = "", **environment: str) -> tuple[int, str, str]:
    """A command's exit status, standard output and standard error."""
    with open(output or os.devnull, "wb") as file:
        done = subprocess.run(
            [sys.executable, "-m", "kvcast.cli", *words],
            stdout=file if output else subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=os.environ | environment,
            check=False,
        )
    return done.returncode, (done.stdout or b"").decode(), done.stderr.decode()


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("words", [("--help",), ("--version",), ("ls", "--help"), ("completion", "bash")])
def test_a_full_disk_is_one_line(words: tuple[str, ...], unbuffered: str) -> None:
    assert run(*words, output="/dev/full", PYTHONUNBUFFERED=unbuffered) == (1, "", FULL)


def test_a_terminal_without_our_characters_gets_them_escaped() -> None:
    for words in (["--help"], ["plan", "--help"], ["ls", "--help"]):
        status, text, said = run(*words, PYTHONIOENCODING="ascii", LC_ALL="C")
        assert (status, said) == (0, "")
        assert text.isascii()


def test_every_command_writes_to_the_one_terminal_that_does_nothing() -> None:
    """Names of models, traces, nodes and processes come to tables and bars of every command."""
    root = Path(__file__).parents[3]
    sources = [path for name in ("kvcast", "kvlab", "planner", "bmv2_testbed") for path in (root / name).rglob("*.py")]
    own = re.compile(r'\bConsole\(|\brich\.print|\[/?(?:bold|red)\b|TextColumn\(\s*"[^"]*\{(?![^)]*markup=False)')
    assert [str(path) for path in sources if own.search(path.read_text())] == []


def test_half_a_character_is_no_word() -> None:
    for command in sorted(COMMANDS.keys() - LAB):
        assert bad_word([command, os.fsdecode(b"f2\xe2\x80")]) == "'f2??' is not UTF-8"
    assert run("pin", b"f2\xe2\x80") == (2, "", "kvcast: 'f2??' is not UTF-8\n")
    assert bad_word(["pin", "f2é", "…"]) is None
