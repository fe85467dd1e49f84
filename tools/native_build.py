#!/usr/bin/env python3
"""Compile the shared objects in C that kvcast ships: `OBJECTS`. Standard library alone: builds of wheels run it, too.

Run as a program it builds, in the checkout, those that are older than their sources. `$CC` names the compiler (a cross
compiler gives objects for its machine), `$CFLAGS` adds flags. An object runs on every processor of its architecture.
Sources whose names end with one of `LEVELS` may use more: they run only where the processor has it, which the object
finds out when it is loaded.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import struct
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
FLAGS: Final = (
    *("-std=gnu11", "-D_GNU_SOURCE", "-pthread", "-fPIC", "-fvisibility=hidden"),
    *("-O3", "-fno-plt", "-fno-semantic-interposition"),
    *("-Wall", "-Wextra", "-Wshadow"),
)
LEVELS: Final = {"_avx2": ("-mavx2",), "_avx512": ("-mavx512f", "-mavx512dq", "-mavx512bw", "-mavx512vl")}
"""By the end of a source's name: what it may use on x86-64. On other machines it compiles to nothing."""
_LINK_FLAGS: Final = ("-shared", "-pthread", "-Wl,-z,relro,-z,now")
_MACHINES: Final = {62: "x86_64", 183: "aarch64"}
"""elf(5): e_machine."""


class BuildError(Exception):
    """There is no compiler, or it refuses; one line, then what it said."""


@dataclass(frozen=True, slots=True)
class SharedObject:
    """One shared object, with paths from the root of the repository."""

    path: str
    sources: str
    """A folder, all of it."""
    includes: tuple[str, ...] = ()
    """More folders with headers."""


OBJECTS: Final = (
    SharedObject("kvcodec/kvcodec.so", "kvcodec/src"),
    SharedObject("hostagent/native/datapath.so", "hostagent/native/src", ("kvcodec/src",)),
)


def compiler() -> tuple[str, ...]:
    """Words of its command line. Raises BuildError."""
    wanted = os.environ.get("CC")
    if wanted:
        return tuple(shlex.split(wanted))
    for name in ("cc", "gcc", "clang"):
        if (path := shutil.which(name)) is not None:
            return (path,)
    raise BuildError(
        "kvcast's C needs a C compiler: install gcc or clang, set $CC, or install a wheel, which has it built"
    )


def machine_of(command: Sequence[str]) -> str:
    """What a compiler compiles for."""
    machine = _run([*command, "-dumpmachine"]).partition("-")[0]
    return {"amd64": "x86_64", "arm64": "aarch64"}.get(machine, machine)


def build(made: SharedObject, target: Path, flags: Sequence[str] = ()) -> None:
    """Compile one object, whatever is there already. `flags`: behind all others. Raises BuildError."""
    command = compiler()
    has_levels = machine_of(command) == "x86_64"
    more = [*shlex.split(os.environ.get("CFLAGS", "")), *flags]
    includes = [f"-I{ROOT / folder}" for folder in (made.sources, *made.includes)]

    def compile_one(source: Path, to: Path) -> Path:
        level = next((end for end in LEVELS if source.stem.endswith(end)), None)
        chosen = LEVELS[level] if level and has_levels else ()
        _run([*command, *FLAGS, *chosen, *more, *includes, "-c", str(source), "-o", str(to)])
        return to

    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".build-") as folder:
        sources = sorted((ROOT / made.sources).glob("*.c"))
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            parts = list(pool.map(compile_one, sources, (Path(folder, f"{one.stem}.o") for one in sources)))
        whole = Path(folder, target.name)
        _run([*command, *_LINK_FLAGS, *more, *map(str, parts), "-o", str(whole)])
        os.replace(whole, target)


def is_stale(made: SharedObject, target: Path) -> bool:
    """Whether an object is missing or older than what it is made from."""
    if not target.exists():
        return True
    folders = [ROOT / folder for folder in (made.sources, *made.includes)]
    files = [Path(__file__), *(file for folder in folders for file in folder.iterdir())]
    return max(file.stat().st_mtime_ns for file in files) > target.stat().st_mtime_ns


def refresh(flags: Sequence[str] = ("-Werror",), folder: Path | None = None) -> list[Path]:
    """Build what is stale: in the checkout's packages, or all side by side in a folder. Raises BuildError."""
    built = []
    for made in OBJECTS:
        target = ROOT / made.path if folder is None else folder / Path(made.path).name
        if is_stale(made, target):
            build(made, target, flags)
            built.append(target)
    return built


def platform_of(objects: Sequence[Path]) -> str:
    """The platform tag of a wheel with these objects: their machine, and the oldest glibc that has what they ask of it.

    Raises BuildError: they are of a machine that is not known.
    """
    contents = [path.read_bytes() for path in objects]
    (number,) = {struct.unpack_from("<H", content, 18)[0] for content in contents}
    if number not in _MACHINES:
        raise BuildError(f"kvcast's C is built for ELF machine {number}: x86-64 and AArch64 are known")
    asked = {tuple(map(int, found)) for one in contents for found in re.findall(rb"\0GLIBC_(\d+)\.(\d+)", one)}
    major, minor = max(asked)
    return f"manylinux_{major}_{minor}_{_MACHINES[number]}"


def _run(command: Sequence[str]) -> str:
    """Standard output. Without libraries that this process was started with (of a sanitizer, say)."""
    environment = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    except OSError as error:
        raise BuildError(f"the C compiler does not run: {error}") from error
    if done.returncode != 0:
        raise BuildError(f"the C compiler failed: {shlex.join(command)}\n{done.stderr.strip()}")
    return done.stdout.strip()


def main() -> int:
    """Build what is stale; the exit status."""
    try:
        for path in refresh():
            print(f"built {path.relative_to(ROOT)}")
    except BuildError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
