"""P4Info of our compiler and of p4c for the same program, line by line; where p4c is on PATH."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from p4switch.bmv2.names import tool_of_bmv2
from p4switch.compiler import compile_to_ir
from p4switch.p4info import p4info_of, render_p4info

HERE = Path(__file__).parent


@pytest.mark.bmv2
@pytest.mark.parametrize("program", ["learning.p4", "matching.p4", "annotated.p4"])
def test_same_text(program, tmp_path):
    p4c = tool_of_bmv2("p4c-bm2-ss")
    if p4c is None:
        pytest.skip("p4c-bm2-ss is not on PATH")
    theirs = tmp_path / "p4c.txtpb"
    command = [p4c, "--arch", "v1model", HERE / program, "-o", tmp_path / "p4c.json", "--p4runtime-files", theirs]
    subprocess.run(command, check=True, capture_output=True, timeout=60)
    ours = render_p4info(p4info_of(compile_to_ir(HERE / program)[0]), ".txtpb")
    assert ours.decode() == theirs.read_text()
