"""`make gpu-check` where there is no GPU: what can be shown is right, and what cannot is said."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.parametrize("interpreted", ["0", "1"])
def test_the_form_for_processors(interpreted: str, tmp_path: Path, pytestconfig: pytest.Config) -> None:
    """By torch's own operations, and by the kernel in Triton's interpreter."""
    place = tmp_path / "found.json"
    checks = [] if interpreted == "0" else ["--only", "cdf"]
    done = subprocess.run(
        [sys.executable, "-m", "tools.gpu_check", "--quick", "--json", str(place), *checks],
        env=os.environ | {"TRITON_INTERPRET": interpreted, "CUDA_VISIBLE_DEVICES": ""},
        cwd=pytestconfig.rootpath,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(place.read_text())
    rows = found["rows"]
    right = [row for row in rows if row["check"] == "c"]
    assert len(right) == 9, "every layout"
    assert {row["by"] for row in right} == {"torch" if interpreted == "0" else "one kernel"}
    assert [row["wrong"] for row in rows if row["check"] == "d"] == [0]
    assert [row["equal"] for row in rows if row["check"] == "f"] == [64, 64, 64]
    if interpreted == "0":
        assert [row["left_out"] for row in rows if row["check"] == "a"] == ["no GPU"]
        assert {row["check"] for row in rows} == set("abcdefg")
        assert all(row["break_even_gbit_s"] > 0 for row in rows if row["check"] == "e")
        assert [row["copies"] > 0 for row in rows if row["check"] == "g"] == [False, True, True]


def test_wrong_bytes_fail_it(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    from kvclient.engines.device import DeviceLayers
    from tools.gpu_check.__main__ import main

    gather = DeviceLayers.gather

    def spoilt(self, block_ids, chunk, after=None):  # type: ignore[no-untyped-def]
        gather(self, block_ids, chunk, after)
        chunk[5] ^= 1

    monkeypatch.setattr(DeviceLayers, "gather", spoilt)
    assert main(["--quick", "--only", "c"]) == 1
    assert "WRONG BYTES" in capsys.readouterr().out
