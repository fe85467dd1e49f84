"""The command blocks of the documentation, and how they are to be followed.

A block says in a comment before it, which no reader sees, where its commands run:

    <!-- run: n1 n2 -->            on these machines, at the same time
    <!-- run: sw daemon -->        its last command goes on; the block is through when that says that it is ready
    <!-- run: n1 restart -->       the same, after what runs there of this command was ended
    <!-- run: n1 shows "TEXT" -->  and what it says contains the text
    <!-- run: n1 fails -->         and it ends with a status other than 0
    <!-- engines: MODULE -->       a test of this module follows it, beside a real engine or somebody else's program
    <!-- file: n1 n2 -->           the block is a file: its name stands in its first line, or before it as `NAME`
    <!-- skip: REASON -->          it cannot run in namespaces of a test, and why
    <!-- shown: REASON -->         it is not there to be followed: what something prints, a form of a command

A block is a fence, or lines indented by four. Fences in languages that are not followed need no comment.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGES = (
    ROOT / "README.md",
    *sorted((ROOT / "docs/tutorials").glob("*.md")),
    *sorted((ROOT / "docs/how-to").glob("*.md")),
)
FOLLOWED = ("", "sh", "bash", "console", "yaml")
"""Languages of fences that a reader types or writes into a file."""
MARK = re.compile(r"^\s*<!-- (run|file|engines|skip|shown): (.*?) ?-->\s*$")
FENCE = re.compile(r"^(\s*)```(\w*)")
NAME = re.compile(r"`([\w.-]+\.(?:py|yaml|p4))`")
FIRST_LINE = re.compile(r"^# (?:~/)?([\w./-]+\.(?:py|yaml))")


@dataclass(frozen=True, slots=True)
class Block:
    """One block of a page."""

    page: Path
    line: int
    language: str
    text: str
    kind: str
    """run, file, engines, skip, shown; empty: no comment says."""
    machines: tuple[str, ...] = ()
    daemon: bool = False
    restart: bool = False
    fails: bool = False
    shows: tuple[str, ...] = ()
    name: str = ""
    """Of the file."""
    reason: str = ""
    """Why nobody follows it; of `engines` the module of tests that does."""

    @property
    def place(self) -> str:
        """For a message."""
        return f"{self.page.relative_to(ROOT)}:{self.line}"

    @property
    def needs_mark(self) -> bool:
        """Whether a reader would follow it."""
        is_table = self.text.startswith("|")
        return (self.language in FOLLOWED and not is_table) or bool(FIRST_LINE.match(self.text))


@dataclass(slots=True)
class _Mark:
    kind: str = ""
    words: list[str] = field(default_factory=list)
    reason: str = ""


def blocks(page: Path) -> list[Block]:
    """All blocks of a page, in order. Raises ValueError for a comment that says nothing of use."""
    lines = page.read_text().splitlines()
    found, at, mark, before = [], 0, _Mark(), ""
    while at < len(lines):
        line = lines[at]
        if marked := MARK.match(line):
            mark = _Mark(marked[1], shlex.split(marked[2]) if marked[1] in ("run", "file") else [], marked[2])
        elif fence := FENCE.match(line):
            end = next(end for end in range(at + 1, len(lines)) if lines[end].strip() == "```")
            found.append(_block(page, at + 1, fence[2], lines[at + 1 : end], mark, before))
            at, mark = end, _Mark()
        elif line.startswith("    ") and not (at and lines[at - 1].strip()) and not _in_list(lines, at):
            end = at
            while end < len(lines) and (lines[end].startswith("    ") or not lines[end].strip()):
                end += 1
            found.append(_block(page, at + 1, "", lines[at:end], mark, before))
            at, mark = end - 1, _Mark()
        elif line.strip():
            if mark.kind:
                raise ValueError(f"{page}:{at}: a comment that no block follows")
            before = line
        at += 1
    return found


def _in_list(lines: list[str], at: int) -> bool:
    """Whether an indented line belongs to the item of a list and is text, not a block."""
    above = [line for line in lines[:at] if line.strip() and not line.startswith("    ")]
    indented_deeper = lines[at].startswith("        ")
    return bool(above) and re.match(r"^(\d+\.|\*|-) ", above[-1]) is not None and not indented_deeper


def _block(page: Path, line: int, language: str, body: list[str], mark: _Mark, before: str) -> Block:
    indent = min((len(one) - len(one.lstrip()) for one in body if one.strip()), default=0)
    text = "\n".join(one[indent:] for one in body).strip("\n") + "\n"
    if mark.kind in ("", "engines", "skip", "shown"):
        return Block(page, line, language, text, mark.kind, reason=mark.reason)
    machines, flags, shows, words = [], set(), [], list(mark.words)
    while words:
        word = words.pop(0)
        if word == "shows":
            shows.append(words.pop(0))
        elif word in ("daemon", "restart", "fails"):
            flags.add(word)
        else:
            machines.append(word)
    name = ""
    if mark.kind == "file":
        first = FIRST_LINE.match(text)
        said = NAME.findall(before)
        name = first[1] if first else said[-1] if said else ""
        if not name:
            raise ValueError(f"{page}:{line}: a file whose name neither it nor the line before says")
    daemon, restart, fails = (flag in flags for flag in ("daemon", "restart", "fails"))
    return Block(
        page, line, language, text, mark.kind, tuple(machines), daemon or restart, restart, fails, tuple(shows), name
    )
