"""Tables of the documentation, read so that a test can hold them against the code."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import pytest

from kvdaemon.settings import Section

DOCS = Path(__file__).parents[1] / "docs"
T = TypeVar("T")
_UNITS = {"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}


def rows(page: str, heading: str) -> list[list[str]]:
    """Cells of every row of the tables below a heading, up to the next one."""
    text = (DOCS / page).read_text(encoding="utf-8")
    section = text.split(f"\n## {heading}\n", 1)[1].split("\n## ", 1)[0]
    lines = [line for line in section.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines[1:]]


def named(cell: str) -> list[str]:
    """The names of a cell: `a.b`, `c`. One that begins with a dot belongs to the section of the one before it."""
    names: list[str] = []
    for name in re.findall(r"`([^`{]+)[^`]*`", cell):
        names.append(names[-1].rpartition(".")[0] + name if name.startswith(".") else name)
    return names


def settings(page: str) -> dict[str, str]:
    """Every key of a page's Configuration and the word that says its default."""
    found: dict[str, str] = {}
    for keys, defaults, *_ in rows(page, "Configuration"):
        names, words = named(keys), defaults.split(", ")
        found |= dict(zip(names, words if len(words) == len(names) else [defaults] * len(names), strict=True))
    return found


def asked_keys(monkeypatch: pytest.MonkeyPatch) -> dict[str, object]:
    """Fills while configurations are read: every key asked for, with its default (None where there is none)."""
    defaults: dict[str, object] = {}
    take, need = Section.take, Section.need

    def heard_take(section: Section, key: str, check: Callable[[object], T], default: T) -> T:
        defaults[section.full_name(key)] = default
        return take(section, key, check, default)

    def heard_need(section: Section, key: str, check: Callable[[object], T]) -> T:
        defaults[section.full_name(key)] = None
        return need(section, key, check)

    monkeypatch.setattr(Section, "take", heard_take)
    monkeypatch.setattr(Section, "need", heard_need)
    return defaults


def value(word: str) -> object:
    """What a default's word means; None where it is a description."""
    word = word.strip("`").strip('"')
    if word in ("true", "false"):
        return word == "true"
    if size := re.fullmatch(r"(\d+) (KiB|MiB|GiB)", word):
        return int(size[1]) * _UNITS[size[2]]
    if re.fullmatch(r"0[0-7]+", word):
        return int(word, 8)
    if re.fullmatch(r"0x[0-9a-fA-F]+|[\d,]+", word):
        return int(word.replace(",", ""), 0)
    if re.fullmatch(r"\d+\.\d+", word):
        return float(word)
    return word if re.fullmatch(r"[\w.:/-]+", word) else None


def differences(documented: dict[str, str], defaults: dict[str, object]) -> list[str]:
    """What a page says otherwise than the code. Empty defaults (none, nothing, off) may be described in words."""
    found = [f"{key} is not in the table" for key in sorted(defaults.keys() - documented.keys())]
    found += [f"there is no {key}" for key in sorted(documented.keys() - defaults.keys())]
    for key in sorted(defaults.keys() & documented.keys()):
        default = defaults[key]
        if isinstance(default, bytes):
            default = default.hex(":")
        word = documented[key]
        if default in ("", None, (), [], frozenset()) or (default == 0 and word == "none"):
            continue
        if value(word) != default:
            found.append(f"{key}: the table says {word}, the code {default!r}")
    return found
