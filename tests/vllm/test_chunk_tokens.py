"""The size of a chunk where nobody says, by vLLM's own descriptions of caches."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from kvclient.engines.settings import Settings, SettingsError

if TYPE_CHECKING:
    from vllm.v1.kv_cache_interface import FullAttentionSpec

LAYERS, HEADS = 32, 8
BLOCK_TOKENS = 16


def chunk_tokens(spec: Any, *, latent: bool = False, layers_here: int = LAYERS, **settings: Any) -> int:
    """Of an engine, as one of its workers finds it, which has so many of the layers."""
    from vllm.v1.kv_cache_interface import KVCacheConfig, KVCacheGroupSpec

    from kvclient.engines.vllm.facts import check_engine

    model = SimpleNamespace(
        use_mla=latent, get_total_num_kv_heads=lambda: HEADS, get_total_num_hidden_layers=lambda: LAYERS
    )
    config = SimpleNamespace(
        parallel_config=SimpleNamespace(tensor_parallel_size=1),
        model_config=model,
        scheduler_config=SimpleNamespace(enable_chunked_prefill=True),
    )
    group = KVCacheGroupSpec([f"layer.{number}" for number in range(layers_here)], spec)
    caches = KVCacheConfig(num_blocks=8, kv_cache_tensors=[], kv_cache_groups=[group])
    found, groups = check_engine(config, caches, Settings(**settings))
    assert groups.block_tokens == BLOCK_TOKENS
    return found.chunk_tokens


def heads_here(heads: int) -> FullAttentionSpec:
    import torch
    from vllm.v1.kv_cache_interface import FullAttentionSpec

    return FullAttentionSpec(block_size=BLOCK_TOKENS, num_kv_heads=heads, head_size=128, dtype=torch.bfloat16)


@pytest.mark.parametrize("heads", [8, 4, 1])
@pytest.mark.parametrize("layers_here", [LAYERS, LAYERS // 4])
def test_engines_find_the_same_however_they_split_the_model(heads: int, layers_here: int) -> None:
    """Llama 3 8B with 1, 2 and 8 tensor-parallel ranks, and in a pipeline of four."""
    assert chunk_tokens(heads_here(heads), layers_here=layers_here) == 64


def test_latent_attention_keeps_one_head_for_all() -> None:
    import torch
    from vllm.v1.kv_cache_interface import MLAAttentionSpec

    spec = MLAAttentionSpec(block_size=BLOCK_TOKENS, num_kv_heads=1, head_size=576, dtype=torch.bfloat16)
    assert chunk_tokens(spec, latent=True) == 240


def test_what_was_configured_stays() -> None:
    assert chunk_tokens(heads_here(8), chunk_tokens=256) == 256
    with pytest.raises(SettingsError, match="use 112"):
        chunk_tokens(heads_here(8), chunk_tokens=100)
