"""P4Runtime's messages: built from an installed package's descriptors, and the stubs that lint makes of them."""

from __future__ import annotations

import re
import runpy
from pathlib import Path
from types import ModuleType

import pytest

from p4switch.proto import p4data_pb2, p4info_pb2, p4runtime_pb2, p4types_pb2, pool, status_pb2

P4SWITCH = Path(__file__).resolve().parents[2]


MODULES = (p4data_pb2, p4info_pb2, p4runtime_pb2, p4types_pb2, status_pb2)


@pytest.fixture(scope="module")
def stubs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("stubs")
    runpy.run_path(str(P4SWITCH / "tools" / "generate_p4runtime_stubs.py"))["write"](folder)
    return folder / "p4switch" / "proto"


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.__name__.rpartition(".")[2])
def test_a_stub_declares_what_its_module_exports(stubs: Path, module: ModuleType) -> None:
    text = (stubs / f"{module.__name__.rpartition('.')[2]}.pyi").read_text()
    assert compile(text, module.__name__, "exec")
    exported = {name for name in vars(module) if name not in ("exported_names", "TYPE_CHECKING", "Any")}
    exported -= {name for name in exported if name.startswith("__")}
    declared = set(re.findall(r"^(?:class )?([A-Za-z]\w*)[(:]", text, flags=re.M))
    assert exported - declared == set()
    assert not re.search(r"\b(?:p4\.v1|p4\.config|google\.rpc)\b.*_pb2", text)


def test_stubs_stand_in_a_package_like_their_modules(stubs: Path) -> None:
    package = P4SWITCH / "src" / "p4switch"
    assert (stubs.parent / "__init__.pyi").read_text() == (package / "__init__.py").read_text()
    assert {path.name for path in stubs.iterdir()} == {
        "__init__.pyi", *(f"{module.__name__.rpartition('.')[2]}.pyi" for module in MODULES)
    }  # fmt: skip


def test_a_module_without_descriptor_is_refused(tmp_path: Path) -> None:
    module = tmp_path / "p4runtime_pb2.py"
    module.write_text("DESCRIPTOR = None\n")
    with pytest.raises(ImportError, match="holds no descriptor"):
        pool.descriptor_in(module)


def test_current_generated_modules_are_understood(tmp_path: Path) -> None:
    module = tmp_path / "p4runtime_pb2.py"
    module.write_text("DESCRIPTOR = pool.Default().AddSerializedFile(b'\\n\\x01x')\n")
    assert pool.descriptor_in(module) == b"\n\x01x"
