"""docs/reference/engines.md names the versions that tools/setup_*.sh install, and pages name what it names."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
TABLE = ROOT / "docs" / "reference" / "engines.md"
ENGINES = ("vllm", "sglang", "lmcache", "ucm", "dynamo", "chain")
"""Whose environments `make test-vllm` and `make test-engines` use."""
PINNED = re.compile(r"\b([A-Za-z][\w.-]*)==([\w.]+)")
TESTED_WITH = re.compile(r"^Tested with ([\w ]+?) (\d[\w.]*\w)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Row:
    """A system of the table."""

    system: str
    package: str
    version: str


def rows() -> list[Row]:
    found = []
    for line in TABLE.read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) == 6 and re.fullmatch(r"`[\w.-]+`", cells[1]):
            found.append(Row(cells[0], cells[1].strip("`"), cells[2]))
    return found


def installed(engine: str) -> dict[str, str]:
    """Packages that a script pins, and their versions."""
    lines = (ROOT / "tools" / f"setup_{engine}.sh").read_text().splitlines()
    return dict(PINNED.findall("\n".join(line for line in lines if not line.lstrip().startswith("#"))))


def test_the_table_is_read() -> None:
    assert len(rows()) == len({row.package for row in rows()}) >= len(ENGINES)


@pytest.mark.parametrize("row", rows(), ids=lambda row: row.package)
def test_a_system_is_tested_in_the_version_that_the_table_names(row: Row) -> None:
    versions = {engine: pins[row.package] for engine in ENGINES if row.package in (pins := installed(engine))}
    assert versions, f"no tools/setup_*.sh installs {row.package}: drop it from the table, or install it"
    assert set(versions.values()) == {row.version}, f"{row.package} {row.version} is named, {versions} are installed"


@pytest.mark.parametrize("engine", ENGINES)
def test_each_environment_of_engines_has_a_row(engine: str) -> None:
    assert {row.package for row in rows()} & set(installed(engine))


@pytest.mark.parametrize("page", sorted((ROOT / "docs" / "how-to").glob("*.md")), ids=lambda page: page.stem)
def test_pages_name_the_versions_of_the_table(page: Path) -> None:
    named = {(row.system.removeprefix("NVIDIA "), row.version) for row in rows()}
    for system, version in TESTED_WITH.findall(page.read_text()):
        assert (system, version) in named, f"{page.name}: tested with {system} {version}? The table says otherwise"
