"""The TNA programs in p4c's own tree: each compiles, or is refused with a place and a reason.

Nothing of them is here: `P4C_TREE=.../p4c pytest -m long tests/unit/p4switch_tna/test_tna_samples_of_p4c.py`.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from p4switch.codegen.program import render
from p4switch.compiler import CompileError, compile_to_ir
from p4switch.frontend.source import deep_recursion

TREE = os.environ.get("P4C_TREE")
COMPILED_MIN = 36
"""Of 49 in p4c 1.2.5.16."""


@pytest.mark.long
@pytest.mark.skipif(TREE is None, reason="P4C_TREE names no copy of p4c")
def test_samples() -> None:
    assert TREE is not None
    programs = sorted(p for p in Path(TREE).rglob("*.p4") if "<tna.p4>" in p.read_text(errors="replace"))
    compiled = 0
    for path in programs:
        try:
            program, _ = compile_to_ir(path)
        except CompileError as refusal:
            assert all(d.message for d in refusal.diagnostics), path
            assert f"{path.name}:" in str(refusal), path
        else:
            with deep_recursion():
                assert "egress_parse" in render(program), path
            compiled += 1
    assert compiled >= COMPILED_MIN
