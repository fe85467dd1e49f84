"""Two engines share a pool: the same tokens as without it.

The first, on the first node, has no prefix cache of its own; the second has one and computes prompts in pieces.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest
from vllm_suite import PROMPTS, StartEngine, Truth, random_tokens, run_batches, settled, tokens_of

from bmv2_testbed.client import Testbed
from bmv2_testbed.engines.client import Engine


def delivered_bytes(testbed: Testbed, host: int) -> int:
    """Bytes that an agent received by reliable reads and in casts for what engines wanted."""
    total = 0.0
    for line in testbed.agent_metrics(host).splitlines():
        if line.startswith("kvcast_agent_pool_bytes") and 'state="ready"' in line:
            total += float(line.rpartition(" ")[2])
    return int(total)


@pytest.fixture(scope="module")
def first(start: StartEngine, models: Callable[..., Path], agent_sockets: list[str]) -> Engine:
    return start(models(), agent_sockets[0], enable_prefix_caching=False)


@pytest.fixture(scope="module")
def second(start: StartEngine, models: Callable[..., Path], agent_sockets: list[str]) -> Engine:
    return start(models(), agent_sockets[1], enable_prefix_caching=True, max_num_batched_tokens=512)


def test_two_hundred_prompts(truth: Truth, first: Engine) -> None:
    assert run_batches(first, PROMPTS) == truth(PROMPTS)
    metrics = first.metrics()
    assert metrics["hits"]["local"] > 100
    assert metrics["hit_tokens"][""] > 20_000
    settled(first)


def test_the_other_node_gets_them_over_the_network(truth: Truth, first: Engine, second: Engine) -> None:
    chosen = PROMPTS[:60]
    assert run_batches(second, chosen) == truth(chosen)
    metrics = second.metrics()
    assert metrics["hits"].get("holder", 0) + metrics["hits"].get("cast", 0) > 10
    settled(second)


def test_short_prompts_cost_nothing(truth: Truth, first: Engine) -> None:
    chance = random.Random(1)
    prompts = [random_tokens(chance, count) for count in (1, 2, 64, 127, 128)]
    before = first.metrics()["misses"].get("short", 0)
    assert tokens_of(first.generate(prompts)) == truth(prompts)
    assert first.metrics()["misses"]["short"] == before + len(prompts)


def test_one_fetch_for_several_requests(truth: Truth, first: Engine, second: Engine, testbed: Testbed) -> None:
    document = random_tokens(random.Random(2), 2000)
    assert tokens_of(first.generate([document])) == truth([document])
    settled(first)
    prompts = [document + random_tokens(random.Random(seed), 20) for seed in range(6)]
    before = delivered_bytes(testbed, 1)
    assert tokens_of(second.generate(prompts)) == truth(prompts)
    chunk_bytes = 128 * 4 * 2 * 4 * 32 * 4
    assert delivered_bytes(testbed, 1) - before == 2000 // 128 * chunk_bytes


def test_salts_do_not_share(first: Engine) -> None:
    prompt = random_tokens(random.Random(3), 600)
    for salt, cached in (("a", 0), ("a", 512), ("b", 0), (None, 0)):
        (result,) = first.generate([prompt], salt=salt)
        assert result is not None
        assert result.cached_tokens == cached, salt
        first.ask("settle")


def test_requests_may_decline(first: Engine) -> None:
    prompt = random_tokens(random.Random(4), 600)
    for parameters, cached in (
        ({"kvcast.no_save": True}, 0),
        ({}, 0),
        ({"kvcast.no_load": True}, 0),
        ({"kvcast.session_end": True}, 512),
    ):
        (result,) = first.generate([prompt], kv_transfer_params=parameters)
        assert result is not None
        assert result.cached_tokens == cached, parameters
        first.ask("settle")


def test_decoded_tokens_are_saved_too(truth: Truth, first: Engine) -> None:
    prompt = random_tokens(random.Random(5), 200)
    (turn,) = first.generate([prompt], max_tokens=80)
    assert turn is not None
    first.ask("settle")
    follow_up = [*prompt, *turn.tokens, 17]
    (result,) = first.generate([follow_up])
    assert result is not None
    assert result.cached_tokens == 256
    assert result.tokens == truth([follow_up])[0]


def test_abort_while_loading(truth: Truth, first: Engine) -> None:
    prompts = PROMPTS[:6]
    for steps in (1, 2, 3):
        results = first.generate(prompts, abort={1: steps, 4: steps})
        kept = [result.tokens for index, result in enumerate(results) if result is not None and index not in (1, 4)]
        assert kept == [tokens for index, tokens in enumerate(truth(prompts)) if index not in (1, 4)]
    settled(first)


def test_a_reset_forgets_the_pool(first: Engine) -> None:
    prompt = random_tokens(random.Random(6), 400)
    for cached, reset in ((0, False), (384, True), (0, False), (384, False)):
        (result,) = first.generate([prompt])
        assert result is not None
        assert result.cached_tokens == cached
        first.ask("settle")
        if reset:
            assert first.ask("reset", connector=True)


def test_nothing_is_left_behind(testbed: Testbed) -> None:
    """No pin, no lease, no chunk half filled, no interest, no internal error in agents and switch."""
    assert testbed.leftovers() == []
