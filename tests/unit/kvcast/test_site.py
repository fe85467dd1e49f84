"""The site of the documentation: it builds with every warning an error, and it needs no other host."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
LOADED = re.compile(r"""(?:<script[^>]*\ssrc|<link[^>]*rel="stylesheet"[^>]*\shref|<img[^>]*\ssrc)="(https?:[^"]*)""")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if find_spec("mkdocs") is None:
        pytest.skip("mkdocs is not installed: pip install -e '.[docs]'")
    folder = tmp_path_factory.mktemp("site")
    argv = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    built = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stdout + built.stderr
    return folder


def test_every_page_is_built(site: Path) -> None:
    pages = [page.relative_to(ROOT / "docs").with_suffix(".html") for page in ROOT.glob("docs/**/*.md")]
    assert [page for page in pages if not (site / page).exists()] == []


def test_pages_load_nothing_from_other_hosts(site: Path) -> None:
    loaded = {address for page in site.glob("**/*.html") for address in LOADED.findall(page.read_text())}
    assert loaded == set()
