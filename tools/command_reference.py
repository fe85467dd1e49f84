"""The help of every command, for docs/reference/commands.md: a hook of mkdocs, and what tests hold pages against.

The page has a marker where the text goes, so that no command can be missing from the site or be out of date.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import os
import re
from collections.abc import Iterator
from typing import Any

MARKER = "<!-- every command's help -->"
PROGRAMS = {
    "kvcast": "kvcast.cli",
    "kvcast-agent": "hostagent.daemon",
    "kvcast-controller": "controlplane.daemon",
    "p4switch": "p4switch.cli",
}
"""Commands that the distributions install, and the module with their `main`."""
COLUMNS = "100"
_CHOICES = re.compile(r"^  [A-Z]+\n((?:    .*\n)+)", re.MULTILINE)
_CHOICE = re.compile(r"^    ([a-z][a-z0-9-]*)(?:\s|$)", re.MULTILINE)


def help_text(program: str, words: tuple[str, ...] = ()) -> str:
    """What `program words... --help` prints."""
    printed = io.StringIO()
    main = importlib.import_module(PROGRAMS[program]).main
    columns = os.environ.get("COLUMNS")
    os.environ["COLUMNS"] = COLUMNS
    try:
        with contextlib.redirect_stdout(printed), contextlib.suppress(SystemExit):
            main([*words, "--help"])
    finally:
        if columns is None:
            del os.environ["COLUMNS"]
        else:
            os.environ["COLUMNS"] = columns
    return printed.getvalue()


def helps(program: str, words: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], str]]:
    """The program and each of its commands, commands of commands too: the words that name it, and its help."""
    text = help_text(program, words)
    yield words, text
    for block in _CHOICES.findall(text):
        for name in _CHOICE.findall(block):
            yield from helps(program, (*words, name))


def reference() -> str:
    """Markdown: a heading and the help of each command."""
    parts = []
    for program in PROGRAMS:
        for words, text in helps(program):
            title = " ".join((program, *words))
            parts.append(f"{'#' * (2 + len(words))} {title}\n\n```text\n{text.rstrip()}\n```\n")
    return "\n".join(parts)


def on_page_markdown(markdown: str, **_: Any) -> str:
    """mkdocs asks this for each page (https://www.mkdocs.org/user-guide/plugins/#events)."""
    return markdown.replace(MARKER, reference()) if MARKER in markdown else markdown
