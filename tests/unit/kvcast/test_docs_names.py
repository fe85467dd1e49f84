"""Files, folders and modules that the documentation names are there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from kvclient.engines.core.handoff import PARAMETERS

ROOT = Path(__file__).parents[3]
SOURCES = (ROOT, ROOT / "client" / "src", ROOT / "kvproto" / "src", ROOT / "p4switch" / "src")
PACKAGES = (
    *("kvchunk", "kvproto", "kvclient", "p4switch", "kvcodec", "kvpolicy", "kvdaemon", "kvsim"),
    *("controlplane", "hostagent", "planner", "bmv2_testbed", "kvcast", "kvlab"),
)
FOLDERS = (*PACKAGES, "client", "p4", "tests", "tools", "docs", "examples", "deploy")
NOT_MODULES = {"kvcast.p4", "kvcast.slab", "kvcast.index"}
"""Names of files that look like one. So do the names of a request's parameters, which engines know."""
WORD = re.compile(r"`([A-Za-z0-9_./]+)`")


def exists(name: str) -> bool:
    path = ROOT / name
    if path.exists() or "/" in name:
        return path.exists() or path.with_suffix(".py").exists()
    return any(has_module(folder.joinpath(*name.split("."))) for folder in SOURCES)


def has_module(module: Path) -> bool:
    if module.exists() or module.with_suffix(".py").exists():
        return True
    holder, attribute = module.parent, module.name
    source = holder / "__init__.py" if holder.is_dir() else holder.with_suffix(".py")
    return source.exists() and re.search(rf"\b{attribute}\b", source.read_text(encoding="utf-8")) is not None


def names(text: str) -> list[str]:
    found = (name.rstrip("/") for name in WORD.findall(text))
    return [
        name
        for name in found
        if name not in NOT_MODULES | PARAMETERS
        and (name.split("/")[0] in FOLDERS or (name.split(".")[0] in PACKAGES and "." in name))
    ]


@pytest.mark.parametrize(
    "page",
    sorted([ROOT / "README.md", *ROOT.glob("docs/**/*.md"), *ROOT.glob("p4switch/docs/*.md")]),
    ids=lambda page: page.name,
)
def test_what_a_page_names_is_there(page: Path) -> None:
    missing = [name for name in names(page.read_text(encoding="utf-8")) if not exists(name)]
    assert not missing


def test_a_name_that_is_gone_is_noticed() -> None:
    said = "`kvcast/cli.py`, `kvproto.units`, `kvproto.keys`, `hostagent/nothing.py`, `kvproto.units.format_rate`"
    assert [name for name in names(said) if not exists(name)] == ["kvproto.keys", "hostagent/nothing.py"]
