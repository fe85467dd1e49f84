"""p4runtime-shell, unchanged, against the whole switch; it runs in its own environment: it pins protobuf < 3.21."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from p4switch.p4info import write_p4info
from p4switch.testing import memory_switch

HERE = Path(__file__).parent
PROGRAM = HERE / "learning.p4"


def shell_python() -> Path:
    """The interpreter that has p4runtime-shell; skips the test when there is none."""
    named = os.environ.get("P4SWITCH_SHELL_PYTHON")
    python = Path(named) if named else HERE.parents[1] / ".venv-p4rt-shell" / "bin" / "python"
    if not python.is_file():
        pytest.skip(f"no p4runtime-shell: set P4SWITCH_SHELL_PYTHON, or make the environment {python.parents[1]}")
    return python


def test_a_session(tmp_path):
    python = shell_python()
    with memory_switch(PROGRAM, ports=4) as switch:
        p4info = tmp_path / "program.p4info.txtpb"
        write_p4info(switch.switch.p4info, p4info)
        command = [python, HERE / "p4rt_shell_session.py", switch.address, p4info, PROGRAM]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, done.stderr
        assert switch.expect(2) == b"0123456789abcd"
    seen = json.loads(done.stdout.splitlines()[-1])
    assert seen == {
        "entries": 1,
        "port": 3,
        "duplicate": True,
        "ternary": 1,
        "replicas": 2,
        "sessions": 1,
        "groups": 1,
        "oneshot": 1,
        "count": 7,
        "hits": 0,
        "default": "LearnIngress.punt",
        "capabilities": "1.4.1",
    }
