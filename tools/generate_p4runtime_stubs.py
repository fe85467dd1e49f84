"""Writes the type stubs of `p4switch.proto` from the descriptors that it loads (`make p4runtime-stubs`).

Needs grpcio-tools and mypy-protobuf, which the project's test extra installs.
"""

from __future__ import annotations

import re
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

from google.protobuf import descriptor_pb2

from p4switch.proto.pool import serialized_files

PACKAGE = Path(__file__).resolve().parent.parent / "p4switch" / "proto"
PROTOC = "import sys; from grpc_tools import protoc; sys.exit(protoc.main(sys.argv))"
"""In a process of its own: protoc forks for its plugins, and whoever imports this may have threads (gRPC's)."""
FILES = (
    "google/rpc/status.proto",
    "p4/config/v1/p4types.proto",
    "p4/config/v1/p4info.proto",
    "p4/v1/p4data.proto",
    "p4/v1/p4runtime.proto",
)


def stubs() -> dict[str, str]:
    """Text of each stub by its file name. Raises RuntimeError when protoc refuses."""
    descriptors = descriptor_pb2.FileDescriptorSet()
    for file in serialized_files():
        descriptors.file.add().ParseFromString(file)
    plugin = Path(sysconfig.get_path("scripts")) / "protoc-gen-mypy"
    with tempfile.TemporaryDirectory() as directory:
        described = Path(directory) / "p4runtime.binpb"
        described.write_bytes(descriptors.SerializeToString())
        words = [
            f"--descriptor_set_in={described}",
            f"--plugin=protoc-gen-mypy={plugin}",
            f"--mypy_out=quiet:{directory}",
            *FILES,
        ]
        if subprocess.run([sys.executable, "-c", PROTOC, *words], check=False).returncode != 0:
            raise RuntimeError("protoc refuses the descriptors of P4Runtime")
        return {path.name: _in_package(path.read_text()) for path in sorted(Path(directory).rglob("*_pb2.pyi"))}


def _in_package(text: str) -> str:
    """The stub with its imports turned to this package."""
    text = re.sub(r"\b(?:p4\.config\.v1|p4\.v1|google\.rpc)\.(\w+_pb2)\b", r"p4switch.proto.\1", text)
    return re.sub(r"^from (?:p4\.config\.v1|p4\.v1|google\.rpc) import", "from p4switch.proto import", text, flags=re.M)


def main() -> int:
    """Write them all."""
    for name, text in stubs().items():
        (PACKAGE / name).write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
