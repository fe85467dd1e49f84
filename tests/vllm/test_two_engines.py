"""Two engines share a pool: the same tokens as without it.

The first, on the first node, has no prefix cache of its own; the second has one and computes prompts in pieces.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

from bmv2_testbed.client import Testbed
from bmv2_testbed.engines.engine_client import Engine
from tests.vllm.vllm_suite import (
    CHUNK_BYTES,
    CHUNK_TOKENS,
    PROMPTS,
    StartEngine,
    Truth,
    assert_nothing_left,
    assert_same,
    one,
    random_tokens,
    run_batches,
    run_until_idle,
    tokens_of,
)


def pool_bytes(testbed: Testbed, host: int) -> int:
    """Bytes of whole chunks in an agent's pool."""
    total = 0.0
    for line in testbed.agent_metrics(host).splitlines():
        if line.startswith("kvcast_agent_pool_bytes") and 'state="ready"' in line:
            total += float(line.rpartition(" ")[2])
    return int(total)


def test_two_hundred_prompts(truth: Truth, first: Engine) -> None:
    assert_same(run_batches(first, PROMPTS), truth(PROMPTS))
    metrics = first.metrics()
    assert metrics["hits"]["local"] > 100
    assert metrics["hit_tokens"][""] > 10_000
    run_until_idle(first)


def test_the_other_node_gets_them_over_the_network(truth: Truth, first: Engine, second: Engine) -> None:
    run_batches(first, PROMPTS)
    for prompt in PROMPTS:
        second.await_known(prompt)
    assert_same(run_batches(second, PROMPTS), truth(PROMPTS))
    hits = second.metrics()["hits"]
    assert sum(count for source, count in hits.items() if source != "local") > 10
    run_until_idle(second)


def test_short_prompts_cost_nothing(truth: Truth, first: Engine) -> None:
    chance = random.Random(1)
    prompts = [random_tokens(chance, count) for count in (1, 2, CHUNK_TOKENS // 2, CHUNK_TOKENS - 1, CHUNK_TOKENS)]
    before = first.metrics().get("misses", {}).get("short", 0)
    assert_same(tokens_of(first.generate(prompts)), truth(prompts))
    assert first.metrics()["misses"]["short"] == before + len(prompts)


def test_one_fetch_for_several_requests(truth: Truth, first: Engine, second: Engine, testbed: Testbed) -> None:
    document = random_tokens(random.Random(2), 1000)
    assert_same([one(first, document).tokens], truth([document]))
    second.await_known(document)
    prompts = [document + random_tokens(random.Random(seed), 10) for seed in range(6)]
    before = pool_bytes(testbed, 1)
    assert_same(tokens_of(second.generate(prompts)), truth(prompts))
    run_until_idle(second)
    assert pool_bytes(testbed, 1) - before == 1000 // CHUNK_TOKENS * CHUNK_BYTES


def test_salts_do_not_share(first: Engine) -> None:
    prompt = random_tokens(random.Random(3), 300)
    for salt, cached in (("a", 0), ("a", 256), ("b", 0), (None, 0)):
        assert one(first, prompt, salt=salt).cached_tokens == cached, salt


def test_requests_may_decline(first: Engine) -> None:
    prompt = random_tokens(random.Random(4), 300)
    for parameters, cached in (
        ({"kvcast.no_save": True}, 0),
        ({}, 0),
        ({"kvcast.no_load": True}, 0),
        ({"kvcast.session_end": True}, 256),
    ):
        assert one(first, prompt, kv_transfer_params=parameters).cached_tokens == cached, parameters


def test_decoded_tokens_are_saved_too(truth: Truth, first: Engine) -> None:
    prompt = random_tokens(random.Random(5), 100)
    turn = one(first, prompt, max_tokens=40)
    follow_up = [*prompt, *turn.tokens, 17]
    result = one(first, follow_up)
    assert result.cached_tokens == 2 * CHUNK_TOKENS
    assert_same([result.tokens], truth([follow_up]))


def test_abort_while_loading(truth: Truth, first: Engine) -> None:
    prompts = PROMPTS[:6]
    expected = [tokens for index, tokens in enumerate(truth(prompts)) if index not in (1, 4)]
    for steps in (1, 2, 3):
        results = first.generate(prompts, abort={1: steps, 4: steps})
        kept = [result.tokens for index, result in enumerate(results) if result is not None and index not in (1, 4)]
        assert_same(kept, expected)
    run_until_idle(first)


def test_a_reset_empties_vllms_own_cache_also_while_saves_read_from_it(
    start: StartEngine, models: Callable[..., Path], agent_sockets: list[str], truth: Truth
) -> None:
    """And then all is loaded again: the weights are the same."""
    engine = start(models(), agent_sockets[0], enable_prefix_caching=True)
    prompts = [random_tokens(random.Random(f"reset {seed}"), 200) for seed in range(8)]
    for connector in (False, True, False):
        said = tokens_of(engine.generate(prompts))
        assert engine.ask("reset", connector=connector)
        assert_same(said, truth(prompts))
    for prompt in prompts:
        one(engine, prompt)
    assert engine.ask("reset")
    loaded = engine.generate(prompts)
    assert_same(tokens_of(loaded), truth(prompts))
    assert [result.cached_tokens for result in loaded if result is not None] == [192] * len(prompts)
    run_until_idle(engine)


def test_nothing_is_left_behind(testbed: Testbed) -> None:
    assert_nothing_left(testbed)
