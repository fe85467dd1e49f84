"""A real engine with one worker and one with two tensor-parallel workers, on two nodes: each loads what the other one
computed, and says what an engine without kvcast says."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bmv2_testbed.client import Testbed
from tests.vllm.vllm_suite import (
    CHUNK_TOKENS,
    StartEngine,
    Truth,
    assert_nothing_left,
    assert_same,
    await_names,
    one,
    processors,
    random_tokens,
    run_until_idle,
)

CHUNKS = 4
TWO: dict[str, Any] = {"tensor_parallel_size": 2}


def test_one_worker_and_two_share(
    start: StartEngine, models: Callable[..., Path], agent_sockets: list[str], truth: Truth
) -> None:
    """Only the smaller one is told: of how many workers the larger one is."""
    alone = start(models(), agent_sockets[0], enable_prefix_caching=False, settings={"kv_head_groups": 2})
    split = start(models(), agent_sockets[1], enable_prefix_caching=False, environment=processors(TWO), **TWO)
    for engine in (alone, split):
        await_names(engine)
    for seed, (computing, loading) in enumerate(((alone, split), (split, alone))):
        prompt = random_tokens(random.Random(f"sizes {seed}"), CHUNKS * CHUNK_TOKENS + 17)
        assert_same([one(computing, prompt).tokens], truth([prompt]))
        known = computing.where(prompt)
        assert len(known) == 2 * CHUNKS, "a key for each group of heads"
        assert [key for key, _ in loading.where(prompt)] == [key for key, _ in known]
        loading.await_known(prompt)
        loaded = one(loading, prompt)
        assert loaded.cached_tokens == CHUNKS * CHUNK_TOKENS
        assert_same([loaded.tokens], truth([prompt]))
    for engine in (alone, split):
        run_until_idle(engine)


def test_who_says_nothing_shares_with_equal_engines_only(
    start: StartEngine, models: Callable[..., Path], agent_sockets: list[str]
) -> None:
    prompt = random_tokens(random.Random("unsaid"), CHUNKS * CHUNK_TOKENS + 17)
    engine = start(models(), agent_sockets[0], enable_prefix_caching=False, settings={"kv_head_groups": 2})
    other = start(models(), agent_sockets[0], enable_prefix_caching=False)
    for each in (engine, other):
        await_names(each)
        one(each, prompt)
    assert not {key for key, _ in engine.where(prompt)} & {key for key, _ in other.where(prompt)}
    assert one(other, prompt).cached_tokens == CHUNKS * CHUNK_TOKENS


def test_nothing_is_left_behind(testbed: Testbed) -> None:
    assert_nothing_left(testbed)
