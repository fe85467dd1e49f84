"""Two engines are asked for the same prompt at the same time: one computes it, and the other waits for its chunks."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from bmv2_testbed.client import Testbed
from bmv2_testbed.engines.engine_client import Engine
from tests.vllm.vllm_suite import (
    Truth,
    agent_metric,
    assert_nothing_left,
    assert_same,
    one,
    random_tokens,
    run_until_idle,
    until,
)

TRIES = 10
"""On a machine that stands still, the first engine's time may be over before the other one asks."""
COMPUTED_STEPS = 3
"""Of 256 tokens, of a prompt of 3,600."""


def test_the_second_engine_waits_for_what_the_first_computes(
    truth: Truth, first: Engine, second: Engine, testbed: Testbed, tmp_path: Path
) -> None:
    """The one that computes stands still until the other one waits."""
    chance = random.Random(31)
    one(second, random_tokens(chance, 1000))  # an engine claims when it knows how fast it is
    before = agent_metric(testbed, 0, "wait_chunks_total")
    with ThreadPoolExecutor(2) as aside:
        for at in range(TRIES):
            document, go_on = random_tokens(chance, 3600), tmp_path / str(at)
            computed = aside.submit(second.generate, [document], hold=(COMPUTED_STEPS, go_on))
            try:
                until(lambda: any(where != "NOWHERE" for _, where in first.where(document)), "a claim is known")  # noqa: B023
                asked = aside.submit(first.generate, [document])
                until(lambda: asked.done() or agent_metric(testbed, 0, "waiting_fetches") > 0, "it waits")  # noqa: B023
            finally:
                go_on.touch()
            for said in (computed, asked):
                assert_same([result.tokens for result in said.result() if result is not None], truth([document]))
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
