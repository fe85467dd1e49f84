"""Parts of what is in C call each other in one direction."""

from __future__ import annotations

import subprocess
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

from tools import native_build
from tools.native_build import SharedObject


def symbols(path: Path, kind: str) -> set[str]:
    """Those that an object defines, or asks others for."""
    done = subprocess.run(["nm", "-P", "-g", f"--{kind}", str(path)], capture_output=True, text=True, check=True)
    return {line.split()[0] for line in done.stdout.splitlines()}


@pytest.mark.parametrize("made", native_build.OBJECTS, ids=lambda made: Path(made.path).stem)
def test_no_part_calls_in_a_circle(made: SharedObject, tmp_path: Path) -> None:
    includes = [f"-I{native_build.ROOT / folder}" for folder in (made.sources, *made.includes)]
    # What is built for one level of the processor calls nobody, and needs flags of its own.
    sources = [
        str(path)
        for path in sorted((native_build.ROOT / made.sources).glob("*.c"))
        if not path.stem.endswith(tuple(native_build.LEVELS))
    ]
    words = [*native_build.compiler(), *native_build.FLAGS, "-O0", *includes, "-c", *sources]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    paths = sorted(tmp_path.glob("*.o"))
    owner = {symbol: path.stem for path in paths for symbol in symbols(path, "defined-only")}
    calls = {path.stem: {owner[name] for name in symbols(path, "undefined-only") if name in owner} for path in paths}
    assert sum(map(len, calls.values())) >= len(calls) - 1, "the test sees who calls whom"
    TopologicalSorter(calls).prepare()  # raises CycleError, which names the circle
