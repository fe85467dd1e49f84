"""The same tokens whatever happens to the pool: loads that fail, agents that die, hang and come back, no room."""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from bmv2_testbed.client import Testbed
from bmv2_testbed.engines.engine_client import Engine
from kvchunk.ids import KEY_BYTES
from kvclient.client import AgentClient, ChunkSource, PoolFullError
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

FAULTY = {"kv_connector": "FaultyConnector", "kv_connector_module_path": "tests.vllm.faulty_connector"}
RETURN_S = 300.0
FILLER_BYTES = 2 * 2**20
QUICK_TO_GO_ON = {"lookup_timeout_s": 0.5, "lookup_wait_s": 0.002}
"""For an engine whose agent stalls."""


def test_failed_loads_are_computed(
    truth: Truth, start: StartEngine, models: Callable[..., Path], agent_sockets: list[str]
) -> None:
    engine = start(models(), agent_sockets[0], enable_prefix_caching=False, connector=FAULTY)
    assert_same(run_batches(engine, PROMPTS), truth(PROMPTS))
    metrics = engine.metrics()
    assert metrics["failed_blocks"][""] > 5
    assert metrics["hits"]["local"] > 50
    run_until_idle(engine)


def test_failed_loads_of_layers_with_windows_are_computed(
    start: StartEngine, models: Callable[..., Path], agent_sockets: list[str]
) -> None:
    """With several groups of layers vLLM takes back whole requests, not blocks."""
    engine = start(models("gemma3narrow"), agent_sockets[0], enable_prefix_caching=False, connector=FAULTY)
    chance = random.Random(14)
    prompts = [random_tokens(chance, 3 * CHUNK_TOKENS + 10) for _ in range(16)]
    computed = engine.generate(prompts, kv_transfer_params={"kvcast.no_load": True}, margins=True)
    expected = [result.certain for result in computed if result is not None]
    run_until_idle(engine)
    assert_same(tokens_of(engine.generate(prompts)), expected)
    metrics = engine.metrics()
    assert metrics["failed_blocks"][""] > 2
    assert metrics["hits"]["local"] > 10
    run_until_idle(engine)


def test_what_stands_on_a_failed_load_is_not_saved(
    second: Engine, start: StartEngine, models: Callable[..., Path], agent_sockets: list[str]
) -> None:
    """A step that waits for a load layer by layer computes the rest of the prompt even when the load fails.

    What it saves is the KV that another engine, which loads nothing, computes.
    """
    engine = start(
        models(), agent_sockets[0], enable_prefix_caching=False, connector=FAULTY, settings={"load": "layerwise"}
    )
    chance = random.Random(13)
    documents = [random_tokens(chance, 4 * CHUNK_TOKENS) for _ in range(20)]
    prompts = [document + random_tokens(chance, 2 * CHUNK_TOKENS + 10) for document in documents]
    for document, prompt in zip(documents, prompts, strict=True):
        one(engine, document)
        # Blocks that a load fails to fill hold something else, not by chance what the load would have brought.
        one(engine, random_tokens(chance, 8 * CHUNK_TOKENS), kv_transfer_params={"kvcast.no_save": True})
        one(engine, prompt)
    assert engine.metrics()["failed_blocks"][""] > 20
    run_until_idle(engine)
    for prompt in prompts:
        one(second, prompt, kv_transfer_params={"kvcast.no_load": True})
        keys = [key for key, _ in engine.where(prompt)]
        np.testing.assert_allclose(kv_at(agent_sockets[0], keys), kv_at(agent_sockets[1], keys), atol=1e-3)


def kv_at(agent_socket: str, keys: list[bytes]) -> npt.NDArray[np.float32]:
    """The content of chunks in a node's pool."""
    with AgentClient(agent_socket) as client, client.fetch(keys, deadline_s=RETURN_S) as got:
        assert set(got.sources) == {ChunkSource.LOCAL}
        assert got.count == len(keys)
        return np.concatenate([np.frombuffer(bytes(view), dtype=np.float32) for view in got.views])


def test_policy_fail_fails_the_request_alone(
    truth: Truth, start: StartEngine, models: Callable[..., Path], agent_sockets: list[str]
) -> None:
    engine = start(
        models(), agent_sockets[0], enable_prefix_caching=False, connector={**FAULTY, "kv_load_failure_policy": "fail"}
    )
    prompts = PROMPTS[:32]
    run_batches(engine, prompts)
    failed = 0
    for prompt, tokens in zip(prompts, truth(prompts), strict=True):
        result = one(engine, prompt)
        if result.finish_reason == "error":
            failed += 1
        else:
            assert_same([result.tokens], [tokens])
    assert 0 < failed < len(prompts)
    run_until_idle(engine)


@pytest.fixture(scope="module")
def engine(start_shared: StartEngine, models: Callable[..., Path], agent_sockets: list[str]) -> Engine:
    """Too small a paged cache for a batch: requests are preempted."""
    return start_shared(
        models(),
        agent_sockets[0],
        enable_prefix_caching=True,
        num_gpu_blocks_override=48,
        max_model_len=1024,
        settings=QUICK_TO_GO_ON,
    )


def test_preempted_requests(plain: Engine, engine: Engine) -> None:
    prompts = PROMPTS[-12:]
    results = plain.generate(prompts, max_tokens=70, margins=True)
    expected = [result.certain for result in results if result is not None]
    assert len(expected) == len(prompts)
    for _ in range(2):
        assert_same(tokens_of(engine.generate(prompts, max_tokens=70)), expected)
    assert engine.ask("preemptions") > 0
    run_until_idle(engine)


def test_two_hundred_prompts_while_agents_die(truth: Truth, engine: Engine, testbed: Testbed) -> None:
    """Killed at any moment of a batch, away for the rest of it and the whole next one, and back."""
    expected = truth(PROMPTS)
    step = max(1, len(PROMPTS) // 8)
    before = outages(engine)
    with ThreadPoolExecutor(1) as aside:
        for at in range(0, len(PROMPTS), 2 * step):
            await_pool(engine)
            during = aside.submit(engine.generate, PROMPTS[at : at + step])
            testbed.kill("agent0")
            assert_same(tokens_of(during.result()), expected[at : at + step])
            assert_same(
                tokens_of(engine.generate(PROMPTS[at + step : at + 2 * step])), expected[at + step : at + 2 * step]
            )
            testbed.restart("agent0")
            testbed.await_ready("agent0")
    await_pool(engine)
    assert outages(engine) >= before + 4  # both halves of the connector count
    run_until_idle(engine)
    testbed.await_cluster()


def test_agent_that_stalls(truth: Truth, engine: Engine, testbed: Testbed) -> None:
    """Nobody waits for it, and when it goes on nothing was lost: neither connection nor leases."""
    prompts = PROMPTS[-16:]
    expected = truth(prompts)
    await_pool(engine)
    run_until_idle(engine)
    before = outages(engine)
    testbed.kill("agent0", signal.SIGSTOP)
    try:
        assert_same(run_batches(engine, prompts), expected)
        assert engine.metrics()["agent_away"][""] == 1
    finally:
        testbed.kill("agent0", signal.SIGCONT)
    await_pool(engine)
    assert engine.metrics()["agent_away"][""] == 0
    assert outages(engine) == before
    run_until_idle(engine)


def test_controller_killed_and_restarted(truth: Truth, engine: Engine, testbed: Testbed) -> None:
    prompts = PROMPTS[:24]
    testbed.kill("controller")
    assert_same(run_batches(engine, prompts), truth(prompts))
    testbed.restart("controller")
    testbed.await_ready("controller")
    testbed.await_cluster()
    assert_same(run_batches(engine, prompts), truth(prompts))
    run_until_idle(engine)


@contextmanager
def no_room(agent_socket: str) -> Iterator[None]:
    """A pool full of pinned chunks."""
    chance = random.Random(9)
    with AgentClient(agent_socket) as client:
        keys = []
        size_bytes = FILLER_BYTES
        while size_bytes >= CHUNK_BYTES // 2:
            key = chance.randbytes(KEY_BYTES)
            try:
                client.put(key, None, bytes(size_bytes))
            except PoolFullError:
                size_bytes //= 8
                continue
            client.pin([key])
            keys.append(key)
        yield
        client.unpin(keys)
        client.drop(keys)


def test_a_full_pool(truth: Truth, start: StartEngine, models: Callable[..., Path], agent_sockets: list[str]) -> None:
    """What is not saved is computed; when there is room again it is saved."""
    engine = start(models(), agent_sockets[2], enable_prefix_caching=False)
    chance = random.Random(10)
    prompts = [random_tokens(chance, 200) for _ in range(8)]
    with no_room(agent_sockets[2]):
        for _ in range(2):
            assert_same(run_batches(engine, prompts), truth(prompts))
        saves = engine.metrics()["saves"]
        assert saves["pool_full"] >= 2 * len(prompts)
        assert saves.get("stored", 0) == 0
        assert "hits" not in engine.metrics()
    for _ in range(2):
        assert_same(run_batches(engine, prompts), truth(prompts))
    assert engine.metrics()["hits"]["local"] == 3 * len(prompts)
    run_until_idle(engine)


def outages(engine: Engine) -> float:
    return engine.metrics().get("outages", {}).get("", 0)


def await_pool(engine: Engine) -> None:
    """The engine finds its agent again by itself: ask until it has loaded something."""
    prompt = random_tokens(random.Random(8), 100)
    give_up_s = time.monotonic() + RETURN_S
    while time.monotonic() < give_up_s:
        engine.ask("reset")
        (result,) = engine.generate([prompt], max_tokens=1)
        assert result is not None
        if result.cached_tokens:
            return
        engine.ask("run_until_idle")
    raise AssertionError("the engine did not come back to its agent")


def test_nothing_is_left_behind(testbed: Testbed) -> None:
    assert_nothing_left(testbed)
