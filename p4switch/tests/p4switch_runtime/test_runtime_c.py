"""What all C here keeps to. Compilers of users, which nobody has tried, may warn: they compile all the same."""

from __future__ import annotations

import subprocess
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

from p4switch.build import find_compiler
from p4switch.runtime import abi

COMPILE = ("-std=gnu11", "-D_GNU_SOURCE", "-pthread", "-fPIC", "-O1", "-c")
STRICT = ("-Wall", "-Wextra", "-Wshadow", "-Werror")
RUNTIME = Path(abi.__file__).parent / "src"
BENCHES = abi.INCLUDE_DIR.parents[1] / "bench"
INCLUDES = tuple(f"-I{folder}" for folder in (abi.INCLUDE_DIR, RUNTIME))


@pytest.fixture(scope="module")
def objects(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with an object of each source of the runtime. A strict compiler had nothing to say."""
    folder = tmp_path_factory.mktemp("objects")
    sources = map(str, sorted(RUNTIME.glob("*.c")))
    done = subprocess.run(
        [*find_compiler().command, *COMPILE, *STRICT, *INCLUDES, *sources],
        cwd=folder, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return folder


def symbols(path: Path, kind: str) -> set[str]:
    """Those that an object defines, or asks others for."""
    done = subprocess.run(["nm", "-P", "-g", f"--{kind}", str(path)], capture_output=True, text=True, check=True)
    return {line.split()[0] for line in done.stdout.splitlines()}


def test_parts_of_the_runtime_call_each_other_in_one_direction(objects: Path) -> None:
    paths = sorted(objects.glob("*.o"))
    owner = {symbol: path.stem for path in paths for symbol in symbols(path, "defined-only")}
    calls = {path.stem: {owner[name] for name in symbols(path, "undefined-only") if name in owner} for path in paths}
    assert len(calls) > 20
    assert "link" in calls["traffic"] | calls["tna"], "the test sees who calls whom"
    TopologicalSorter(calls).prepare()  # raises CycleError, which names the circle


@pytest.mark.parametrize("folder", [BENCHES, Path(__file__).parent], ids=["bench", "tests"])
def test_a_strict_compiler_has_nothing_to_say(folder: Path) -> None:
    sources = map(str, sorted(folder.glob("*.c")))
    done = subprocess.run(
        [*find_compiler().command, *STRICT, "-std=gnu11", "-D_GNU_SOURCE", "-fsyntax-only", *INCLUDES, *sources],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
