"""The checked-in gRPC modules are what the generator makes of control.proto and of etcd.proto."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
GENERATED = {
    Path("kvproto/rpc"): ("control_pb2.py", "control_pb2.pyi", "control_pb2_grpc.py", "control_pb2_grpc.pyi"),
    Path("controlplane/election/etcd_rpc"): ("etcd_pb2.py", "etcd_pb2.pyi"),
}
KEPT = {Path("kvproto/rpc"): ROOT / "kvproto" / "src"}


def test_generated_modules_are_current(tmp_path: Path) -> None:
    pytest.importorskip("grpc_tools", reason="grpcio-tools is not installed")
    environment = os.environ | {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    command = [sys.executable, str(ROOT / "tools" / "generate_rpc.py"), "--output", str(tmp_path)]
    subprocess.run(command, check=True, env=environment, timeout=60)
    for folder, names in GENERATED.items():
        for name in names:
            made = (tmp_path / folder / name).read_text()
            kept = (KEPT.get(folder, ROOT) / folder / name).read_text()
            assert made == kept, f"{name} differs from its source: run `make rpc`"
