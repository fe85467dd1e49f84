"""The TNA programs in p4c's own tree: each compiles, or is refused with a place and a reason.

Nothing of them is here: `P4C_TREE=.../p4c pytest -m long tests/p4switch_tna/test_tna_samples_of_p4c.py`.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from p4switch.codegen.c_program import render
from p4switch.compiler import CompileError, compile_to_ir
from p4switch.recursion import deep_recursion

TREE = os.environ.get("P4C_TREE")
COMPILED_MIN = 40
"""Of 49 in p4c 1.2.5.16."""


@pytest.mark.long
@pytest.mark.skipif(TREE is None, reason="P4C_TREE names no copy of p4c")
def test_samples() -> None:
    assert TREE is not None
    programs = sorted(p for p in Path(TREE).rglob("*.p4") if "<tna.p4>" in p.read_text(errors="replace"))
    refusals = {path.name: refusal for path in programs if (refusal := refusal_of(path))}
    assert [name for name, refusal in refusals.items() if f"{name}:" not in refusal] == []
    assert len(programs) - len(refusals) >= COMPILED_MIN


def refusal_of(path: Path) -> str:
    """Why a program is not compiled to C; empty when it is."""
    try:
        program, _ = compile_to_ir(path)
    except CompileError as refusal:
        return str(refusal)
    with deep_recursion():
        render(program)
    return ""
