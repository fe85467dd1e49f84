"""Whether a vLLM has what the connector uses of it, read from its source: nothing of it is imported or run.

    python tools/check_vllm_interface.py vllm-0.33.0-cp38-abi3-manylinux_2_28_x86_64.whl
    python tools/check_vllm_interface.py .venv-vllm/lib/python3.11/site-packages

The argument is a wheel, or a folder with the package in it. Looked at are the names that `kvclient.engines.vllm`
imports from vLLM, and the methods of vLLM's classes that ours override: they must be there, with parameters of the same
names, and ours must have all that are abstract. Exit status 1, with a line each, if something is missing.
"""

from __future__ import annotations

import argparse
import ast
import sys
import zipfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

CONNECTOR: Final = Path(__file__).parent.parent / "client/src/kvclient/engines/vllm"
OVERRIDING: Final = (
    (
        ("connector.py", "KvcastConnector"),
        ("distributed/kv_transfer/kv_connector/v1/base.py", ("KVConnectorBase_V1", "SupportsHMA")),
    ),
)
"""Our classes with their files, and those of vLLM that they derive from."""
OURS: Final = frozenset({"where"})
"""Public methods that are not vLLM's."""
NEWER: Final = frozenset({"unregister_kv_caches", "restore_kv_caches"})
"""Hooks that an older vLLM of the version window has not and never calls."""

Source = Callable[[str], str | None]
"""Text of a file of vLLM by its path in the package; None: there is none."""


def source_of(place: Path) -> Source:
    """Of a wheel or a folder. Raises OSError, zipfile.BadZipFile."""
    if place.is_dir():

        def read_file(path: str) -> str | None:
            file = place / "vllm" / path
            return file.read_text(encoding="utf-8") if file.is_file() else None

        return read_file
    wheel = zipfile.ZipFile(place)
    names = frozenset(wheel.namelist())
    return lambda path: wheel.read(f"vllm/{path}").decode() if f"vllm/{path}" in names else None


def missing(source: Source) -> Iterator[str]:
    """What the connector uses and this vLLM has not, a line each."""
    for file in sorted(CONNECTOR.glob("*.py")):
        for module, name in _imports(ast.parse(file.read_text(encoding="utf-8"))):
            if not _has(source, module, name):
                yield f"{file.name} imports {name} from {module}: it is not there"
    for (file_name, ours), (path, bases) in OVERRIDING:
        text = source(path)
        if text is not None:
            yield from _unlike((CONNECTOR / file_name).read_text(encoding="utf-8"), ours, text, bases)


def _unlike(our_text: str, our_class: str, text: str, bases: Sequence[str]) -> Iterator[str]:
    """How a class of ours does not fit vLLM's."""
    ours, theirs = _methods(our_text, [our_class]), _methods(text, bases)
    for name, method in ours.items():
        if name.startswith("_") or name in OURS:
            continue
        if name in theirs:
            lacking = _parameters(theirs[name]) - _parameters(method)
            if lacking and method.args.kwarg is None:
                yield f"{our_class}.{name} does not take {', '.join(sorted(lacking))}"
        elif name not in NEWER:
            yield f"{our_class}.{name}: vLLM's base class has no such method"
    for name, method in theirs.items():
        if name not in ours and "abstractmethod" in {ast.unparse(each) for each in method.decorator_list}:
            yield f"{our_class} has no {name}, which vLLM's base class demands"


def _imports(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """(module, name) of everything that is imported from vLLM."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module is not None and node.module.split(".")[0] == "vllm":
            for alias in node.names:
                yield node.module, alias.name


def _has(source: Source, module: str, name: str) -> bool:
    folder = "/".join(module.split(".")[1:])
    package = f"{folder}/__init__.py" if folder else "__init__.py"
    if source(f"{folder}/{name}.py") is not None or source(f"{folder}/{name}/__init__.py") is not None:
        return True
    text = source(f"{folder}.py") or source(package)
    return text is not None and name in _names(source, module, ast.parse(text))


def _names(source: Source, module: str, tree: ast.Module) -> set[str]:
    """Names that a module defines, imports, or says that it gives lazily; through `import *`, too."""
    found: set[str] = set()
    for node in ast.walk(tree):
        match node:
            case ast.ClassDef(name=name) | ast.FunctionDef(name=name) | ast.Name(id=name, ctx=ast.Store()):
                found.add(name)
            case ast.Import(names=names):
                found.update(alias.asname or alias.name for alias in names)
            case ast.ImportFrom(names=names, level=level, module=target):
                found.update(alias.asname or alias.name for alias in names)
                if any(alias.name == "*" for alias in names):
                    origin = ".".join(filter(None, [module if level else "", target]))
                    path = "/".join(origin.split(".")[1:])
                    text = source(f"{path}.py") or source(f"{path}/__init__.py")
                    found |= _names(source, origin, ast.parse(text)) if text is not None else set()
            case ast.Constant(value=str() as name):
                found.add(name)
    return found


def _methods(text: str, classes: Sequence[str]) -> dict[str, ast.FunctionDef]:
    """Methods of these classes by name."""
    return {
        method.name: method
        for node in ast.parse(text).body
        if isinstance(node, ast.ClassDef) and node.name in classes
        for method in node.body
        if isinstance(method, ast.FunctionDef)
    }


def _parameters(method: ast.FunctionDef) -> set[str]:
    return {argument.arg for argument in (*method.args.posonlyargs, *method.args.args, *method.args.kwonlyargs)}


def main() -> int:
    """Check one."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("vllm", type=Path, help="a wheel, or a folder with the package `vllm`")
    args = parser.parse_args()
    source = source_of(args.vllm)
    if source("__init__.py") is None:
        print(f"{args.vllm}: there is no package vllm in it", file=sys.stderr)
        return 2
    lines = list(missing(source))
    print("\n".join(lines) or f"{args.vllm}: all that the connector uses is there")
    return 1 if lines else 0


if __name__ == "__main__":
    raise SystemExit(main())
