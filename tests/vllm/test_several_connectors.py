"""kvcast beside vLLM's other connectors, in a MultiConnector, with statistics on; and by its name alone."""

from __future__ import annotations

import importlib.util
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bmv2_testbed.engines.engine_client import Engine
from tests.vllm.vllm_suite import (
    CHUNK_TOKENS,
    PATIENT,
    StartEngine,
    Truth,
    assert_same,
    one,
    random_tokens,
    run_until_idle,
)

PROMPT_TOKENS = 5 * CHUNK_TOKENS + 7
NIXL = pytest.param(
    "nixl",
    marks=pytest.mark.skipif(
        importlib.util.find_spec("nixl") is None, reason="no NIXL here: tools/setup_vllm.sh installs it"
    ),
)


def child(name: str, agent_socket: str, folder: Path) -> dict[str, Any]:
    """Configuration of one connector of several."""
    match name:
        case "kvcast":
            settings = {"socket": agent_socket, "chunk_tokens": CHUNK_TOKENS, **PATIENT}
            return {"kv_connector": "KvcastConnector", "kv_role": "kv_both", "kv_connector_extra_config": settings}
        case "example":
            settings = {"shared_storage_path": str(folder)}
            return {"kv_connector": "ExampleConnector", "kv_role": "kv_both", "kv_connector_extra_config": settings}
        case _:
            return {"kv_connector": "NixlConnector", "kv_role": "kv_both", "kv_buffer_device": "cpu"}


def several(start: StartEngine, model: Path, children: list[dict[str, Any]]) -> Engine:
    """An engine with these connectors."""
    transfer = {
        "kv_connector": "MultiConnector",
        "kv_role": "kv_both",
        "kv_load_failure_policy": "recompute",
        "kv_connector_extra_config": {"connectors": children},
    }
    return start(model, None, enable_prefix_caching=False, kv_transfer_config=transfer)


@pytest.mark.parametrize("beside", [None, "example", NIXL])
@pytest.mark.parametrize("kvcast_first", [True, False], ids=["first", "last"])
def test_kvcast_beside_another_connector(
    truth: Truth,
    first: Engine,
    start: StartEngine,
    models: Callable[..., Path],
    agent_sockets: list[str],
    tmp_path: Path,
    beside: str | None,
    kvcast_first: bool,
) -> None:
    if beside is None and not kvcast_first:
        pytest.skip("one connector has no order")
    names = ["kvcast"] if beside is None else ["kvcast", beside] if kvcast_first else [beside, "kvcast"]
    engine = several(start, models(), [child(name, agent_sockets[0], tmp_path) for name in names])
    prompt = random_tokens(random.Random(f"{beside}{kvcast_first}"), PROMPT_TOKENS)
    expected = truth([prompt])
    assert_same([one(first, prompt).tokens], expected)
    again = one(engine, prompt)
    assert_same([again.tokens], expected)
    assert again.cached_tokens == 5 * CHUNK_TOKENS
    assert engine.metrics()["hits"]["local"] == 5
    run_until_idle(engine)


def test_the_first_request_finds_what_there_is(
    truth: Truth, first: Engine, start: StartEngine, models: Callable[..., Path], agent_sockets: list[str]
) -> None:
    """It comes before any worker has said what its cache is."""
    prompt = random_tokens(random.Random(77), PROMPT_TOKENS)
    assert_same([one(first, prompt).tokens], truth([prompt]))
    fresh = start(models(), agent_sockets[0], enable_prefix_caching=False)
    assert one(fresh, prompt).cached_tokens == 5 * CHUNK_TOKENS


def test_by_name_alone(
    first: Engine, start: StartEngine, models: Callable[..., Path], agent_sockets: list[str]
) -> None:
    prompt = random_tokens(random.Random(78), PROMPT_TOKENS)
    one(first, prompt)
    named = start(models(), agent_sockets[0], enable_prefix_caching=False, connector={"kv_connector_module_path": None})
    assert one(named, prompt).cached_tokens == 5 * CHUNK_TOKENS
