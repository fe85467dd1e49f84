"""p4switch stands alone: all of it can be imported with nothing but its few dependencies."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

PROGRAM = """
import importlib, pkgutil, sys
import p4switch
before = set(sys.modules)
for module in pkgutil.walk_packages(p4switch.__path__, "p4switch."):
    if not module.name.endswith("__main__") and module.name not in ("p4switch.testing", "p4switch.mininet_nodes"):
        importlib.import_module(module.name)
names = {name.partition(".")[0] for name in set(sys.modules) - before}
print(*sorted(n for n in names if n not in sys.stdlib_module_names and not n.startswith("_")))
"""
NEEDED = {"google", "grpc", "p4switch", "typing_extensions"}
LOOKED_FOR_BY_GRPC = {"grpc_tools", "cython_runtime"}


def test_importing_it_needs_only_its_dependencies() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True, timeout=120)
    assert set(done.stdout.split()) <= NEEDED | LOOKED_FOR_BY_GRPC


def test_the_distribution_asks_for_what_it_imports() -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    asked = {re.split(r"[<>=]", wish)[0] for wish in project["dependencies"]}
    assert asked == {"grpcio", "protobuf", "googleapis-common-protos", "p4runtime"}
