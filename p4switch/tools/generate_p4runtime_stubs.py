"""Writes type stubs for `p4switch.proto` into a folder of mypy's path, from the descriptors that it loads.

`make lint` runs it before mypy. Needs grpcio-tools and mypy-protobuf, which the project's test extra installs.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from google.protobuf import descriptor_pb2

from p4switch.proto.pool import serialized_files

PACKAGE = Path(__file__).resolve().parent.parent / "src" / "p4switch"
PROTOC = "import sys; from grpc_tools import protoc; sys.exit(protoc.main(sys.argv))"
"""In a process of its own: protoc forks for its plugins, and the importing process may have threads (gRPC's)."""
PLUGIN = f"#!{sys.executable}\nfrom mypy_protobuf.main import main\n\nmain()\n"
"""What protoc runs: mypy-protobuf of this interpreter, wherever its scripts were installed."""
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
    with tempfile.TemporaryDirectory() as directory:
        plugin = Path(directory) / "protoc-gen-mypy"
        plugin.write_text(PLUGIN)
        plugin.chmod(0o755)
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


def write(folder: Path) -> None:
    """Write them below `folder` as a package; mypy still finds the modules that have no stub elsewhere."""
    (folder / "p4switch" / "proto").mkdir(parents=True, exist_ok=True)
    for module in ("__init__.py", "proto/__init__.py"):
        shutil.copyfile(PACKAGE / module, folder / "p4switch" / f"{module}i")
    for name, text in stubs().items():
        (folder / "p4switch" / "proto" / name).write_text(text)


def main() -> int:
    """The command line: the folder to write to."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    write(parser.parse_args().folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
