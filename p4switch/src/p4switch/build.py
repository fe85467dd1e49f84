"""Turns C into shared objects with the machine's compiler, once: a result is cached under the hash of all that went in.

The cache is ``$XDG_CACHE_HOME/p4switch`` (``~/.cache/p4switch``), or a private temporary directory where that cannot be
written or is somebody else's: shared objects run as this user, so nobody else may put one there. Used for the switch's
runtime, for compiled P4 programs, and by other packages that bring C of their own: this module knows nothing of
switches.
"""

from __future__ import annotations

import atexit
import functools
import hashlib
import importlib.util
import logging
import os
import platform
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from p4switch.errors import SwitchError
from p4switch.own_folder import is_own_file, own_folder

log = logging.getLogger(__name__)

_FLAGS_COMMON = ("-std=gnu11", "-shared", "-fPIC", "-fvisibility=hidden", "-D_GNU_SOURCE", "-pthread", "-Wall")
FLAGS_FAST = ("-O3", "-fno-plt", "-fno-semantic-interposition")
_FLAG_THIS_CPU = "-march=native"
_COMPILE_SECONDS_MAX = 600.0

EXTRA_FLAGS_VARIABLE = "P4SWITCH_CFLAGS"
"""Environment variable with further compiler flags, for sanitizers and debuggers."""


class BuildError(SwitchError):
    """C could not be compiled; one line."""


class CompilerMissingError(BuildError):
    """No C compiler on this machine."""


@dataclass(frozen=True, slots=True)
class Compiler:
    """A C compiler: the words that start its command line, and what it says of its version."""

    command: tuple[str, ...]
    version: str


@functools.cache
def find_compiler() -> Compiler:
    """``$CC``, else cc, gcc or clang on PATH, else the one in PyPI's ziglang.

    Raises:
        CompilerMissingError: there is none, or ``$CC`` does not run.
    """
    wanted = os.environ.get("CC")
    if wanted:
        return _probe(tuple(shlex.split(wanted)), f"$CC is {wanted!r}, which does not run")
    for name in ("cc", "gcc", "clang"):
        path = shutil.which(name)
        if path is not None:
            return _probe((path,), f"{path} does not run")
    if importlib.util.find_spec("ziglang") is not None:
        return _probe((sys.executable, "-m", "ziglang", "cc"), "the C compiler of the package ziglang does not run")
    raise CompilerMissingError(
        "no C compiler found: install gcc or clang (Debian: apt install gcc libc6-dev) or `pip install ziglang`"
    )


def _probe(command: tuple[str, ...], complaint: str) -> Compiler:
    try:
        answer = subprocess.run([*command, "--version"], capture_output=True, text=True, timeout=60, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        raise CompilerMissingError(f"{complaint}: {error}") from error
    return Compiler(command, answer.stdout.strip())


@functools.cache
def _this_cpu(compiler: Compiler) -> tuple[str, ...]:
    """The flag that lets the compiler use all instructions of this processor, if it knows it: wide copies of payloads
    in registers are twice as fast with them."""
    command = [*compiler.command, _FLAG_THIS_CPU, "-x", "c", "-c", "-o", os.devnull, os.devnull]
    try:
        done = subprocess.run(command, capture_output=True, timeout=_COMPILE_SECONDS_MAX, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ()
    return (_FLAG_THIS_CPU,) if done.returncode == 0 else ()


@functools.cache
def _cpu_identity() -> str:
    """Architecture and instruction sets: a cache may be shared by unlike machines."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    features = next((line for line in lines if line.lower().startswith(("flags", "features"))), "")
    return f"{platform.machine()} {features}"


def cache_base() -> Path:
    """Where shared objects should be kept."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(base) / "p4switch"


def is_writable(directory: Path) -> bool:
    """Whether files can be made in a directory; makes it if need be."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=directory):
            return True
    except OSError:
        return False


@functools.cache
def cache_dir() -> Path:
    """Where shared objects are kept; made if need be."""
    directory = cache_base()
    try:
        own_folder(directory)
    except SwitchError as error:
        log.warning("every start compiles again: %s", error)
    else:
        if is_writable(directory):
            return directory
    private = Path(tempfile.mkdtemp(prefix="p4switch-"))
    atexit.register(shutil.rmtree, private, ignore_errors=True)
    return private


def build_shared_object(
    name: str,
    sources: Sequence[Path],
    *,
    include_dirs: Sequence[Path] = (),
    flags: Sequence[str] = FLAGS_FAST,
) -> Path:
    """Compiles C files into one shared object and gives its path; a second call with the same content only looks it up.

    Args:
        name: start of the file's name, for people.
        sources: C files; headers are looked for in ``include_dirs``, whose ``*.h`` count as content too.

    Raises:
        CompilerMissingError: there is no compiler.
        BuildError: the compiler refuses the source; the message holds its first complaint.
    """
    compiler = find_compiler()
    flags = [*flags, *_this_cpu(compiler), *shlex.split(os.environ.get(EXTRA_FLAGS_VARIABLE, ""))]
    headers = [header for directory in include_dirs for header in sorted(directory.glob("*.h"))]
    digest = _digest(compiler, flags, [*sources, *headers])
    target = cache_dir() / f"{name}-{digest}.so"
    if is_own_file(target) and _is_whole(target):
        return target
    handle, scratch = tempfile.mkstemp(dir=target.parent, prefix=f".{name}-", suffix=".so")
    os.close(handle)
    includes = [f"-I{directory}" for directory in include_dirs]
    command = [*compiler.command, *_FLAGS_COMMON, *flags, *includes, *map(str, sources), "-o", scratch]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_COMPILE_SECONDS_MAX, check=False, env=_environment()
        )
        if done.returncode != 0:
            raise BuildError(f"the C compiler refused {name}: {_first_error(done.stderr)}")
        if not _is_whole(Path(scratch)):
            raise BuildError(f"the C compiler wrote nothing for {name}")
        os.chmod(scratch, 0o700)
        os.replace(scratch, target)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise BuildError(f"the C compiler failed on {name}: {error}") from error
    finally:
        Path(scratch).unlink(missing_ok=True)
    return target


def _is_whole(path: Path) -> bool:
    """Whether there is more than an empty file: what a full disk or a crash of the machine may leave."""
    return path.is_file() and path.stat().st_size > 0


def _environment() -> dict[str, str]:
    """Without libraries that this process was started with (of a sanitizer, say): they are none of the compiler's."""
    return {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}


def _digest(compiler: Compiler, flags: list[str], files: Iterable[Path]) -> str:
    summary = hashlib.blake2b(digest_size=16)
    for text in (_cpu_identity(), *compiler.command, compiler.version, *_FLAGS_COMMON, *flags):
        summary.update(text.encode() + b"\0")
    for file in files:
        content = file.read_bytes()
        summary.update(f"{file.name} {len(content)}\n".encode() + content)
    return summary.hexdigest()


def _first_error(output: str) -> str:
    for line in output.splitlines():
        if "error" in line:
            return line.strip()
    return output.strip().splitlines()[0] if output.strip() else "it gave no reason"
