"""Broken source text ends in located diagnostics or compiles, whatever was done to it; it never crashes or hangs."""

from __future__ import annotations

import re
from pathlib import Path
from random import Random

import pytest

from p4switch.compiler import check
from p4switch_compiler import random_programs

P4SWITCH = Path(__file__).parents[2]
FOLDERS = ("tests/stf", "src/p4switch/bench/programs")
SOURCES = [path.read_text() for folder in FOLDERS for path in sorted((P4SWITCH / folder).glob("*.p4"))]
TOKEN = re.compile(r"\w+|\s+|.", re.DOTALL)
WORDS = '{ } ( ) < > ; 0 8w256 -1 ... {#} _ \0 " /* #if é header bit<0> bit<70000> [3:5] :: @name select apply inout'
STRANGE = ["", "\\\n", *WORDS.split(" ")]


def broken(random: Random, text: str) -> str:
    """The text with a few tokens dropped, doubled, swapped, or replaced by others of it or by strange ones."""
    tokens = TOKEN.findall(text)
    for _ in range(random.randint(1, 4)):
        at, other = random.randrange(len(tokens)), random.randrange(len(tokens))
        kind = random.choice(("drop", "double", "swap", "copy", "strange", "cut"))
        if kind == "drop":
            tokens[at] = ""
        elif kind == "double":
            tokens[at] *= 2
        elif kind == "swap":
            tokens[at], tokens[other] = tokens[other], tokens[at]
        elif kind == "copy":
            tokens[at] = tokens[other]
        elif kind == "strange":
            tokens[at] = random.choice(STRANGE)
        elif random.random() < 0.1:
            del tokens[at:]
            tokens.append(" ")
    return "".join(tokens)


def run(directory: Path, seeds: range) -> None:
    path = directory / "broken.p4"
    for seed in seeds:
        random = Random(seed)
        source = random.choice(SOURCES) if random.random() < 0.6 else random_programs.Generator(seed % 50).program()
        path.write_text(broken(random, source))
        for d in check(path):
            assert d.message, seed
            assert d.line > 0, seed
            assert d.column > 0, seed


def test_broken_source(tmp_path: Path) -> None:
    run(tmp_path, range(150))


@pytest.mark.long
def test_much_broken_source(tmp_path: Path) -> None:
    run(tmp_path, range(1000, 9000))
