"""Real engines and their storage tiers on the pool, each in the environment that tools/setup_*.sh makes for it.

`make test-engines` makes the environments and runs everything here. Elsewhere what needs an engine is skipped.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
import tempfile
import warnings
from pathlib import Path

import pytest

HERE = Path(__file__).parent
NEEDS = {
    "sglang": ("sglang",),
    "lmcache": ("lmcache",),
    "ucm": ("ucm",),
    "dynamo": ("dynamo",),
    "chain": ("vllm", "lmcache"),
}
"""Which engines a test module needs, by the first word of its name behind `test_`."""
WARN_AT_IMPORT = (
    "torch",
    "transformers",
    "sglang",
    "lmcache",
    "vllm",
    "pydantic",
    "triton",
    "numba",
    "google",
    "fastapi",
)
"""What these say of themselves is no failure of ours."""

IMPORTED = {
    "sglang": ("sitecustomize", "sglang.srt.mem_cache.pool_host.mha", "sglang.srt.mem_cache.storage"),
    "lmcache": ("lmcache.v1.distributed.l2_adapters.factory", "kvclient.engines.lmcache.second_level"),
    "ucm": ("ucm.store.factory_v1", "ucm.store.pipeline.connector"),
}
"""What the tests import of each engine, here, where warnings are no errors."""

os.environ.setdefault("UCM_LOG_PATH", str(Path(tempfile.gettempdir()) / "kvcast-ucm-logs"))

for engine, modules in IMPORTED.items():
    if importlib.util.find_spec(engine) is None:
        continue
    if (HERE / "standins" / engine).is_dir():
        sys.path.insert(0, str(HERE / "standins" / engine))
        sys.modules.pop("sitecustomize", None)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for module in modules:
            importlib.import_module(module)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark, and skip what has no engine here."""
    marks = [pytest.mark.filterwarnings(f"default:::{name}.*") for name in WARN_AT_IMPORT]
    for item in items:
        if HERE not in item.path.parents:
            continue
        item.add_marker(pytest.mark.engines)
        for mark in marks:
            item.add_marker(mark)
        for engine in NEEDS[item.path.stem.split("_")[1]]:
            if importlib.util.find_spec(engine) is None:
                item.add_marker(pytest.mark.skip(reason=f"no {engine} in this environment: make test-engines has one"))
