"""What all C here keeps to. Users' compilers, which nobody has tried, warn of what they like and compile all the same."""

from __future__ import annotations

import subprocess
from pathlib import Path

from p4switch.build import find_compiler
from p4switch.runtime import abi

STRICT = ("-std=gnu11", "-D_GNU_SOURCE", "-pthread", "-fsyntax-only", "-Wall", "-Wextra", "-Wshadow", "-Werror")
RUNTIME = Path(abi.__file__).parent / "src"


def test_the_compiler_has_nothing_to_say() -> None:
    benches = abi.INCLUDE_DIR.parents[1] / "bench"
    files = sorted(path for folder in (RUNTIME, benches, Path(__file__).parent) for path in folder.glob("*.c"))
    assert len(files) > 20
    includes = [f"-I{folder}" for folder in (abi.INCLUDE_DIR, RUNTIME)]
    done = subprocess.run(
        [*find_compiler().command, *STRICT, *includes, *map(str, files)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
