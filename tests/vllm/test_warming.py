"""An engine that starts finds the hottest prefixes of its model on its own node, before it has seen a request.

Run by itself: what is hot follows from all that was fetched on the testbed.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

from bmv2_testbed.client import Testbed
from bmv2_testbed.engines.engine_client import Engine
from kvclient.client import AgentClient, Where
from tests.vllm.vllm_suite import (
    CHUNK_BYTES,
    CHUNK_TOKENS,
    StartEngine,
    Truth,
    assert_nothing_left,
    assert_same,
    one,
    random_tokens,
    run_until_idle,
    until,
)

HOT_CHUNKS = 12


def test_a_replica_is_warm_from_the_start(
    truth: Truth,
    first: Engine,
    start: StartEngine,
    models: Callable[..., Path],
    agent_sockets: list[str],
    testbed: Testbed,
) -> None:
    hot, cold = (random_tokens(random.Random(seed), HOT_CHUNKS * CHUNK_TOKENS + 5) for seed in (130, 131))
    one(first, cold)
    for _ in range(4):
        one(first, hot)
    hot_keys, cold_keys = ([key for key, _ in first.where(prompt)] for prompt in (hot, cold))
    with AgentClient(agent_sockets[2]) as agent:
        assert Where.LOCAL not in agent.contains(hot_keys + cold_keys)
        replica = start(
            models(),
            agent_sockets[2],
            enable_prefix_caching=False,
            settings={"warm_bytes": HOT_CHUNKS * CHUNK_BYTES, "warm_nodes": 1},
        )
        until(lambda: set(agent.contains(hot_keys)) == {Where.LOCAL}, "the replica's node has the hot prefix")
        assert Where.LOCAL not in agent.contains(cold_keys), "no more than it asked for"
    said = one(replica, hot)
    assert said.cached_tokens == HOT_CHUNKS * CHUNK_TOKENS
    assert_same([said.tokens], truth([hot]))
    assert replica.metrics()["hits"] == {"local": HOT_CHUNKS}


def test_nothing_is_left_behind(first: Engine, testbed: Testbed) -> None:
    run_until_idle(first)
    assert_nothing_left(testbed)
