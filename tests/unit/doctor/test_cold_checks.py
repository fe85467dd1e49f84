"""What doctor says of a cold store: tried with a real file system, one in the way, and a server that never answers."""

from __future__ import annotations

from pathlib import Path

import pytest

from hostagent.cold.cold_options import ColdConfig
from kvcast.doctor.agent_checks import cold_store
from kvcast.doctor.findings import Level
from tests.unit.hostagent.cold_harness import silent_server
from tests.unit.hostagent.s3_server import Refusals, s3_config, s3_server

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


PERMISSIONS = "S3 must allow s3:GetObject, s3:PutObject, s3:DeleteObject on the objects, s3:ListBucket on the bucket"
DENIED = (403, "AccessDenied", "Access Denied")
SKEWED = (403, "RequestTimeTooSkewed", "the difference is too large")


@pytest.mark.parametrize(
    ("refusals", "lists", "level", "said"),
    [
        (dict.fromkeys(("HEAD", "GET", "PUT", "DELETE"), DENIED), True, Level.SLOW, "AccessDenied"),
        (dict.fromkeys(("HEAD", "GET", "PUT", "DELETE"), SKEWED), True, Level.SLOW, "RequestTimeTooSkewed"),
        ({"PUT": DENIED}, True, Level.SLOW, "s3 takes nothing: PermissionDenied"),
        ({"DELETE": DENIED}, True, Level.NOTE, "it deletes nothing: PermissionDenied"),
        ({}, False, Level.SLOW, "no s3:ListBucket"),
        ({}, True, Level.OK, "s3: put"),
    ],
)
def test_s3_says_why_and_the_remedy_names_the_permissions(
    refusals: Refusals, lists: bool, level: Level, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KVCAST_TEST_S3_SECRET", "correct-horse-battery")
    with s3_server(refusals, lists=lists) as port:
        finding = cold_store(s3_config(port))
    assert (finding.level, said in finding.found) == (level, True), finding.found
    assert (PERMISSIONS in finding.remedy) == (level is not Level.OK)
