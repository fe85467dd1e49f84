"""What calls itself pure is held to it: its module stands in the import contract of pure modules."""

from __future__ import annotations

import ast
import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
SOURCES = (ROOT, ROOT / "client" / "src", ROOT / "kvproto" / "src")
OTHERS = {"p4switch"}
"""A distribution of its own, with rules of its own."""
CONTRACT = "protocols and policies are pure: no I/O, clock, randomness or threads"
CALLS_ITSELF_PURE = re.compile(r"\bPure\b")


def contract() -> list[str]:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    (one,) = (one for one in settings["contracts"] if one["name"] == CONTRACT)
    return list(one["source_modules"])


def pure_modules() -> list[str]:
    packages = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["root_packages"]
    found = []
    for package in sorted(set(packages) - OTHERS):
        (source,) = (one for one in SOURCES if (one / package / "__init__.py").is_file())
        for path in sorted((source / package).rglob("*.py")):
            docstring = ast.get_docstring(ast.parse(path.read_text())) or ""
            if CALLS_ITSELF_PURE.search(docstring):
                parts = path.relative_to(source).with_suffix("").parts
                found.append(".".join(parts[:-1] if parts[-1] == "__init__" else parts))
    return found


@pytest.mark.parametrize("module", pure_modules())
def test_a_module_that_calls_itself_pure_is_in_the_contract(module: str) -> None:
    assert any(module == one or module.startswith(f"{one}.") for one in contract()), (
        f"{module} says that it is pure: add it to the contract '{CONTRACT}' in pyproject.toml, or say something else"
    )


def test_some_module_does_not() -> None:
    assert "controlplane.daemon" not in pure_modules()
