"""Follows blocks of pages that a test of engines follows: in its order, with this machine's addresses."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Self

from tests.engines.pool import stop
from tests.field.pages import ROOT, blocks


def blocks_of(page: str, module: str) -> list[str]:
    """Texts of the blocks of a how-to page that this module of tests follows."""
    return [block.text for block in blocks(ROOT / "docs" / "how-to" / page) if block.reason == module.split(".")[-1]]


def on_this_machine(text: str, changes: Mapping[str, str]) -> str:
    """A block with other words. Raises AssertionError where it has not what is to be replaced."""
    for word, other in changes.items():
        assert word in text, f"{word!r} is not in the block any more:\n{text}"
        text = text.replace(word, other)
    return text


def _environment(more: Mapping[str, str]) -> dict[str, str]:
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    made = {**os.environ, "PATH": path, "HF_HUB_OFFLINE": "1", **more}
    made.pop("PYTHONDONTWRITEBYTECODE", None)
    return made


def said(commands: str, folder: Path, **more: str) -> str:
    """What commands print; they have to end well. `more`: environment variables."""
    ended = subprocess.run(
        ["bash", "-euc", commands], cwd=folder, env=_environment(more), capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, f"{commands}\n{ended.stderr}"
    return ended.stdout


class Running:
    """A command that goes on, as a process of its own. Its log is NAME.log in the folder."""

    def __init__(self, name: str, command: str, folder: Path, *, before: str = "", **more: str) -> None:
        """`before`: what the same shell is told before; `more`: environment variables."""
        self._log = folder / f"{name}.log"
        with open(self._log, "wb") as log:
            self._process = subprocess.Popen(
                ["bash", "-euc", f"{before}\nexec {command}"],
                cwd=folder,
                env=_environment(more),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    @property
    def said(self) -> str:
        """The end of its log."""
        return self._log.read_text(errors="replace")[-3000:]

    @property
    def ended(self) -> bool:
        """Whether it has ended by itself."""
        return self._process.poll() is not None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        stop(self._process)
