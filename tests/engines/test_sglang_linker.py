"""docs/explanation/sglang-linker-answers.patch on SGLang's real source, in a real engine: "not yet" and "miss"."""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("sglang")

import sglang

from bmv2_testbed.engines.small_models import make_model
from tests.engines.sglang_client import PAGE_TOKENS, Engine, engine_arguments

PATCH = Path(__file__).parents[2] / "docs/explanation/sglang-linker-answers.patch"
NOT_YET = 3
PAGES = 20


@pytest.fixture(scope="module")
def patched(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with this SGLang, patched: links to its files, and copies of those that the patch changes."""
    folder = tmp_path_factory.mktemp("patched")
    installed = Path(sglang.__file__).parent
    shutil.copytree(
        installed, folder / "sglang", copy_function=os.symlink, ignore=shutil.ignore_patterns("__pycache__")
    )
    for line in PATCH.read_text().splitlines():
        if line.startswith("+++ b/"):
            changed = folder / line.removeprefix("+++ b/")
            original = changed.resolve()
            changed.unlink()
            shutil.copy(original, changed)
    subprocess.run(["patch", "--strip=1", "--fuzz=0", f"--input={PATCH}"], cwd=folder, check=True, capture_output=True)
    return folder


@pytest.fixture(scope="module")
def refusing(patched: Path) -> Path:
    return patched / "refusing"


@pytest.fixture(scope="module")
def log(patched: Path) -> Path:
    return patched / "answers"


@pytest.fixture(scope="module")
def engine(patched: Path, refusing: Path, log: Path) -> Iterator[Engine]:
    linker = {
        "linker": "DictLinker",
        "linker_module_path": "tests.engines.sglang_linker",
        "linker_extra_config": {"log": str(log), "refusing": str(refusing), "not_yet": NOT_YET},
    }
    arguments = engine_arguments(make_model(patched / "model"), None) | {
        "enable_unified_cache_external_linker": True,
        "unified_cache_external_linker_backend": "dynamic",
        "unified_cache_external_linker_config": linker,
    }
    with pytest.MonkeyPatch.context() as around:
        around.setenv("PYTHONPATH", str(patched), prepend=os.pathsep)
        made = Engine(arguments, patched / "engine.log")
    try:
        yield made.await_up()
    finally:
        made.close()


def answers(log: Path) -> list[object]:
    """Of the last request."""
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    return [line["answer"] for line in lines if line["rid"] == lines[-1]["rid"]]


def test_a_request_waits_for_its_look_up_and_a_load_that_is_refused_is_computed(
    engine: Engine, refusing: Path, log: Path
) -> None:
    chance = random.Random(7)
    prompt = [chance.randrange(3, 4000) for _ in range(PAGES * PAGE_TOKENS + 5)]
    computed = engine.generate(prompt)
    assert answers(log)[: NOT_YET + 1] == ["not yet"] * NOT_YET + [0]

    engine.flush()
    loaded = engine.generate(prompt)
    assert loaded.ids == computed.ids
    assert answers(log)[: NOT_YET + 1] == ["not yet"] * NOT_YET + [PAGES]
    assert loaded.cached == PAGES * PAGE_TOKENS

    engine.flush()
    refusing.touch()
    missed = engine.generate(prompt)
    assert missed.ids == computed.ids
    assert "miss" in answers(log)
    assert missed.cached == 0
