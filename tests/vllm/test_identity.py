"""Engines share KV only where it is the same: what names it is what an engine is, in its memory, at this moment."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bmv2_testbed.client import Testbed
from bmv2_testbed.engines.engine_client import Engine
from bmv2_testbed.errors import TestbedError
from tests.vllm.model_kinds import AUDIO_TOKEN, make_model
from tests.vllm.vllm_suite import (
    CHUNK_TOKENS,
    SMALL,
    StartEngine,
    Truth,
    assert_nothing_left,
    assert_same,
    one,
    processors,
    random_tokens,
    run_until_idle,
)

NO_LOAD = {"kvcast.no_load": True}
CHUNKS = 3
TOKENS = CHUNKS * CHUNK_TOKENS + 8


def prompt_of(seed: int) -> list[int]:
    return random_tokens(random.Random(f"identity {seed}"), TOKENS)


def change(engine: Engine, factor: float, *, loaded: bool = False) -> None:
    engine.ask("change_weights", factor=factor, loaded=loaded)


def test_weights_that_change_in_place(
    start: StartEngine, models: Callable[..., Path], agent_sockets: list[str], truth: Truth, first: Engine
) -> None:
    """As trainers do it: write the weights, reset the prefix cache. Another engine has the weights of before."""
    engine = start(models(), agent_sockets[0], enable_prefix_caching=True)
    old, new, unsaved = (prompt_of(seed) for seed in range(3))
    assert_same([one(engine, old).tokens], truth([old]))

    change(engine, 4)
    assert engine.ask("reset")
    changed = one(engine, old)
    assert changed.cached_tokens == 0, "it has the KV of other weights"
    assert changed.tokens != truth([old])[0]
    computed = one(engine, new)
    theirs = one(first, new)
    assert theirs.cached_tokens == 0, "KV of other weights has the keys of these"
    assert_same([theirs.tokens], truth([new]))
    assert engine.ask("reset")
    loaded = one(engine, new)
    assert loaded.cached_tokens == CHUNKS * CHUNK_TOKENS, "unchanged weights keep their names"
    assert loaded.tokens == computed.tokens

    change(engine, 1 / 4)
    assert engine.ask("reset", connector=True)
    again = one(engine, old)
    assert again.cached_tokens == CHUNKS * CHUNK_TOKENS, "they are the weights of the start again"
    assert_same([again.tokens], truth([old]))

    change(engine, 4, loaded=True)
    saved = engine.metrics()["saved_bytes"]
    for _ in range(2):  # in the first step the workers say that the weights changed
        one(engine, unsaved)
    assert engine.metrics()["saved_bytes"] == saved, "vLLM's own cache has KV of before"
    with pytest.raises(TestbedError, match="not reported"):
        engine.where(unsaved)
    assert engine.ask("reset")
    assert one(engine, new).cached_tokens == CHUNKS * CHUNK_TOKENS, "the same change as before, so the same names"
    run_until_idle(engine)


def test_all_workers_agree_which_weights_they_have(
    start: StartEngine, models: Callable[..., Path], agent_sockets: list[str]
) -> None:
    split: dict[str, Any] = {"tensor_parallel_size": 2}
    engine = start(models(), agent_sockets[0], enable_prefix_caching=False, environment=processors(split), **split)
    prompt = prompt_of(8)
    said = one(engine, prompt).tokens
    for factor, cached_chunks in ((1, CHUNKS), (4, 0), (1, CHUNKS), (1 / 4, CHUNKS)):
        change(engine, factor)
        assert engine.ask("reset")
        result = one(engine, prompt)
        assert result.cached_tokens == cached_chunks * CHUNK_TOKENS, factor
    assert result.tokens == said
    run_until_idle(engine)


def test_rotary_factors_that_follow_the_context_length(
    start: StartEngine, models: Callable[..., Path], agent_sockets: list[str]
) -> None:
    prompt = prompt_of(3)
    for context_tokens in (1024, 4096):
        engine = start(models("phi3"), agent_sockets[0], enable_prefix_caching=False, max_model_len=context_tokens)
        assert one(engine, prompt).cached_tokens == 0, context_tokens
        assert one(engine, prompt).cached_tokens == CHUNKS * CHUNK_TOKENS, context_tokens


def test_sounds_are_what_was_heard_whatever_they_are_called(
    start: StartEngine, models: Callable[..., Path], agent_sockets: list[str]
) -> None:
    """Without caches of its own vLLM numbers sounds, and it takes a client's name for one as given."""
    chance = random.Random(7)
    prompt = [*random_tokens(chance, 160), AUDIO_TOKEN, *random_tokens(chance, 100)]
    one_engine, other = (
        start(models("qwen2audio"), agent_sockets[0], enable_prefix_caching=False, mm_processor_cache_gb=0)
        for _ in range(2)
    )
    heard = {}
    for hertz in (220, 1760):
        heard[hertz] = one(other, prompt, tones=[hertz], kv_transfer_params=NO_LOAD | {"kvcast.no_save": True}).tokens
    assert heard[220] != heard[1760]
    # The sound begins in the third of four whole chunks.
    for engine, hertz, name, chunks in (
        (one_engine, 220, "popular", 0),
        (other, 1760, "popular", 2),
        (other, 220, None, 4),
        (one_engine, 1760, None, 4),
    ):
        named = {"tone_names": [name]} if name else {}
        result = one(engine, prompt, tones=[hertz], **named)
        assert (result.cached_tokens, hertz) == (chunks * CHUNK_TOKENS, hertz)
        assert result.tokens == heard[hertz]


def test_files_that_were_not_loaded_name_nothing(
    start: StartEngine, models: Callable[..., Path], agent_sockets: list[str], folder: Path, first: Engine
) -> None:
    """Beside the safetensors of one model lies another one in PyTorch's format, which is loaded."""
    import torch
    from safetensors.torch import load_file

    prompt = prompt_of(4)
    one(first, prompt)
    place = folder / "two formats" / models().name
    shutil.copytree(models(), place)
    other = make_model(folder / "other weights", "llama", seed=9, **SMALL)
    torch.save(load_file(other / "model.safetensors"), place / "model.pt")
    engine = start(place, agent_sockets[0], enable_prefix_caching=False, load_format="pt")
    result = one(engine, prompt)
    assert result.cached_tokens == 0
    assert result.tokens != one(first, prompt).tokens


def test_means_of_whole_prompts_are_computed_from_whole_prompts(
    start: StartEngine, models: Callable[..., Path], agent_sockets: list[str]
) -> None:
    engine = start(
        models(),
        agent_sockets[0],
        is_named=False,  # it generates nothing
        runner="pooling",
        convert="embed",
        pooler_config={"seq_pooling_type": "MEAN"},
    )
    prompts = [[*prompt_of(5), *prompt_of(seed)[:20]] for seed in (6, 7)]
    found = engine.ask("embed", prompts=prompts)
    assert found == engine.ask("embed", prompts=prompts, salt="of nobody else")
    assert found[0] != found[1]


def test_prompts_that_look_ahead_are_refused(
    start: StartEngine, models: Callable[..., Path], agent_sockets: list[str]
) -> None:
    with pytest.raises(TestbedError, match="its layers keep FullAttentionSpec with non_causal=True") as error:
        start(models("hrm"), agent_sockets[0], load_format="dummy", settings={"weights_digest": "w"})
    assert "\n" not in str(error.value)


def test_nothing_is_left_behind(testbed: Testbed) -> None:
    assert_nothing_left(testbed)
