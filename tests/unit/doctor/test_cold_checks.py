"""What doctor says of a cold store: tried with a real file system, one in the way, and a server that never answers."""

from __future__ import annotations

from pathlib import Path

import pytest

from hostagent.cold.cold_options import ColdConfig
from kvcast.doctor.cold_checks import cold_store
from kvcast.doctor.findings import Level
from tests.unit.hostagent.cold_harness import silent_server

pytest.importorskip("opendal", reason="no opendal here: pip install 'kvcast[cold]'")


def test_a_store_that_works(tmp_path: Path) -> None:
    finding = cold_store(ColdConfig("fs", {"root": str(tmp_path)}))
    assert finding.level is Level.OK
    assert finding.found.startswith("fs: put ")
    assert not [path for path in tmp_path.rglob("*") if path.is_file()], "nothing is left"


def test_a_store_that_cannot_be_opened() -> None:
    finding = cold_store(ColdConfig("s3"))
    assert (finding.level, finding.found[:16]) == (Level.MISSING, "cold.options: s3")


def test_a_store_that_never_answers() -> None:
    with silent_server() as port:
        finding = cold_store(ColdConfig("redis", {"endpoint": f"tcp://127.0.0.1:{port}"}, timeout_s=0.2))
    assert (finding.level, finding.found) == (Level.SLOW, "redis: no answer within 0.2 s")


def test_a_store_that_takes_nothing(tmp_path: Path) -> None:
    (tmp_path / "kvcast").write_text("in the way")
    finding = cold_store(ColdConfig("fs", {"root": str(tmp_path)}))
    assert finding.level is Level.SLOW
