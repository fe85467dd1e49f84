"""The data path's tests once more, with the C compiled for sanitizers, whose libraries are preloaded."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

from tests.sanitized import KINDS, environment

_HERE = Path(__file__).parent
_SECONDS_MAX = 600
_TESTS = (
    str(_HERE / "test_native_sending.py"),
    str(_HERE / "test_native_receiving.py"),
    str(_HERE / "test_native_reads.py"),
    str(_HERE / "test_native_pieces.py"),
    str(_HERE / "test_native_verbs.py"),
    str(_HERE / "test_peer_reads.py"),
    str(_HERE / "test_native_lone_gets.py"),
    str(_HERE / "test_read_client.py"),
    str(_HERE.parents[1] / "contracts" / "transport"),
    str(_HERE.parents[1] / "contracts" / "codec_loops"),
)


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
def test_no_sanitizer_complains(kind: str, tmp_path: Path) -> None:
    sanitized = environment(kind)
    if sanitized is None:
        pytest.skip("the C compiler has no such sanitizer")
    report = tmp_path / "report"
    variables = {
        **os.environ,
        **sanitized,
        "ASAN_OPTIONS": f"detect_leaks=0:abort_on_error=1:log_path={report}",
        "UBSAN_OPTIONS": f"print_stacktrace=1:log_path={report}",
        "TSAN_OPTIONS": f"exitcode=0:die_after_fork=0:report_signal_unsafe=0:log_path={report}",
    }
    without_layout_noise = ["setarch", platform.machine(), "-R"] if kind == "thread" else []
    words = ["-m", "pytest", "-q", "-x", "-s", "-p", "no:cacheprovider", *_TESTS]
    done = subprocess.run(
        [*without_layout_noise, sys.executable, *words],
        env=variables,
        capture_output=True,
        text=True,
        timeout=_SECONDS_MAX,
        check=False,
    )
    reports = [path.read_text() for path in tmp_path.glob("report*")]
    assert not reports, "\n".join(reports)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
