"""Two engines are asked for the same prompt at the same time: one computes it, and the other waits for its chunks."""

from __future__ import annotations

import random
import threading

from bmv2_testbed.client import Testbed
from bmv2_testbed.engines.engine_client import Engine
from tests.vllm.vllm_suite import (
    Truth,
    agent_metric,
    assert_nothing_left,
    assert_same,
    await_names,
    one,
    random_tokens,
    run_until_idle,
)

TRIES = 10
"""An engine of a small model may be through with a prompt before the other one asks."""


def test_the_second_engine_waits_for_what_the_first_computes(
    truth: Truth, first: Engine, second: Engine, testbed: Testbed
) -> None:
    for engine in (first, second):
        await_names(engine)
    chance = random.Random(31)
    one(second, random_tokens(chance, 1000))  # an engine claims when it knows how fast it is
    before = agent_metric(testbed, 0, "wait_chunks_total")
    for _ in range(TRIES):
        document = random_tokens(chance, 3600)
        computing = threading.Thread(target=second.generate, args=([document],))
        computing.start()
        while all(where == "NOWHERE" for _, where in first.where(document)) and computing.is_alive():
            pass  # until a claim, or the first chunk, is known here
        said = first.generate([document])
        computing.join()
        assert_same([result.tokens for result in said if result is not None], truth([document]))
        if agent_metric(testbed, 0, "wait_chunks_total") > before:
            break
    assert agent_metric(testbed, 0, "wait_chunks_total") > before
    assert second.metrics()["claims"][""] > 0
    run_until_idle(first)
    run_until_idle(second)


def test_a_preempted_or_aborted_prompt_is_claimed_no_more(first: Engine, second: Engine, testbed: Testbed) -> None:
    prompts = [random_tokens(random.Random(seed), 3000) for seed in range(40, 44)]
    results = second.generate(prompts, abort={0: 1, 1: 2, 2: 3, 3: 4})
    assert results == [None] * 4
    run_until_idle(second)
    for prompt in prompts:
        assert "COMPUTING" not in {where for _, where in second.where(prompt)}


def test_nothing_is_left_behind(testbed: Testbed) -> None:
    assert_nothing_left(testbed)
