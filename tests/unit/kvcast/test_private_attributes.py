"""Tests use the product as its users do: they touch no private attribute of another object, by name or by string."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parents[2]
OWN = {"self", "cls"}
ALLOWED = {"os._exit"}
"""Documented for children of fork(2), in spite of its name."""
BY_STRING = {"getattr", "setattr", "delattr", "hasattr"}


def is_private(name: str) -> bool:
    return name.startswith("_") and not (name.startswith("__") and name.endswith("__"))


def is_own(value: ast.expr) -> bool:
    """Whether it is the object that the code around belongs to."""
    if isinstance(value, ast.Call):
        value = value.func
        return isinstance(value, ast.Name) and value.id == "super"
    return isinstance(value, ast.Name) and value.id in OWN


def peeks(source: str) -> Iterator[str]:
    """Accesses of private attributes of other objects, as they are written, with their lines."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Attribute(value=value, attr=name) if is_private(name) and not is_own(value):
                found = ast.unparse(node)
            case ast.Call(
                func=ast.Name(id=function) | ast.Attribute(attr=function),
                args=[value, ast.Constant(value=str(name)), *_],
            ) if function in BY_STRING and is_private(name) and not is_own(value):
                found = ast.unparse(node)
            case ast.ImportFrom(module=module, names=names) if any(is_private(one.name) for one in names):
                found = f"from {module} import"
            case _:
                continue
        if found not in ALLOWED:
            yield f"{node.lineno}: {found}"


@pytest.mark.parametrize("path", sorted(TESTS.rglob("*.py")), ids=lambda path: str(path.relative_to(TESTS)))
def test_no_private_attribute_of_another_object(path: Path) -> None:
    assert list(peeks(path.read_text())) == [], "use what is public, or put another collaborator in its place"


@pytest.mark.parametrize(
    "line",
    [
        "agent._pool.size",
        "made().core._chunks = {}",
        'monkeypatch.setattr(module, "_LIMIT", 3)',
        'getattr(agent, "_pool")',
        "from hostagent.agent import _wire",
    ],
)
def test_a_peek_is_found(line: str) -> None:
    assert len(list(peeks(line))) == 1


@pytest.mark.parametrize("line", ["self._pool", "super()._close()", "one.__class__", "os._exit(1)", "agent.pool"])
def test_what_is_allowed_is_not_reported(line: str) -> None:
    assert list(peeks(line)) == []
