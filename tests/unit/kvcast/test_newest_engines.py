"""tools/engine_versions.py against an index of its own: which versions it takes, and what it says that they lack."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
DISTRIBUTION = "ai-dynamo-runtime"
WHOLE = """
class KvEventPublisher:
    def publish_stored(self, token_ids, num_block_tokens, block_hashes, parent_hash=None, lora_name=None): ...
    def publish_removed(self, block_hashes): ...
"""


def publish(index: Path, version: str, text: str) -> None:
    """A wheel on an index (PEP 503)."""
    folder = index / DISTRIBUTION
    folder.mkdir(parents=True, exist_ok=True)
    name = DISTRIBUTION.replace("-", "_")
    info = f"{name}-{version}.dist-info"
    with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as wheel:
        wheel.writestr("dynamo/_core.pyi", text)
        wheel.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {DISTRIBUTION}\nVersion: {version}\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")
    links = "".join(f'<a href="{file.name}">{file.name}</a>' for file in sorted(folder.glob("*.whl")))
    (folder / "index.html").write_text(f"<!DOCTYPE html><html><body>{links}</body></html>")


def look(index: Path) -> subprocess.CompletedProcess[str]:
    """What the tool says of Dynamo on this index."""
    return subprocess.run(
        [sys.executable, str(ROOT / "tools/engine_versions.py"), "--engine", "dynamo", "--page", "-"],
        env=os.environ | {"PIP_INDEX_URL": index.as_uri(), "PIP_CONFIG_FILE": os.devnull},
        capture_output=True,
        text=True,
        check=False,
    )


def rows(page: str) -> list[tuple[str, ...]]:
    """Version, kind and what is lacking."""
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in page.splitlines() if "`" in line]
    return [tuple(row[2:]) for row in cells if len(row) == 5]


def test_the_newest_release_and_a_pre_release_beyond_it_are_read(tmp_path: Path) -> None:
    for version in ("1.9.0", "1.10.0.dev3", "1.10.0", "1.11.0rc1", "1.11.0rc2"):
        publish(tmp_path, version, WHOLE)
    said = look(tmp_path)
    assert said.returncode == 0, said.stderr
    assert rows(said.stdout) == [("1.10.0", "release", "all there"), ("1.11.0rc2", "pre-release", "all there")]


def test_what_a_pre_release_lacks_is_said_and_no_failure(tmp_path: Path) -> None:
    publish(tmp_path, "2.0", WHOLE)
    publish(tmp_path, "2.1.dev1", WHOLE.replace("publish_removed", "publish_gone"))
    said = look(tmp_path)
    assert said.returncode == 0, said.stderr
    lacks = "node_news.py uses KvEventPublisher.publish_removed: it is not there"
    assert rows(said.stdout)[1] == ("2.1.dev1", "pre-release", lacks)
    assert lacks in said.stderr


def test_a_release_that_lacks_something_fails(tmp_path: Path) -> None:
    publish(tmp_path, "2.0", WHOLE.replace("parent_hash", "parent"))
    said = look(tmp_path)
    assert said.returncode == 1
    assert rows(said.stdout) == [
        ("2.0", "release", "node_news.py: KvEventPublisher.publish_stored does not take parent_hash")
    ]


def test_an_index_without_the_engine_is_named(tmp_path: Path) -> None:
    said = look(tmp_path)
    assert said.returncode == 2
    assert DISTRIBUTION in said.stderr
    assert not said.stdout


@pytest.mark.parametrize("place", ["nothing", "empty"])
def test_a_place_without_the_engine_is_named(tmp_path: Path, place: str) -> None:
    (tmp_path / "empty").mkdir()
    said = subprocess.run(
        [sys.executable, str(ROOT / "tools/engine_interfaces.py"), "sglang", str(tmp_path / place)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert said.returncode == 2
    assert str(tmp_path / place) in said.stderr
