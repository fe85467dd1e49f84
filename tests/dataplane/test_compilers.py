"""The program is P4_16 that p4c accepts, and both compilers say the same about it to a control plane."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.dataplane.targets import PROGRAM, REPOSITORY

needs_p4c = pytest.mark.skipif(shutil.which("p4c-bm2-ss") is None, reason="p4c-bm2-ss is not on PATH")


def p4c(directory: Path, *options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [
            *("p4c-bm2-ss", "--arch", "v1model", *options),
            *("-o", str(directory / "kvcast.json"), "--p4runtime-files", str(directory / "p4c.txtpb"), str(PROGRAM)),
        ],
        capture_output=True,
        text=True,
        check=False,
    )


@needs_p4c
@pytest.mark.bmv2
@pytest.mark.parametrize(
    "segment_bytes", [256, 768, 3840, *(pytest.param(size, marks=pytest.mark.long) for size in (512, 1024, 2048))]
)
def test_p4c_accepts_segment_sizes_without_a_warning(tmp_path: Path, segment_bytes: int) -> None:
    done = p4c(tmp_path, f"-DSEGMENT_BYTES={segment_bytes}")
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


@needs_p4c
@pytest.mark.bmv2
def test_impossible_segment_size_is_refused_with_a_reason(tmp_path: Path) -> None:
    done = p4c(tmp_path, "-DSEGMENT_BYTES=1000")
    assert done.returncode != 0
    assert "SEGMENT_BYTES must be a multiple of 256, 4096 at most" in done.stderr


@needs_p4c
@pytest.mark.bmv2
def test_both_compilers_give_the_same_p4info(tmp_path: Path) -> None:
    from finsy.proto import p4i
    from google.protobuf import text_format

    done = p4c(tmp_path)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")
    subprocess.run(
        [sys.executable, "-m", "p4switch", str(PROGRAM), "--p4info", str(tmp_path / "p4switch.txtpb")],
        cwd=REPOSITORY,
        check=True,
    )
    theirs, ours = (
        text_format.Parse((tmp_path / f"{compiler}.txtpb").read_text(), p4i.P4Info())
        for compiler in ("p4c", "p4switch")
    )
    for kind in ("tables", "actions", "counters", "direct_counters", "registers", "digests"):
        assert preambles(ours, kind) == preambles(theirs, kind)
    assert ours == theirs


def preambles(p4info: object, kind: str) -> dict[int, str]:
    return {entry.preamble.id: entry.preamble.alias for entry in getattr(p4info, kind)}
