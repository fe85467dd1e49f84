"""One engine computes prompts, two others decode: over the pool, by the names that vLLM's proxies use."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from bmv2_testbed.client import Testbed
from bmv2_testbed.engines.engine_client import Engine, Generated
from tests.vllm.vllm_suite import (
    CHUNK_BYTES,
    CHUNK_TOKENS,
    StartEngine,
    Truth,
    agent_metric,
    assert_nothing_left,
    assert_same,
    one,
    random_tokens,
    run_until_idle,
    tokens_of,
    until,
)

PREFILL = {"do_remote_decode": True, "do_remote_prefill": False, "remote_engine_id": None, "remote_block_ids": None}
"""What a proxy sends to the engine that computes a prompt."""
DECODE = {"do_remote_prefill": True, "do_remote_decode": False}
"""What it sends to those that decode when it does not wait for the first one's answer."""
PROMPT_TOKENS = 20 * CHUNK_TOKENS + 9
SHARE_MAX = 1.5
"""Of the chunks' bytes, what the producer sends to two: 1 and headers on a machine with time, 2 without casts."""
ROUNDS_MAX = 6


@pytest.fixture(scope="module")
def producer(start_shared: StartEngine, models: Callable[..., Path], agent_sockets: list[str]) -> Engine:
    return start_shared(
        models(),
        agent_sockets[0],
        enable_prefix_caching=False,
        max_num_batched_tokens=512,
        connector={"kv_role": "kv_producer"},
    )


@pytest.fixture(scope="module")
def consumers(start_shared: StartEngine, models: Callable[..., Path], agent_sockets: list[str]) -> list[Engine]:
    return [
        start_shared(models(), agent_socket, enable_prefix_caching=False, connector={"kv_role": "kv_consumer"})
        for agent_socket in agent_sockets[1:]
    ]


def at_once(engines: Sequence[Engine], prompt: list[int], parameters: dict[str, Any]) -> Callable[[], list[Generated]]:
    """Begin the same request at several engines; call what is returned for what they say."""
    said: dict[int, Generated | None] = {}

    def ask(number: int, engine: Engine) -> None:
        (said[number],) = engine.generate([prompt], kv_transfer_params=parameters)

    threads = [threading.Thread(target=ask, args=each) for each in enumerate(engines)]
    for thread in threads:
        thread.start()

    def join() -> list[Generated]:
        for thread in threads:
            thread.join()
        return [result for _, result in sorted(said.items()) if result is not None]

    return join


def prefill(producer: Engine, prompt: list[int]) -> dict[str, Any]:
    """The answer's parameters, as a proxy gets them."""
    (result,) = producer.generate([prompt], max_tokens=1, kv_transfer_params=PREFILL)
    assert result is not None
    assert result.kv_transfer_params is not None
    return dict(result.kv_transfer_params)


def test_decoding_begins_with_what_the_answer_says(
    truth: Truth, producer: Engine, consumers: list[Engine], testbed: Testbed
) -> None:
    """The answer leaves when the chunks are in the pool, and none of them is computed again."""
    for seed in range(60, 64):
        prompt = random_tokens(random.Random(seed), PROMPT_TOKENS)
        parameters = prefill(producer, prompt)
        assert parameters["do_remote_prefill"]
        assert parameters["kvcast.chunks"] == PROMPT_TOKENS // CHUNK_TOKENS
        before = [hit_tokens(engine) for engine in consumers]
        said = at_once(consumers, prompt, parameters)()
        assert_same(tokens_of(said), truth([prompt]) * 2)
        hits = [hit_tokens(engine) - count for engine, count in zip(consumers, before, strict=True)]
        assert hits == [PROMPT_TOKENS // CHUNK_TOKENS * CHUNK_TOKENS] * 2
        assert [result.cached_tokens for result in said] == [0, 0], "vLLM tells what the first engine found cached"
    assert producer.metrics()["saves"]["stored"] == 4 * (PROMPT_TOKENS // CHUNK_TOKENS)


def hit_tokens(engine: Engine) -> float:
    return engine.metrics().get("hit_tokens", {}).get("", 0)


def test_one_prefill_one_cast(truth: Truth, producer: Engine, consumers: list[Engine], testbed: Testbed) -> None:
    """Both ask before anybody computes, and get the chunks as they are computed, sent once.

    What one of them asks for a little before the other it reads alone, and on a machine that stands still for a second
    that may be all of it: one round of several has to show the cast. What they say is right in each.
    """
    chunks = PROMPT_TOKENS // CHUNK_TOKENS
    shares = []
    for seed in range(700, 700 + ROUNDS_MAX):
        prompt = random_tokens(random.Random(seed), PROMPT_TOKENS)
        casts = [hits_by_cast(engine) for engine in consumers]
        sent = sent_bytes(testbed)
        decoding = at_once(consumers, prompt, DECODE)
        for host in (1, 2):
            until(lambda host=host: agent_metric(testbed, host, "waiting_fetches") == 1, "a decoder waits")
        prefill(producer, prompt)
        said = decoding()
        assert_same(tokens_of(said), truth([prompt]) * 2)
        assert [result.cached_tokens for result in said] == [chunks * CHUNK_TOKENS] * 2
        shares.append((sent_bytes(testbed) - sent) / (chunks * CHUNK_BYTES))
        by_cast = [hits_by_cast(engine) - before for engine, before in zip(consumers, casts, strict=True)]
        if min(by_cast) > 0 and shares[-1] <= SHARE_MAX:
            return
    raise AssertionError(f"the producer sent {shares} times the chunks' bytes")


def hits_by_cast(engine: Engine) -> float:
    return engine.metrics().get("hits", {}).get("cast", 0)


def sent_bytes(testbed: Testbed) -> int:
    """What the producer's node has sent."""
    return testbed.counters()["h0"].tx_bytes


def test_what_roles_leave_undone(producer: Engine, consumers: list[Engine]) -> None:
    prompt = random_tokens(random.Random(71), 3 * CHUNK_TOKENS + 5)
    for _ in range(2):
        assert one(producer, prompt, kv_transfer_params=PREFILL, max_tokens=1).cached_tokens == 0
    other = random_tokens(random.Random(72), 3 * CHUNK_TOKENS + 5)
    for _ in range(2):
        assert one(consumers[0], other).cached_tokens == 0
    assert one(consumers[0], prompt).cached_tokens == 3 * CHUNK_TOKENS, "a pool is there for all requests"
    assert "saves" not in consumers[0].metrics()


def test_what_is_expected_in_vain_is_computed(truth: Truth, consumers: list[Engine]) -> None:
    prompt = random_tokens(random.Random(73), 3 * CHUNK_TOKENS + 5)
    result = one(consumers[0], prompt, kv_transfer_params={"kvcast.expected_s": 0.3})
    assert (result.cached_tokens, result.total_s > 0.3) == (0, True)
    assert_same([result.tokens], truth([prompt]))


def test_a_prompt_of_another_model_is_not_waited_for(truth: Truth, consumers: list[Engine]) -> None:
    prompt = random_tokens(random.Random(74), 3 * CHUNK_TOKENS + 5)
    foreign = {**DECODE, "kvcast.chunks": 3, "kvcast.last_key": "00" * 16}
    result = one(consumers[0], prompt, kv_transfer_params=foreign)
    assert result.cached_tokens == 0
    assert_same([result.tokens], truth([prompt]))


def test_a_short_prompt_is_decoded_by_computing_it(truth: Truth, producer: Engine, consumers: list[Engine]) -> None:
    prompt = random_tokens(random.Random(75), CHUNK_TOKENS - 1)
    parameters = prefill(producer, prompt)
    assert parameters["kvcast.chunks"] == 0
    assert_same([one(consumers[0], prompt, kv_transfer_params=parameters).tokens], truth([prompt]))


def test_nothing_is_left_behind(producer: Engine, consumers: list[Engine], testbed: Testbed) -> None:
    for engine in (producer, *consumers):
        run_until_idle(engine)
    assert_nothing_left(testbed)
