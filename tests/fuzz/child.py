"""One target in a process of its own, so that one that dies or hangs in C is a finding like others."""

from __future__ import annotations

import json
import logging
import mmap
import os
import struct
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import tests.sanitized
from tests.fuzz.crash import Crash, load, what
from tests.fuzz.reached import ROOT
from tests.fuzz.runner import Figures, broken_by, run
from tests.fuzz.target import Case
from tests.fuzz.targets import NATIVE, made_by

_LAST_BYTES: Final = 8 << 20
_LAST = struct.Struct("=QQ")
"""Number of the input under way, bytes of its JSON that follow."""
SILENT_S_MAX: Final = 400.0
"""An input that no signal ends takes this long; then its process is killed. More than any target's own limit, and than
compiling what a target runs."""


class LastInput:
    """The input under way, in a file that outlives the process that runs it."""

    def __init__(self, path: Path) -> None:
        with path.open("r+b" if path.exists() else "w+b") as file:
            file.truncate(_LAST_BYTES)
            self._map = mmap.mmap(file.fileno(), _LAST_BYTES)

    def write(self, number: int, case: Case) -> None:
        """Called before each input."""
        content = json.dumps([step.hex() for step in case]).encode()[: _LAST_BYTES - _LAST.size]
        self._map[: _LAST.size + len(content)] = _LAST.pack(number, len(content)) + content

    def number(self) -> int:
        """Of the input under way; of none yet 0."""
        number: int = _LAST.unpack_from(self._map)[0]
        return number

    def read(self) -> tuple[int, Case]:
        """What was written last, by a process that has ended."""
        number, size_bytes = _LAST.unpack_from(self._map)
        content = self._map[_LAST.size : _LAST.size + size_bytes]
        return number, [bytes.fromhex(step) for step in json.loads(content or b"[]")]


def child(name: str, seed: int, seconds: float | None, inputs: int | None, last: Path, crashes: Path) -> int:
    """Run one target here; the figures go to standard output."""
    logging.disable(logging.CRITICAL)
    figures = run(made_by(name), seed, seconds=seconds, inputs=inputs, watch=LastInput(last).write)
    files = [str(crash.save(crashes)) for crash in figures.crashes]
    told = {
        "inputs": figures.inputs,
        "took_s": figures.took_s,
        "lines": figures.lines,
        "kept": figures.kept,
        "checks": figures.checks,
        "files": files,
    }
    print(json.dumps(told), flush=True)
    return 1 if files else 0


def replay(path: Path) -> int:
    """Run the input of a file once; what comes of it goes to standard output."""
    name, case = load(path)
    target = made_by(name)()
    error = broken_by(target, case)
    target.close()
    if error is None:
        print(f"{path}: {name} takes this input")
        return 0
    print(what(error), end="")
    return 1


def environment(name: str, report: Path, *, sanitizers: bool = True) -> dict[str, str]:
    """For a target's process: with the sanitizers' libraries where it runs C and the compiler has them."""
    path = os.pathsep.join(
        (
            str(ROOT),
            str(ROOT / "client/src"),
            str(ROOT / "kvproto/src"),
            str(ROOT / "p4switch/src"),
            str(ROOT / "p4switch/tests"),
        )
    )
    made = {**os.environ, "PYTHONPATH": path, "PYTHONHASHSEED": "0"}
    sanitized = tests.sanitized.environment("address") if name in NATIVE and sanitizers else None
    if sanitized is None:
        return made
    return made | {
        **sanitized,
        "GLIBC_TUNABLES": "glibc.rtld.optional_static_tls=65536",
        "ASAN_OPTIONS": f"detect_leaks=0:abort_on_error=1:log_path={report}",
        "UBSAN_OPTIONS": f"print_stacktrace=1:log_path={report}",
    }


@dataclass(slots=True)
class Outcome:
    """What became of one target's process."""

    target: str
    figures: Figures
    files: list[str]
    """Of inputs that broke it."""
    sanitized: bool


class Running:
    """A target's process, until it ends by itself or is silent for too long."""

    def __init__(
        self,
        name: str,
        seed: int,
        seconds: float | None,
        inputs: int | None,
        folder: Path,
        *,
        sanitizers: bool = True,
    ) -> None:
        self.name, self._seed, self._folder = name, seed, folder
        folder.mkdir(parents=True, exist_ok=True)
        self._report = folder / f"{name}.sanitizer"
        for old in folder.glob(f"{self._report.name}.*"):
            old.unlink()
        self._last_path, self._errors = folder / f"{name}.last", folder / f"{name}.stderr"
        self._last_path.unlink(missing_ok=True)
        self._last = LastInput(self._last_path)
        words = ["--target", name, "--seed", str(seed), "--folder", str(folder)]
        words += ["--seconds", str(seconds)] if seconds is not None else []
        words += ["--inputs", str(inputs)] if inputs is not None else []
        given = environment(name, self._report, sanitizers=sanitizers)
        self._sanitized = "P4SWITCH_CFLAGS" in given and "P4SWITCH_CFLAGS" not in os.environ
        with self._errors.open("wb") as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.fuzz", "--child", *words],
                env=given,
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )
        self._number, self._moved_s = -1, time.monotonic()

    @property
    def inputs(self) -> int:
        """The number of the input under way."""
        return self._last.number()

    def kill(self) -> None:
        """End it now."""
        self._process.kill()
        self._process.wait()

    def outcome(self) -> Outcome | None:
        """What became of it; None: it is still at work."""
        silent = ""
        if self._process.poll() is None:
            number = self._last.number()
            if number != self._number:
                self._number, self._moved_s = number, time.monotonic()
            if time.monotonic() - self._moved_s < SILENT_S_MAX:
                return None
            self._process.kill()
            silent = f"HungError: an input took more than {SILENT_S_MAX} s"
        said, _ = self._process.communicate()
        try:
            told = json.loads(said.splitlines()[-1])
        except (IndexError, ValueError):
            return self._died(silent)
        self._last_path.unlink(missing_ok=True)
        files = told.pop("files")
        return Outcome(self.name, Figures(self.name, **told), files, self._sanitized)

    def _died(self, silent: str) -> Outcome:
        number, case = self._last.read()
        reports = "\n".join(path.read_text(errors="replace") for path in self._folder.glob(f"{self._report.name}.*"))
        errors = self._errors.read_text(errors="replace")[-4000:]
        error = f"{errors}\n{reports}\n{silent or f'the process ended with status {self._process.returncode}'}"
        crash = Crash(self.name, self._seed, number, error, case)
        return Outcome(self.name, Figures(self.name, "", number + 1), [str(crash.save(self._folder))], self._sanitized)
