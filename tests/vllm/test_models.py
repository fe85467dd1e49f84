"""Other kinds of attention, several workers, and what is refused at start."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from vllm_suite import PROMPTS, StartEngine, Truth, random_tokens, run_batches, settled, tokens_of

from bmv2_testbed.engines.client import engine_arguments, running
from bmv2_testbed.errors import TestbedError


@pytest.mark.parametrize(
    ("kind", "arguments"),
    [
        # Long, because now and then vLLM 0.32 itself computes nothing but zeros for this model on a CPU.
        pytest.param("gemma3", {}, id="full and sliding-window layers", marks=pytest.mark.long),
        pytest.param("llama", {"tensor_parallel_size": 2}, id="two tensor-parallel workers"),
    ],
)
def test_loaded_as_computed(
    kind: str, arguments: dict[str, Any], models: Callable[..., Path], agent_sockets: list[str], folder: Path
) -> None:
    """What an engine says when it computes and when it loads is the same."""
    chance = random.Random(5)
    document = random_tokens(chance, 1200)
    prompts = [document[:kept] + random_tokens(chance, 30) for kept in (1200, 700, 130)]
    made = engine_arguments(models(kind), agent_sockets[0], enable_prefix_caching=False, **arguments)
    # Two workers on a machine of one NUMA node have to be told their processors.
    with running(
        made, folder, f"{kind}-{len(arguments)}", {"VLLM_CPU_OMP_THREADS_BIND": "0|1"} if kind == "llama" else {}
    ) as engine:
        computed = []
        for prompt in prompts:
            (result,) = engine.generate([prompt], kv_transfer_params={"kvcast.no_load": True})
            assert result is not None
            assert result.cached_tokens == 0
            computed.append(result.tokens)
        assert engine.ask("settle")
        loaded = engine.generate(prompts)
        assert tokens_of(loaded) == computed
        assert [result.cached_tokens for result in loaded if result is not None] == [1152, 640, 128]
        settled(engine)


@pytest.mark.parametrize(
    ("kind", "why"),
    [
        ("mistral", "its layers keep SlidingWindowSpec"),
        ("mamba", "its layers keep MambaSpec"),
        ("deepseek", "computes nothing behind a cached prefix"),
    ],
)
def test_refused_at_start(
    kind: str, why: str, models: Callable[..., Path], agent_sockets: list[str], folder: Path
) -> None:
    made = engine_arguments(models(kind), agent_sockets[0])
    with pytest.raises(TestbedError, match=why) as error, running(made, folder, kind):
        pass
    assert "\n" not in str(error.value)


def test_a_wrong_setting_ends_the_start(models: Callable[..., Path], agent_sockets: list[str], folder: Path) -> None:
    made = engine_arguments(models(), agent_sockets[0], settings={"chunk_tokens": 200})
    words = "multiple of the engine's block size of 128 tokens: use 256"
    with pytest.raises(TestbedError, match=words), running(made, folder, "wrong"):
        pass


def test_layer_by_layer_for_whole_batches(
    truth: Truth, start: StartEngine, models: Callable[..., Path], agent_sockets: list[str]
) -> None:
    engine = start(models(), agent_sockets[0], enable_prefix_caching=False, settings={"load": "layerwise"})
    prompts = PROMPTS[:40]
    for _ in range(2):
        assert run_batches(engine, prompts) == truth(prompts)
    assert engine.metrics()["hits"]["local"] > 50
    settled(engine)
