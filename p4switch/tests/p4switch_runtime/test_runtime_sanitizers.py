"""Tests of runtime, generated programs and server once more, compiled for address, undefined-behaviour and thread
sanitizers, optimised as shipped. The sanitizer's library is preloaded, for the interpreter does not have it."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

_HERE = Path(__file__).parent
_SECONDS_MAX = 1200
_BETWEEN_REPORTS = "=================="
"""Of the thread sanitizer, which also complains about gRPC's own library: that one is not compiled for it."""
_ADDRESS = ("-fsanitize=address,undefined -fno-sanitize-recover=all -g", ("libasan.so", "libubsan.so"))
_THREAD = ("-fsanitize=thread -g", ("libtsan.so",))
_PARTS = {
    "address: runtime": (*_ADDRESS, ("p4switch_runtime/test_runtime_[!s]*.py", "p4switch_runtime/test_runtime_st*.py")),
    "address: generated": (
        *_ADDRESS,
        tuple(f"p4switch_compiler/test_{name}.py" for name in ("behaviour", "queues", "random_programs", "stf")),
    ),
    "address: tna": (*_ADDRESS, ("p4switch_tna/test_tna_[eqrt]*.py",)),
    "address: server": (
        *_ADDRESS,
        ("p4switch_server/test_matching_on_switch.py", "p4switch_server/test_finsy_on_switch.py"),
    ),
    "thread: runtime": (*_THREAD, ("p4switch_runtime/test_runtime_[ad]*.py",)),
    "thread: server": (*_THREAD, ("p4switch_server/test_finsy_on_switch.py",)),
}


def library(name: str) -> str | None:
    compiler = os.environ.get("CC", "cc")
    try:
        found = subprocess.run([compiler, f"-print-file-name={name}"], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    path = found.stdout.strip()
    return path if os.path.isabs(path) else None


@pytest.mark.long
@pytest.mark.parametrize("part", _PARTS)
def test_no_sanitizer_complains(part: str, tmp_path: Path) -> None:
    flags, names, patterns = _PARTS[part]
    libraries = [library(name) for name in names]
    if None in libraries:
        pytest.skip(f"the C compiler has no {' or '.join(names)}")
    report = tmp_path / "report"
    environment = {
        **os.environ,
        "P4SWITCH_CFLAGS": flags,
        "GLIBC_TUNABLES": "glibc.rtld.optional_static_tls=65536",  # each program loaded under TSan takes some
        "LD_PRELOAD": " ".join(path for path in libraries if path is not None),
        "ASAN_OPTIONS": f"detect_leaks=0:abort_on_error=1:log_path={report}",
        "UBSAN_OPTIONS": f"print_stacktrace=1:log_path={report}",
        "TSAN_OPTIONS": f"exitcode=0:die_after_fork=0:report_signal_unsafe=0:log_path={report}",
    }
    tests = sorted(str(path) for pattern in patterns for path in _HERE.parent.glob(pattern))
    assert tests
    without_layout_noise = ["setarch", platform.machine(), "-R"] if part.startswith("thread") else []
    command = [
        *without_layout_noise,
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-x",
        "-s",
        "-p",
        "no:cacheprovider",
        "-m",
        "not long",
        *tests,
    ]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=_SECONDS_MAX, check=False)
    blocks = [block for path in tmp_path.glob("report*") for block in path.read_text().split(_BETWEEN_REPORTS)]
    reports = [block for block in blocks if block.strip() and (part.startswith("address") or "/p4switch" in block)]
    assert not reports, "\n".join(reports)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
