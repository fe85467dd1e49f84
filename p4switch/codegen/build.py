"""C source to a shared object with the machine's compiler, cached by content."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ABI_DIRECTORY = Path(__file__).resolve().parent.parent / "runtime" / "include"
FLAGS = ("-O2", "-std=gnu11", "-fPIC", "-shared", "-fno-strict-aliasing", "-fvisibility=hidden", "-w")
COMPILE_SECONDS_MAX = 300


class BuildError(Exception):
    """No compiler, or it refused; the message is one line."""


def find_compiler() -> list[str]:
    """$CC, `cc`, `gcc` or `clang` on PATH, else ziglang's. BuildError when there is none."""
    chosen = os.environ.get("CC")
    if chosen:
        command = shlex.split(chosen)
        if shutil.which(command[0]) is None:
            raise BuildError(f"the C compiler {command[0]} named by $CC is not on PATH")
        return command
    for name in ("cc", "gcc", "clang"):
        found = shutil.which(name)
        if found:
            return [found]
    if importlib.util.find_spec("ziglang") is not None:
        return [sys.executable, "-m", "ziglang", "cc"]
    raise BuildError("no C compiler: install gcc or clang, set $CC, or `pip install ziglang`")


def cache_directory() -> Path:
    """$XDG_CACHE_HOME/p4switch or ~/.cache/p4switch."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "p4switch"


def build(source: str, compiler: list[str] | None = None, flags: tuple[str, ...] = FLAGS) -> Path:
    """Compile C text; the same text, flags, compiler and ABI give the cached object. BuildError on failure."""
    command = compiler if compiler is not None else find_compiler()
    abi = (ABI_DIRECTORY / "p4switch_abi.h").read_bytes()
    digest = hashlib.sha256()
    for part in (source.encode(), abi, "\0".join([*command, *flags]).encode()):
        digest.update(len(part).to_bytes(8, "big") + part)
    directory = cache_directory()
    target = directory / f"{digest.hexdigest()[:32]}.so"
    if target.exists():
        return target
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as problem:
        raise BuildError(f"cannot make the cache directory {directory}: {problem.strerror}") from problem
    with tempfile.TemporaryDirectory(dir=directory) as scratch:
        text = Path(scratch) / "program.c"
        text.write_text(source)
        made = Path(scratch) / "program.so"
        _run([*command, *flags, "-I", str(ABI_DIRECTORY), "-o", str(made), str(text)])
        made.replace(target)
    return target


def _run(command: list[str]) -> None:
    try:
        result = subprocess.run(command, capture_output=True, text=True, timeout=COMPILE_SECONDS_MAX, check=False)
    except (OSError, subprocess.TimeoutExpired) as problem:
        raise BuildError(f"the C compiler {command[0]} did not run: {problem}") from problem
    if result.returncode:
        first = next((line for line in result.stderr.splitlines() if "error" in line), result.stderr.strip()[:200])
        raise BuildError(f"the C compiler {command[0]} refused the generated code: {first}")
