"""Whether an engine has what kvcast uses of it, read from its source: nothing of it is imported or run.

    python tools/engine_interfaces.py vllm vllm-0.33.0-cp38-abi3-manylinux_2_28_x86_64.whl
    python tools/engine_interfaces.py sglang .venv-sglang/lib/python3.11/site-packages

The second argument is a wheel, or a folder with the packages in it. Looked at are the names that `kvclient.engines`
imports from the engine, the methods of its classes that ours override (they must be there, with parameters of the same
names, and ours must have all that are abstract), and the methods that ours call or hook by name. Exit status 1, with a
line each, if something is missing; 2 if the place cannot be read.
"""

from __future__ import annotations

import argparse
import ast
import sys
import zipfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

OURS: Final = Path(__file__).parent.parent / "client/src/kvclient/engines"

Source = Callable[[str], str | None]
"""Text of a file by its path, the package's folder first; None: there is none."""


@dataclass(frozen=True, slots=True)
class Derived:
    """A class of ours that derives from classes of the engine."""

    file: str
    """Of ours, in the engine's folder."""
    name: str
    their_file: str
    bases: tuple[str, ...]
    own: frozenset[str] = frozenset()
    """Public methods that are not the engine's."""
    newer: frozenset[str] = frozenset()
    """Methods that an older engine of the version window has not and never calls."""


@dataclass(frozen=True, slots=True)
class Named:
    """Methods of a class of the engine that ours use by name alone."""

    their_file: str
    their_class: str
    file: str
    """Of ours, where the names come from."""
    holder: str
    """There: a constant with names, or a protocol, whose methods' parameters the engine's must have, too."""


@dataclass(frozen=True, slots=True)
class Engine:
    """What kvcast uses of an engine."""

    package: str
    """As it is imported; the folder of ours has the same name."""
    derived: tuple[Derived, ...] = ()
    named: tuple[Named, ...] = ()
    optional: frozenset[str] = frozenset()
    """Modules and names (`module.name`) that an older engine of the version window has not and never asks for."""


ENGINES: Final = (
    Engine(
        "vllm",
        derived=(
            Derived(
                "connector.py",
                "KvcastConnector",
                "vllm/distributed/kv_transfer/kv_connector/v1/base.py",
                ("KVConnectorBase_V1", "SupportsHMA"),
                own=frozenset({"where"}),
                newer=frozenset({"unregister_kv_caches", "restore_kv_caches"}),
            ),
        ),
    ),
    Engine(
        "sglang",
        derived=(
            Derived(
                "backend.py",
                "KvcastHiCache",
                "sglang/srt/mem_cache/hicache_storage.py",
                ("HiCacheStorage",),
                own=frozenset({"close"}),
            ),
        ),
        named=(
            Named(
                "sglang/srt/managers/scheduler_components/weight_updater.py",
                "SchedulerWeightUpdaterManager",
                "hooks.py",
                "MAY_CHANGE_WEIGHTS",
            ),
        ),
    ),
    Engine(
        "lmcache",
        derived=(
            Derived(
                "second_level.py",
                "KvcastL2",
                "lmcache/v1/distributed/l2_adapters/base.py",
                ("L2AdapterInterface",),
                newer=frozenset({"get_memory_tags"}),
            ),
        ),
        optional=frozenset(
            f"lmcache.v1.distributed.api.{name}" for name in ("MemoryResidency", "MemorySegment", "MemoryTags")
        ),
    ),
    Engine(
        "ucm",
        derived=(
            Derived(
                "ucm_store.py",
                "KvcastStore",
                "ucm/store/ucmstore_v1.py",
                ("UcmKVStoreBaseV1",),
                own=frozenset({"close"}),
            ),
        ),
    ),
    Engine("dynamo", named=(Named("dynamo/_core.pyi", "KvEventPublisher", "node_news.py", "KvEventPublisher"),)),
)


def source_of(place: Path) -> Source:
    """Of a wheel or a folder. Raises OSError, zipfile.BadZipFile."""
    if place.is_dir():

        def read_file(path: str) -> str | None:
            file = place / path
            return file.read_text(encoding="utf-8") if file.is_file() else None

        return read_file
    wheel = zipfile.ZipFile(place)
    names = frozenset(wheel.namelist())
    return lambda path: wheel.read(path).decode() if path in names else None


def missing(engine: Engine, source: Source) -> Iterator[str]:
    """What kvcast uses and this engine has not, a line each."""
    folder = OURS / engine.package
    for file in sorted(folder.glob("*.py")):
        for module, name in _imports(ast.parse(file.read_text(encoding="utf-8")), engine.package):
            if f"{module}.{name}" not in engine.optional and not _has(source, module, name):
                yield f"{file.name} imports {name} from {module}: it is not there"
    for derived in engine.derived:
        text = source(derived.their_file)
        if text is None:
            yield f"{derived.name} derives from a class of {derived.their_file}: the file is not there"
        else:
            yield from _unlike(derived, (folder / derived.file).read_text(encoding="utf-8"), text)
    for named in engine.named:
        text = source(named.their_file)
        if text is None:
            yield f"{named.file} uses {named.their_class} of {named.their_file}: the file is not there"
        else:
            yield from _unnamed(named, (folder / named.file).read_text(encoding="utf-8"), text)


def _unlike(derived: Derived, our_text: str, their_text: str) -> Iterator[str]:
    """How a class of ours does not fit the engine's."""
    ours, theirs = _methods(our_text, [derived.name]), _methods(their_text, derived.bases)
    for name, method in ours.items():
        if name.startswith("_") or name in derived.own:
            continue
        if name in theirs:
            lacking = _parameters(theirs[name]) - _parameters(method)
            if lacking and method.args.kwarg is None:
                yield f"{derived.name}.{name} does not take {', '.join(sorted(lacking))}"
        elif name not in derived.newer:
            yield f"{derived.name}.{name}: {derived.bases[0]} has no such method"
    for name, method in theirs.items():
        if name not in ours and "abstractmethod" in {ast.unparse(each) for each in method.decorator_list}:
            yield f"{derived.name} has no {name}, which {derived.bases[0]} demands"


def _unnamed(named: Named, our_text: str, their_text: str) -> Iterator[str]:
    """Methods that ours use by name and the engine's class has not, or has with other parameters."""
    wanted, theirs = _wanted(our_text, named.holder), _methods(their_text, [named.their_class])
    for name, parameters in wanted.items():
        if name not in theirs:
            yield f"{named.file} uses {named.their_class}.{name}: it is not there"
        elif lacking := parameters - _parameters(theirs[name]):
            yield f"{named.file}: {named.their_class}.{name} does not take {', '.join(sorted(lacking))}"


def _wanted(our_text: str, holder: str) -> dict[str, set[str]]:
    """Names of methods, with the parameters that ours pass by name or place."""
    for node in ast.parse(our_text).body:
        if isinstance(node, ast.AnnAssign) and ast.unparse(node.target) == holder and node.value is not None:
            return {name: set() for name in ast.literal_eval(node.value)}
    return {name: _parameters(method) for name, method in _methods(our_text, [holder]).items()}


def _imports(tree: ast.Module, package: str) -> Iterator[tuple[str, str]]:
    """(module, name) of everything that is imported from an engine."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module is not None and node.module.split(".")[0] == package:
            for alias in node.names:
                yield node.module, alias.name


def _module(source: Source, module: str) -> str | None:
    """A module's text; of one that is compiled, its stub's."""
    path = module.replace(".", "/")
    for file in (f"{path}.py", f"{path}/__init__.py", f"{path}.pyi"):
        if (text := source(file)) is not None:
            return text
    return None


def _has(source: Source, module: str, name: str) -> bool:
    if _module(source, f"{module}.{name}") is not None:
        return True
    text = _module(source, module)
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
                    text = _module(source, origin)
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
    engines = {engine.package: engine for engine in ENGINES}
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("engine", choices=sorted(engines))
    parser.add_argument("place", type=Path, help="a wheel, or a folder with the engine's package in it")
    args = parser.parse_args()
    engine = engines[args.engine]
    try:
        source = source_of(args.place)
    except (OSError, zipfile.BadZipFile) as error:
        print(f"{args.place}: {error}: name a wheel, or a folder with the package {engine.package}", file=sys.stderr)
        return 2
    files = [*(derived.their_file for derived in engine.derived), *(named.their_file for named in engine.named)]
    if all(source(file) is None for file in files):
        print(f"{args.place}: nothing that kvcast uses of the package {engine.package} is in it", file=sys.stderr)
        return 2
    lines = list(missing(engine, source))
    print("\n".join(lines) or f"{args.place}: all that kvcast uses is there")
    return 1 if lines else 0


if __name__ == "__main__":
    raise SystemExit(main())
