"""The testbed's C, which is compiled where a bench runs, gives a strict compiler nothing to say."""

from __future__ import annotations

import subprocess
from pathlib import Path

import bmv2_testbed
from tools import native_build


def test_the_compiler_has_nothing_to_say() -> None:
    files = sorted(Path(bmv2_testbed.__file__).parent.rglob("*.c"))
    assert files
    words = [*native_build.compiler(), *native_build.FLAGS, "-Werror", "-fsyntax-only", *map(str, files)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
