"""P4Runtime's messages: built from an installed package's descriptors, with stubs that are up to date."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

from p4switch.proto import pool

ROOT = Path(__file__).resolve().parents[3]


def test_stubs_are_those_of_the_descriptors() -> None:
    stubs = runpy.run_path(str(ROOT / "tools" / "generate_p4runtime_stubs.py"))["stubs"]()
    for name, text in stubs.items():
        assert (ROOT / "p4switch" / "proto" / name).read_text() == text, f"{name}: run `make p4runtime-stubs`"


def test_a_module_without_descriptor_is_refused(tmp_path: Path) -> None:
    module = tmp_path / "p4runtime_pb2.py"
    module.write_text("DESCRIPTOR = None\n")
    with pytest.raises(ImportError, match="holds no descriptor"):
        pool._descriptor_in(module)


def test_current_generated_modules_are_understood(tmp_path: Path) -> None:
    module = tmp_path / "p4runtime_pb2.py"
    module.write_text("DESCRIPTOR = pool.Default().AddSerializedFile(b'\\n\\x01x')\n")
    assert pool._descriptor_in(module) == b"\n\x01x"
