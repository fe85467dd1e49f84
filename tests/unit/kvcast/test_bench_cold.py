"""`kvcast bench cold` in small: every way puts and gets, and each get is compared."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from bmv2_testbed.bench.cold import ColdPlan, run_cold
from bmv2_testbed.bench.mooncake_servers import mooncake_installed
from bmv2_testbed.errors import TestbedError

pytest.importorskip("opendal", reason="no opendal here: pip install 'kvcast[cold]'")


@pytest.mark.skipif(shutil.which("redis-server") is None, reason="no redis-server here: apt install redis-server")
def test_all_ways_are_measured(tmp_path: Path) -> None:
    pytest.importorskip("redis", reason="no redis-py here: pip install redis")
    figures = run_cold(ColdPlan(tmp_path, 4000, 9), lambda _: None, lambda _: None)
    assert [(one.service, one.way) for one in figures] == [
        ("fs", "kvcast"),
        ("fs", "opendal"),
        ("fs", "os"),
        ("redis", "kvcast"),
        ("redis", "opendal"),
        ("redis", "redis-py"),
        *([("mooncake", way) for way in ("kvcast", "client", "its client")] if mooncake_installed() else []),
    ]
    assert all(one.put_s > 0 and one.get_s > 0 for one in figures)


def test_a_folder_that_takes_nothing_is_named(tmp_path: Path) -> None:
    with pytest.raises(TestbedError, match="a chunk of a byte or more"):
        run_cold(ColdPlan(tmp_path, 0, 1), lambda _: None, lambda _: None)
