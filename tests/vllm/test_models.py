"""Other kinds of attention, several workers, adapters, and what is refused at start."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bmv2_testbed.engines.engine_client import Engine
from bmv2_testbed.errors import TestbedError
from tests.vllm.model_kinds import AUDIO_TOKEN, make_adapter
from tests.vllm.vllm_suite import (
    CHUNK_TOKENS,
    PROMPTS,
    StartEngine,
    Truth,
    assert_same,
    one,
    processors,
    random_tokens,
    run_batches,
    run_until_idle,
    tokens_of,
)

NO_LOAD = {"kvcast.no_load": True}
GROUPS = {"llama": 1, "gemma3": 2, "gemma3narrow": 4, "gptoss": 2}
"""Of layers, each with a block table of its own."""
HAS_AMX = "amx_tile" in Path("/proc/cpuinfo").read_text().split()
REFUSED_WITH: dict[str, dict[str, Any]] = {
    "mamba": {"enable_prefix_caching": True, "mamba_cache_mode": "align", "block_size": None},
    # vLLM's default keeps their states at the ends of blocks, and then they are shared.
    **{kind: {"enable_prefix_caching": False} for kind in ("jamba", "granitehybrid", "qwen3next")},
}
REFUSED_WITH["qwen3next"]["dtype"] = "bfloat16"
TRACED = {"enforce_eager": False, "compilation_config": {"mode": 2, "backend": "eager"}}
"""vLLM 0.32 on a CPU makes what pipeline stages hand on when it warms up, and warms up only what is traced."""


@pytest.mark.parametrize(
    ("kind", "arguments"),
    [
        # Long, because on a starving machine it once computed only zeros; why was not found, and 60 runs since did not.
        pytest.param("gemma3", {}, id="full and sliding-window layers", marks=pytest.mark.long),
        pytest.param("gemma3narrow", {}, id="windows narrower than a chunk"),
        pytest.param("gptoss", {}, id="windows, sinks and experts"),
        pytest.param("llama", {"tensor_parallel_size": 2}, id="two tensor-parallel workers"),
        pytest.param("llama", {"pipeline_parallel_size": 2, **TRACED}, id="two pipeline stages"),
    ],
)
def test_loaded_as_computed(
    kind: str, arguments: dict[str, Any], start: StartEngine, models: Callable[..., Path], agent_sockets: list[str]
) -> None:
    """What an engine says when it computes and when it loads is the same."""
    chance = random.Random(5)
    document = random_tokens(chance, 600)
    prompts = [document[:kept] + random_tokens(chance, 20) for kept in (600, 350, 70)]
    engine = start(
        models(kind), agent_sockets[0], enable_prefix_caching=False, environment=processors(arguments), **arguments
    )
    assert engine.ask("groups") == GROUPS[kind]
    computed = []
    for prompt in prompts:
        result = one(engine, prompt, kv_transfer_params=NO_LOAD, margins=True)
        assert result.cached_tokens == 0
        computed.append(result.certain)
    loaded = engine.generate(prompts)
    assert_same(tokens_of(loaded), computed)
    assert [result.cached_tokens for result in loaded if result is not None] == [576, 320, 64]
    run_until_idle(engine)


@pytest.mark.skipif(not HAS_AMX, reason="latent attention on CPUs needs AMX")
def test_latent_attention_is_loaded_as_from_the_engines_own_cache(
    start: StartEngine, models: Callable[..., Path], agent_sockets: list[str]
) -> None:
    """In bfloat16, all that AMX takes: an engine's tokens depend on where a cached prefix ends, so this is compared
    with vLLM's own prefix cache, of blocks as long as chunks."""
    chance = random.Random(5)
    document = random_tokens(chance, 600)
    prompts = [document[:kept] + random_tokens(chance, 20) for kept in (600, 350, 70)]
    common: dict[str, Any] = {"dtype": "bfloat16", "block_size": CHUNK_TOKENS}
    own = start(models("deepseek"), None, enable_prefix_caching=True, **common)
    engine = start(models("deepseek"), agent_sockets[0], enable_prefix_caching=False, **common)
    for prompt, cached_tokens in zip(prompts, (576, 320, 64), strict=True):
        for each in (own, engine):
            one(each, prompt)
        run_until_idle(engine)
        expected, loaded = one(own, prompt), one(engine, prompt)
        assert (expected.cached_tokens, loaded.cached_tokens) == (cached_tokens, cached_tokens)
        assert loaded.tokens == expected.tokens
    assert engine.metrics()["hits"]["local"] > 0


def test_adapters_do_not_share(
    start: StartEngine, models: Callable[..., Path], agent_sockets: list[str], folder: Path
) -> None:
    """Two adapters and the bare model, one prompt: keys of their own, loaded as computed."""
    made = [make_adapter(folder / f"adapter{seed}", models(), seed) for seed in (1, 2)]
    engine = start(
        models(), agent_sockets[0], enable_prefix_caching=False, enable_lora=True, max_loras=2, max_lora_rank=8
    )
    prompt = random_tokens(random.Random(6), 200)
    said = set()
    for adapter in (("one", 1, str(made[0])), ("two", 2, str(made[1])), None):
        computed = one(engine, prompt, adapter=adapter, margins=True)
        assert computed.cached_tokens == 0, adapter
        loaded = one(engine, prompt, adapter=adapter)
        assert loaded.cached_tokens == 3 * CHUNK_TOKENS, adapter
        assert_same([loaded.tokens], [computed.certain])
        said.add(computed.tokens)
    assert len(said) == 3
    # The same adapter under another name is another one: names are what clients ask for.
    assert one(engine, prompt, adapter=("three", 3, str(made[0]))).cached_tokens == 0
    run_until_idle(engine)


def test_an_adapter_under_training_shares_with_its_own_steps_only(
    start: StartEngine, models: Callable[..., Path], agent_sockets: list[str], folder: Path
) -> None:
    """Trained on and loaded again in place, under one name and path, as reinforcement learning does."""
    place = folder / "trained"
    engine = start(
        models(), agent_sockets[0], enable_prefix_caching=False, enable_lora=True, max_loras=1, max_lora_rank=8
    )
    prompt = random_tokens(random.Random(8), 200)
    said = []
    for training_step in (1, 2):
        make_adapter(place, models(), 10 + training_step)
        adapter = ("policy", 1, str(place), None, True)
        computed = one(engine, prompt, adapter=adapter, margins=True)
        assert computed.cached_tokens == 0, training_step
        loaded = one(engine, prompt, adapter=adapter)
        assert loaded.cached_tokens == 3 * CHUNK_TOKENS, training_step
        assert_same([loaded.tokens], [computed.certain])
        said.append(computed.tokens)
    assert said[0] != said[1]
    run_until_idle(engine)


def test_sounds_share_as_far_as_the_words_before_them(
    start: StartEngine, models: Callable[..., Path], agent_sockets: list[str]
) -> None:
    """The same words around another sound: shared up to the sound's chunk, computed from there on."""
    chance = random.Random(71)
    prompt = [*random_tokens(chance, 160), AUDIO_TOKEN, *random_tokens(chance, 100)]
    plain = start(models("qwen2audio"), None, enable_prefix_caching=False)
    heard = {}
    for hertz in (220, 1760):
        (result,) = plain.generate([prompt], tones=[hertz], margins=True)
        assert result is not None
        heard[hertz] = result.certain
    assert heard[220] != heard[1760]
    engine = start(models("qwen2audio"), agent_sockets[0], enable_prefix_caching=False)
    # The sound takes 50 places from the 160th on: it begins in the third of four whole chunks.
    for hertz, chunks in ((220, 0), (220, 4), (1760, 2), (1760, 4), (220, 4)):
        result = one(engine, prompt, tones=[hertz])
        assert (result.cached_tokens, hertz) == (chunks * CHUNK_TOKENS, hertz)
        assert_same([result.tokens], [heard[hertz]])
    run_until_idle(engine)


def test_windows_beside_the_engines_own_cache(
    start: StartEngine, models: Callable[..., Path], agent_sockets: list[str]
) -> None:
    """Blocks out of a window are freed; what the engine still has itself is not loaded, and all of it fits together."""
    chance = random.Random(9)
    document = random_tokens(chance, 500)
    prompts = [document[:kept] + random_tokens(chance, 20) for kept in (300, 500)]
    engine = start(
        models("gemma3narrow"),
        agent_sockets[0],
        enable_prefix_caching=True,
        max_num_batched_tokens=96,
        max_model_len=1024,
    )
    expected = []
    for prompt in prompts:
        expected.append(one(engine, prompt, kv_transfer_params=NO_LOAD, margins=True).certain)
        assert engine.ask("reset")
    for order in ((0, 1), (1, 0)):
        for number in order:
            result = one(engine, prompts[number])
            assert result.cached_tokens >= (len(prompts[number]) - 20) // CHUNK_TOKENS * CHUNK_TOKENS
            assert_same([result.tokens], [expected[number]])
        assert engine.ask("reset")
    assert engine.metrics()["hits"]["local"] > 0
    run_until_idle(engine)


@pytest.mark.parametrize(
    ("kind", "why"),
    [
        ("mistral", "its layers keep sliding windows only"),
        ("mamba", "its layers keep states of recurrent layers only"),
        # Refused for the same reason as the next one.
        pytest.param("jamba", "start it with --enable-prefix-caching --mamba-cache-mode align", marks=pytest.mark.long),
        ("granitehybrid", "start it with --enable-prefix-caching --mamba-cache-mode align"),
        pytest.param(
            "qwen3next", "start it with --enable-prefix-caching --mamba-cache-mode align", marks=pytest.mark.long
        ),
        pytest.param(
            "deepseek",
            "computes nothing behind a cached prefix",
            marks=pytest.mark.skipif(HAS_AMX, reason="this processor has AMX, and so latent attention"),
        ),
    ],
)
def test_refused_at_start(
    kind: str, why: str, start: StartEngine, models: Callable[..., Path], agent_sockets: list[str]
) -> None:
    """In one line, before anything is computed."""
    with pytest.raises(TestbedError, match=why) as error:
        start(models(kind), agent_sockets[0], **REFUSED_WITH.get(kind, {}))
    assert "\n" not in str(error.value)


def test_a_wrong_setting_ends_the_start(
    start: StartEngine, models: Callable[..., Path], agent_sockets: list[str]
) -> None:
    words = "multiple of the engine's block size of 128 tokens: use 128"
    with pytest.raises(TestbedError, match=words):
        start(models(), agent_sockets[0], block_size=128)


def test_layer_by_layer_for_whole_batches(
    truth: Truth, start: StartEngine, models: Callable[..., Path], agent_sockets: list[str]
) -> None:
    engine: Engine = start(models(), agent_sockets[0], enable_prefix_caching=False, settings={"load": "layerwise"})
    prompts = PROMPTS[:40]
    for _ in range(2):
        assert_same(run_batches(engine, prompts), truth(prompts))
    assert engine.metrics()["hits"]["local"] > 50
    run_until_idle(engine)
