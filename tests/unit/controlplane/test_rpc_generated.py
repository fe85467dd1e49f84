"""The checked-in gRPC modules are what the generator makes of control.proto."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
GENERATED = ("control_pb2.py", "control_pb2.pyi", "control_pb2_grpc.py", "control_pb2_grpc.pyi")


def test_generated_modules_are_current(tmp_path: Path) -> None:
    pytest.importorskip("grpc_tools", reason="grpcio-tools is not installed")
    environment = os.environ | {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    command = [sys.executable, str(ROOT / "tools" / "generate_rpc.py"), "--output", str(tmp_path)]
    subprocess.run(command, check=True, env=environment, timeout=60)
    for name in GENERATED:
        made = (tmp_path / "kvproto" / "rpc" / name).read_text()
        kept = (ROOT / "kvproto" / "src" / "kvproto" / "rpc" / name).read_text()
        assert made == kept, f"{name} differs from control.proto: run `make rpc`"
