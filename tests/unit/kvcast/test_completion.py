"""Words that may come next, and the shells that ask for them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from bmv2_testbed.processes import child_environment
from kvcast.cli import COMMANDS, main, make_parser
from kvcast.commands.completion import SCRIPTS, candidates


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("", sorted(COMMANDS)),
        ("un", ["unpin"]),
        ("bench in", ["incast"]),
        ("bench incast --stag", ["--stagger"]),
        ("demo --target ", ["bmv2", "p4switch", "tna"]),
        ("evict 0af --dry", ["--dry-run"]),
        ("completion z", ["zsh"]),
        ("ls --node ", []),
        ("nonesuch --", ["--help", "--version"]),
    ],
)
def test_what_may_come_next(line: str, expected: list[str]) -> None:
    found = candidates(make_parser(), line.split(" "))
    assert [word for word in found if word != "bridge"] == expected


def test_a_shell_has_to_be_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion"]) == 2
    assert "for which shell? bash, zsh, fish" in capsys.readouterr().err


ASK = {
    "bash": "COMP_WORDS=(kvcast bench inc); COMP_CWORD=2; _kvcast; echo ${COMPREPLY[@]}",
    "zsh": "compadd() { shift; print -l $@ }; words=(kvcast bench inc); CURRENT=3; _kvcast",
    "fish": "complete -C 'kvcast bench inc'",
}
BEFORE = {"zsh": "compdef() { }\n"}


@pytest.mark.parametrize("shell", SCRIPTS)
def test_the_script_completes_in_the_shell_itself(shell: str, tmp_path: Path) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"no {shell} on this machine")
    kvcast = tmp_path / "kvcast"
    kvcast.write_text(f'#!/bin/sh\nexec {sys.executable} -m kvcast.cli "$@"\n')
    kvcast.chmod(0o755)
    environment = child_environment({"PATH": f"{tmp_path}:{os.environ['PATH']}", "HOME": str(tmp_path)})
    script = tmp_path / "script"
    script.write_text(f"{BEFORE.get(shell, '')}{SCRIPTS[shell]}\n{ASK[shell]}\n")
    done = subprocess.run([shell, str(script)], env=environment, capture_output=True, text=True, check=False)
    assert done.stdout.split() == ["incast"], done.stderr
