"""A module's name says which file is meant: no two modules of one package, no two C sources, are named alike."""

from __future__ import annotations

import tomllib
from collections import defaultdict
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
SOURCES = (ROOT, ROOT / "client" / "src", ROOT / "kvproto" / "src", ROOT / "p4switch" / "src")
PACKAGES: list[str] = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["root_packages"]
STANDARD = {"__init__.py", "__main__.py"}
"""Python gives these their names."""


def homonyms(package: Path) -> dict[str, list[str]]:
    """File names that occur more than once below a package, with where they do."""
    found = defaultdict(list)
    for pattern in ("*.py", "*.c", "*.h"):
        for path in sorted(package.rglob(pattern)):
            if path.name not in STANDARD:
                found[path.name].append(str(path.relative_to(package)))
    return {name: paths for name, paths in found.items() if len(paths) > 1}


@pytest.mark.parametrize("package", PACKAGES)
def test_no_two_modules_of_a_package_have_one_name(package: str) -> None:
    (source,) = (one for one in SOURCES if (one / package / "__init__.py").is_file())
    assert homonyms(source / package) == {}


def test_a_second_module_of_a_name_is_found(tmp_path: Path) -> None:
    for path in ("__init__.py", "switch.py", "runtime/__init__.py", "runtime/switch.py"):
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).touch()
    assert homonyms(tmp_path) == {"switch.py": ["runtime/switch.py", "switch.py"]}
