"""Models with recurrent layers: the pool has their states at ends of chunks, and prefixes are loaded up to one.

In bfloat16, all that these layers take on CPUs: an engine's tokens may depend on where its steps end. So prompts are
compared with what the same engine says when it computes them, whose steps end where states are, and which then reads
them back as from a prefix cache.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bmv2_testbed.engines.engine_client import Engine
from bmv2_testbed.errors import TestbedError
from tests.vllm.vllm_suite import CHUNK_TOKENS, StartEngine, await_names, one, random_tokens, run_until_idle

RECURRENT: dict[str, Any] = {"dtype": "bfloat16", "enable_prefix_caching": True, "mamba_cache_mode": "align"}
NO_LOAD = {"kvcast.no_load": True}
STEP_TOKENS = 4 * CHUNK_TOKENS


@pytest.fixture(scope="module")
def first(start_shared: StartEngine, models: Callable[..., Path], agent_sockets: list[str]) -> Engine:
    """Its steps end at every fourth chunk, and at the last one of a prompt."""
    engine = start_shared(models("qwen3next"), agent_sockets[0], max_num_batched_tokens=STEP_TOKENS, **RECURRENT)
    await_names(engine)
    return engine


@pytest.fixture(scope="module")
def second(start_shared: StartEngine, models: Callable[..., Path], agent_sockets: list[str]) -> Engine:
    """On another node; computes a prompt in one step up to its last chunk."""
    engine = start_shared(models("qwen3next"), agent_sockets[1], **RECURRENT)
    await_names(engine)
    return engine


def last_chunk(prompt: list[int]) -> int:
    """Where the last chunk ends that does not hold the last token."""
    return (len(prompt) - 1) // CHUNK_TOKENS * CHUNK_TOKENS


def forget(engine: Engine) -> None:
    assert engine.ask("reset")


@pytest.mark.parametrize("length", [CHUNK_TOKENS + 1, 2 * CHUNK_TOKENS, 333, 600, 1000])
def test_loaded_as_computed(first: Engine, second: Engine, length: int) -> None:
    """By the engine that computed it, and on another node."""
    assert first.ask("groups") == 4
    prompt = random_tokens(random.Random(length), length)
    computed = one(first, prompt, kv_transfer_params=NO_LOAD)
    assert computed.cached_tokens == 0
    own = one(first, prompt, kv_transfer_params=NO_LOAD)
    assert own.cached_tokens == last_chunk(prompt), "vLLM's own cache"
    forget(first)
    second.await_known(prompt)
    for engine in (first, second):
        loaded = one(engine, prompt)
        assert loaded.cached_tokens == last_chunk(prompt)
        assert loaded.tokens == own.tokens == computed.tokens
        forget(engine)
        run_until_idle(engine)
    print(second.metrics()["hits"], first.metrics()["hits"])
