"""The same tokens whatever happens to the pool: loads that fail, agents that die, hang and come back."""

from __future__ import annotations

import random
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from vllm_suite import PROMPTS, StartEngine, Truth, random_tokens, run_batches, settled, tokens_of

from bmv2_testbed.client import Testbed
from bmv2_testbed.engines.client import Engine


def test_failed_loads_are_computed(
    truth: Truth, start: StartEngine, models: Callable[..., Path], agent_sockets: list[str]
) -> None:
    engine = start(
        models(),
        agent_sockets[0],
        enable_prefix_caching=False,
        connector={"kv_connector": "FaultyConnector", "kv_connector_module_path": "tests.vllm.faulty_connector"},
    )
    assert run_batches(engine, PROMPTS) == truth(PROMPTS)
    metrics = engine.metrics()
    assert metrics["failed_blocks"][""] > 5
    assert metrics["hits"]["local"] > 50
    settled(engine)


def test_policy_fail_fails_the_request_alone(
    truth: Truth, start: StartEngine, models: Callable[..., Path], agent_sockets: list[str]
) -> None:
    engine = start(
        models(),
        agent_sockets[0],
        enable_prefix_caching=False,
        connector={
            "kv_connector": "FaultyConnector",
            "kv_connector_module_path": "tests.vllm.faulty_connector",
            "kv_load_failure_policy": "fail",
        },
    )
    prompts = PROMPTS[:48]
    failed = 0
    for prompt, tokens in zip(prompts, truth(prompts), strict=True):
        (result,) = engine.generate([prompt])
        assert result is not None
        if result.finish_reason == "error":
            failed += 1
        else:
            assert result.tokens == tokens
    assert 0 < failed < len(prompts)
    settled(engine)


@pytest.fixture(scope="module")
def engine(start: StartEngine, models: Callable[..., Path], agent_sockets: list[str]) -> Engine:
    """Too small a paged cache for a batch: requests are preempted."""
    return start(models(), agent_sockets[0], enable_prefix_caching=True, num_gpu_blocks_override=40, max_model_len=2048)


def test_preempted_requests(plain: Engine, engine: Engine) -> None:
    prompts = PROMPTS[-16:]
    expected = tokens_of(plain.generate(prompts, max_tokens=150))
    for _ in range(2):
        assert tokens_of(engine.generate(prompts, max_tokens=150)) == expected
    assert engine.ask("preemptions") > 0
    settled(engine)


def test_agent_killed_and_restarted(truth: Truth, engine: Engine, testbed: Testbed) -> None:
    for at in range(0, 48, 8):
        if at % 16 == 8:
            testbed.kill("agent0")
        prompts = PROMPTS[at : at + 8]
        assert tokens_of(engine.generate(prompts)) == truth(prompts)
        if at % 16 == 8:
            testbed.restart("agent0")
            testbed.await_ready("agent0")
            await_pool(engine)
    metrics = engine.metrics()
    assert metrics["outages"][""] >= 3  # both halves of the connector count
    settled(engine)
    testbed.await_cluster()


def test_agent_that_hangs(truth: Truth, engine: Engine, testbed: Testbed) -> None:
    prompts = PROMPTS[-16:]
    truth(prompts)
    testbed.kill("agent0", signal.SIGSTOP)
    try:
        assert run_batches(engine, prompts) == truth(prompts)
        assert engine.metrics()["agent_away"][""] == 1
    finally:
        testbed.kill("agent0", signal.SIGCONT)
    await_pool(engine)


def test_controller_killed_and_restarted(truth: Truth, engine: Engine, testbed: Testbed) -> None:
    prompts = PROMPTS[:24]
    testbed.kill("controller")
    assert run_batches(engine, prompts) == truth(prompts)
    testbed.restart("controller")
    testbed.await_ready("controller")
    testbed.await_cluster()
    assert run_batches(engine, prompts) == truth(prompts)
    settled(engine)


def await_pool(engine: Engine) -> None:
    """The engine finds its agent again by itself: ask until it has loaded something."""
    prompt = random_tokens(random.Random(8), 300)
    for _ in range(200):
        engine.ask("reset")
        (result,) = engine.generate([prompt])
        assert result is not None
        if result.cached_tokens:
            return
        engine.ask("settle")
    raise AssertionError("the engine did not come back to its agent")


def test_nothing_is_left_behind(testbed: Testbed) -> None:
    """No pin, no lease, no chunk half filled, no interest, no internal error in agents and switch."""
    assert testbed.leftovers() == []
