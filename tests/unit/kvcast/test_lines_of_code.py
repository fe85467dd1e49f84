"""How much code there is: the counter, and the limit of the whole product."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tools import count_lines


@pytest.mark.parametrize(
    ("name", "counts"),
    [
        ("hostagent/agent.py", True),
        ("p4/include/headers.p4", True),
        ("hostagent/native/cast.c", True),
        ("kvproto/src/kvproto/rpc/control_pb2.py", False),
        ("kvproto/src/kvproto/rpc/control_pb2_grpc.py", False),
        ("tests/conftest.py", False),
        ("p4switch/tests/conftest.py", False),
        ("docs/index.md", False),
    ],
)
def test_code_counts_but_tests_and_generated_files_do_not(name: str, counts: bool) -> None:
    assert count_lines.is_counted(name) == counts


def test_a_checkout_is_counted_by_distribution(tmp_path: Path) -> None:
    for name, text in {"client/a.py": "1\n2\n", "kvlab/b.py": "1\n", "tools/c.py": "1", "tests/d.py": "1\n"}.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    subprocess.run(["git", "add", "-A"], cwd=tmp_path, check=True)
    (tmp_path / "kvlab/unknown.py").write_text("git does not know this file\n")
    assert count_lines.of_checkout(tmp_path) == {"kvcast-client": 2, "kvcast-lab": 1, "in no wheel": 1}


@pytest.mark.parametrize(("limit", "status"), [(3, 0), (2, 1)])
def test_a_wheel_above_its_limit_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], limit: int, status: int
) -> None:
    with zipfile.ZipFile(tmp_path / "kvcast-0.1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr("kvcast/cli.py", "1\n2\n3\n")
        wheel.writestr("kvcast-0.1.0.dist-info/METADATA", "Name: kvcast\n")
    monkeypatch.setattr(count_lines, "WHEEL_LINES_MAX", {"kvcast": limit})
    monkeypatch.setattr(sys, "argv", ["count_lines.py", "--wheels", str(tmp_path)])
    assert count_lines.main() == status
    printed = capsys.readouterr()
    assert printed.out == "        3  kvcast\n        3  in all\n"
    assert ("kvcast has 3 lines" in printed.err) == bool(status)


def test_the_product_is_within_its_limit() -> None:
    assert sum(count_lines.of_checkout(count_lines.ROOT).values()) <= count_lines.PRODUCT_LINES_MAX
