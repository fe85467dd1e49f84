"""Models with recurrent layers: the pool has their states at ends of chunks, and prefixes are loaded up to one.

On CPUs, what vLLM says of such models depends on where its steps end and on what is computed beside them: the margin of
a token moves by 0.1, with LFM2 in float32 as well. So a prompt is compared with what an engine says that computes it
alone in steps with the same ends, or loads the same prefix from vLLM's own cache.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bmv2_testbed.client import Testbed
from bmv2_testbed.engines.engine_client import Engine
from bmv2_testbed.errors import TestbedError
from tests.vllm.vllm_suite import (
    CHUNK_TOKENS,
    StartEngine,
    assert_nothing_left,
    one,
    processors,
    random_tokens,
    run_until_idle,
    tokens_of,
)

RECURRENT: dict[str, Any] = {
    "dtype": "bfloat16",
    "enable_prefix_caching": True,
    "mamba_cache_mode": "align",
    # How many tokens' KV is as large as a state depends on the processor: vLLM takes blocks of 32 or 64.
    "block_size": CHUNK_TOKENS,
}
NO_LOAD = {"kvcast.no_load": True}
STEP_TOKENS = 4 * CHUNK_TOKENS
JUDGED_TOKENS, OTHERS_MAX = 8, 2
"""Of requests of a batch: how many tokens are compared, and how many requests may differ in them."""
CONVOLUTIONS: dict[str, Any] = {"enable_prefix_caching": True, "mamba_cache_mode": "align", "block_size": CHUNK_TOKENS}


@pytest.fixture(scope="module")
def first(start_shared: StartEngine, models: Callable[..., Path], agent_sockets: list[str]) -> Engine:
    """Its steps end at every fourth chunk, and it keeps the states there; as all, also those at the ends of prompts."""
    steps = {"max_num_batched_tokens": STEP_TOKENS, "prefix_cache_retention_interval": STEP_TOKENS}
    return start_shared(models("qwen3next"), agent_sockets[0], **steps, **RECURRENT)


@pytest.fixture(scope="module")
def second(start_shared: StartEngine, models: Callable[..., Path], agent_sockets: list[str]) -> Engine:
    """On another node; computes a prompt in one step up to its last chunk."""
    return start_shared(models("qwen3next"), agent_sockets[1], **RECURRENT)


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


def test_a_prefix_ends_where_a_state_is(first: Engine, second: Engine) -> None:
    """The pool has seven chunks of this prompt, but the states behind the fourth and the eighth only."""
    chance = random.Random(1)
    document = random_tokens(chance, 600)
    one(first, document)
    prompt = document[:500] + random_tokens(chance, 20)
    second.await_known(document)
    loaded = one(second, prompt)
    own = one(first, prompt, kv_transfer_params=NO_LOAD)
    assert (own.cached_tokens, loaded.cached_tokens) == (STEP_TOKENS, STEP_TOKENS)
    assert loaded.tokens == own.tokens
    for engine in (first, second):
        forget(engine)
        run_until_idle(engine)


def test_what_two_prompts_share_is_there_for_the_third(first: Engine, second: Engine) -> None:
    """The first computes it, the second ends a step where it ends, the third is loaded up to there."""
    chance = random.Random(2)
    document = random_tokens(chance, 400)
    prompts = [document + random_tokens(chance, 100) for _ in range(3)]
    shared = len(document) // CHUNK_TOKENS * CHUNK_TOKENS
    assert one(first, prompts[0]).cached_tokens == 0
    forget(first)
    second.await_known(prompts[0])
    assert one(second, prompts[1]).cached_tokens == STEP_TOKENS
    first.await_known(prompts[1])
    loaded = one(first, prompts[2])
    own = one(second, prompts[2], kv_transfer_params=NO_LOAD)
    assert (own.cached_tokens, loaded.cached_tokens) == (shared, shared)
    assert loaded.tokens == own.tokens
    for engine in (first, second):
        forget(engine)
        run_until_idle(engine)


def test_the_next_turn_of_a_conversation(first: Engine, second: Engine) -> None:
    """A state at the end of a chunk whose last tokens were decoded, not read, is shared as well."""
    chance = random.Random(3)
    prompt = random_tokens(chance, 200)
    answer = one(first, prompt, max_tokens=100)
    turn = prompt + list(answer.tokens) + random_tokens(chance, 10)
    second.await_known(prompt + list(answer.tokens[:-1]))
    loaded = one(second, turn)
    own = one(first, turn, kv_transfer_params=NO_LOAD)
    assert (own.cached_tokens, loaded.cached_tokens) == (STEP_TOKENS, STEP_TOKENS)
    assert loaded.tokens == own.tokens
    for engine in (first, second):
        forget(engine)
        run_until_idle(engine)


def test_short_convolutions_in_float32(
    start: StartEngine, models: Callable[..., Path], agent_sockets: list[str]
) -> None:
    """Another kind of state, and the tokens of an engine without kvcast that is asked the same, one by one."""
    prompts = [random_tokens(random.Random(length), length) for length in (130, 300, 640)]
    plain = start(models("lfm2"), None, **CONVOLUTIONS)
    engine = start(models("lfm2"), agent_sockets[0], **CONVOLUTIONS)
    for prompt in prompts:
        expected = one(plain, prompt).tokens
        for cached_tokens in (0, last_chunk(prompt)):
            said = one(engine, prompt)
            assert (said.cached_tokens, said.tokens) == (cached_tokens, expected)
            forget(engine)
    run_until_idle(engine)


def test_preempted_requests(start: StartEngine, models: Callable[..., Path], agent_sockets: list[str]) -> None:
    """Too small a paged cache for a batch that shares nothing: what is preempted is loaded again, and what is evicted,
    too.

    Other batches may say other tokens where two are nearly equally likely: nearly no request does so early.
    """
    chance = random.Random(4)
    prompts = [random_tokens(chance, 4 * CHUNK_TOKENS + 10 + number) for number in range(12)]
    plain = start(models("qwen3next"), None, **RECURRENT)
    few: dict[str, Any] = {**RECURRENT, "num_gpu_blocks_override": 60, "max_model_len": 1024}
    small = start(models("qwen3next"), agent_sockets[0], **few)
    expected = [tokens[:JUDGED_TOKENS] for tokens in tokens_of(plain.generate(prompts, max_tokens=70))]
    for _ in range(2):
        said = [tokens[:JUDGED_TOKENS] for tokens in tokens_of(small.generate(prompts, max_tokens=70))]
        assert sum(a == b for a, b in zip(said, expected, strict=True)) >= len(prompts) - OTHERS_MAX
    assert small.ask("preemptions") > 0
    assert small.metrics()["hits"]["local"] > 0
    run_until_idle(small)


def test_two_workers_have_states_of_their_own(
    start: StartEngine, models: Callable[..., Path], agent_sockets: list[str]
) -> None:
    """Each half of the heads of the recurrent layers is with one of them."""
    two: dict[str, Any] = {**RECURRENT, "tensor_parallel_size": 2}
    engine = start(models("qwen3next"), agent_sockets[0], environment=processors(two), **two)
    prompt = random_tokens(random.Random(5), 333)
    computed = one(engine, prompt, kv_transfer_params=NO_LOAD)
    assert computed.cached_tokens == 0
    forget(engine)
    loaded = one(engine, prompt)
    assert loaded.cached_tokens == last_chunk(prompt)
    assert loaded.tokens == computed.tokens
    run_until_idle(engine)


def test_a_prompt_computed_elsewhere_is_decoded(
    start: StartEngine, models: Callable[..., Path], agent_sockets: list[str], second: Engine
) -> None:
    """One engine computes prompts, another decodes them: chunks and the last state are in the pool with the answer."""
    producer = start(models("qwen3next"), agent_sockets[0], connector={"kv_role": "kv_producer"}, **RECURRENT)
    prefill = {"do_remote_decode": True, "do_remote_prefill": False}
    for length in (300, 5 * CHUNK_TOKENS):
        prompt = random_tokens(random.Random(length), length)
        (made,) = producer.generate([prompt], max_tokens=1, kv_transfer_params=prefill)
        assert made is not None and made.kv_transfer_params is not None
        before = hit_tokens(second)
        said = one(second, prompt, kv_transfer_params=dict(made.kv_transfer_params))
        assert hit_tokens(second) - before == last_chunk(prompt)
        forget(second)
        assert said.tokens[:1] == made.tokens
    run_until_idle(producer)


def hit_tokens(engine: Engine) -> float:
    return engine.metrics().get("hit_tokens", {}).get("", 0)


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ({"enable_prefix_caching": False, "mamba_cache_mode": "none"}, "--enable-prefix-caching --mamba-cache-mode"),
        ({"settings": {"chunk_tokens": 2 * CHUNK_TOKENS}}, "blocks of 64 tokens: use 64, or leave it out"),
    ],
)
def test_refused_at_start(
    arguments: dict[str, Any],
    why: str,
    start: StartEngine,
    models: Callable[..., Path],
    agent_sockets: list[str],
) -> None:
    with pytest.raises(TestbedError, match=why) as error:
        start(models("qwen3next"), agent_sockets[0], **{**RECURRENT, **arguments})
    assert "\n" not in str(error.value)


def test_nothing_is_left_behind(first: Engine, second: Engine, testbed: Testbed) -> None:
    for engine in (first, second):
        run_until_idle(engine)
    assert_nothing_left(testbed)
