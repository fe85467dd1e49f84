"""The distributions: one version, exact pins of each other, types and licence in each."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import kvcast
import kvchunk
import kvproto
import p4switch
from kvclient import __all__ as exported
from kvproto.programs import Architecture, program_for

ROOT = Path(__file__).parents[3]
FOLDERS = (".", "client", "kvproto", "lab", "p4switch")


def project(folder: str) -> dict[str, Any]:
    found: dict[str, Any] = tomllib.loads((ROOT / folder / "pyproject.toml").read_text())
    return found


def test_one_version_and_exact_pins() -> None:
    assert kvcast.__version__ == kvchunk.__version__ == kvproto.__version__ == p4switch.__version__
    needed = project(".")["project"]["dependencies"]
    assert {f"{name}=={kvcast.__version__}" for name in ("kvcast-client", "kvproto", "p4switch")} <= set(needed)
    lab = project("lab")["project"]
    assert lab["version"] == kvcast.__version__
    assert f"kvcast=={kvcast.__version__}" in lab["dependencies"]
    assert f"kvcast-client=={kvcast.__version__}" in project("kvproto")["project"]["dependencies"]


def test_an_engine_gets_numpy_and_nothing_else() -> None:
    (needed,) = project("client")["project"]["dependencies"]
    assert needed.startswith("numpy")


def test_every_top_level_package_is_in_one_distribution_and_typed() -> None:
    lab = project("lab")["tool"]["hatch"]["build"]["targets"]
    assert lab["sdist"]["force-include"] == {f"../{name}": name for name in lab["wheel"]["packages"]}
    packed = {*project(".")["tool"]["hatch"]["build"]["only-include"], *lab["wheel"]["packages"]}
    assert packed == {path.parent.name for path in ROOT.glob("*/__init__.py")}
    others = ("client/src/kvchunk", "client/src/kvclient", "kvproto/src/kvproto", "p4switch/src/p4switch")
    for folder in (*packed, *others):
        assert (ROOT / folder / "py.typed").is_file(), folder


def test_the_licence_is_the_same_file_everywhere() -> None:
    texts = {(ROOT / folder / "LICENSE").read_text() for folder in FOLDERS}
    assert len(texts) == 1
    assert all(project(folder)["project"]["license"] == "Apache-2.0" for folder in FOLDERS)


def test_programs_are_found_in_a_checkout() -> None:
    for architecture in Architecture:
        assert program_for(architecture) == ROOT / "p4" / architecture / "kvcast.p4"


def test_the_client_exports_what_its_readme_uses() -> None:
    assert {"AgentClient", "Status", "PutOutcome", "ChunkKey", "chunk_key", "prefix_keys"} <= set(exported)
