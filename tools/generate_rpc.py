"""Generates the Python side of `control.proto`, and of the part of etcd's API in `etcd.proto`.

    python tools/generate_rpc.py [--output FOLDER]

The result is checked in, so that running kvcast needs no compiler of protocol buffers; a test generates again and
compares. The generator's version is fixed in pyproject.toml because its output carries it.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

import grpc_tools

REPOSITORY = Path(__file__).resolve().parent.parent
ROOT = REPOSITORY / "kvproto" / "src"
PROTO = Path("kvproto/rpc/control.proto")
ETCD_PROTO = Path("controlplane/election/etcd_rpc/etcd.proto")


def generate(output: Path, etcd_output: Path) -> None:
    """Write the modules below the outputs; raises RuntimeError if protoc refuses a source."""
    _protoc(ROOT, PROTO, "python", "mypy", "grpc_python", "mypy_grpc", output=output)
    # Its services have six methods, which are called by their names.
    _protoc(REPOSITORY, ETCD_PROTO, "python", "mypy", output=etcd_output)


def _protoc(root: Path, proto: Path, *plugins: str, output: Path) -> None:
    well_known = Path(grpc_tools.__file__).parent / "_proto"
    outputs = [f"--{plugin}_out={'quiet:' if plugin.startswith('mypy') else ''}{output}" for plugin in plugins]
    # In a process of its own: protoc forks for its plugins, and the importing process may have threads (gRPC's).
    command = [sys.executable, "-m", "grpc_tools.protoc", f"-I{root}", f"-I{well_known}", *outputs, str(proto)]
    status = subprocess.run(command, check=False).returncode
    if status != 0:
        raise RuntimeError(f"protoc refused {proto} (status {status})")


def main() -> int:
    parser = argparse.ArgumentParser(description="generate the Python side of the control protocol, and of etcd's")
    parser.add_argument("--output", type=Path, help="root of all modules; default: where they belong")
    output = parser.parse_args().output
    generate(output or ROOT, output or REPOSITORY)
    return 0


if __name__ == "__main__":
    sys.exit(main())
