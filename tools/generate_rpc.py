"""Generates the Python side of `kvproto/rpc/control.proto`.

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

ROOT = Path(__file__).resolve().parent.parent / "kvproto" / "src"
PROTO = Path("kvproto/rpc/control.proto")
GENERATED = ("control_pb2.py", "control_pb2.pyi", "control_pb2_grpc.py", "control_pb2_grpc.pyi")


def generate(output: Path) -> None:
    """Write the modules below `output` (as `kvproto/rpc/...`); raises RuntimeError if protoc refuses the source."""
    well_known = Path(grpc_tools.__file__).parent / "_proto"
    # In a process of its own: protoc forks for its plugins, and the importing process may have threads (gRPC's).
    status = subprocess.run(
        [
            sys.executable,
            "-m",
            "grpc_tools.protoc",
            f"-I{ROOT}",
            f"-I{well_known}",
            f"--python_out={output}",
            f"--mypy_out=quiet:{output}",
            f"--grpc_python_out={output}",
            f"--mypy_grpc_out=quiet:{output}",
            str(PROTO),
        ],
        check=False,
    ).returncode
    if status != 0:
        raise RuntimeError(f"protoc refused {PROTO} (status {status})")


def main() -> int:
    parser = argparse.ArgumentParser(description="generate the Python side of the control protocol")
    parser.add_argument("--output", type=Path, default=ROOT, help="root the modules are written below")
    generate(parser.parse_args().output)
    return 0


if __name__ == "__main__":
    sys.exit(main())
