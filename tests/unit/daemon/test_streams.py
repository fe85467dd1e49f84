"""What standard output does not take: characters, and everything once the disk is full."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
def test_text_that_the_locale_has_not_is_printed_as_escapes(encoding: str) -> None:
    script = "from kvdaemon.streams import say, take_any_text; take_any_text(); say('kv \\u4e2d \\udcff'); print('on')"
    ran = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        check=True,
        cwd=ROOT,
        env={**os.environ, "PYTHONIOENCODING": encoding},
    )
    shown = "中" if encoding == "utf-8" else "\\u4e2d"
    assert (ran.stdout.decode(), ran.stderr) == (f"kv {shown} \\udcff\non\n", b"")


def test_a_command_on_a_full_disk_says_so_in_one_line() -> None:
    with open("/dev/full", "w") as full:
        ran = subprocess.run(
            [sys.executable, "-m", "kvcast.cli", "completion", "bash"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
            cwd=ROOT,
        )
    said = "kvcast: cannot write to standard output: No space left on device\n"
    assert (ran.returncode, ran.stderr) == (1, said)
