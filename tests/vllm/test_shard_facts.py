"""What a worker says of its cache, by vLLM's own descriptions, for attention that no processor of tests runs."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

BLOCKS, BLOCK_TOKENS, CHUNK_BLOCKS = 8, 16, 4
NAMES = ["layer.0", "layer.1"]


def kv_layout(spec: Any, shape: tuple[int, ...], backend: str) -> str:
    """How the numbers of a chunk lie, of two layers whose caches have this shape."""
    import torch
    from vllm.model_executor.layers.attention_layer_base import AttentionLayerBase
    from vllm.v1.kv_cache_interface import KVCacheConfig, KVCacheGroupSpec

    from kvclient.engines.vllm.facts import CacheGroups, shard_facts

    class Layer(AttentionLayerBase):  # type: ignore[misc]
        """Only a name."""

        def get_attn_backend(self) -> Any:
            return SimpleNamespace(get_name=lambda: backend)

        def get_kv_cache_spec(self, vllm_config: Any) -> Any:
            return spec

    config = SimpleNamespace(
        compilation_config=SimpleNamespace(static_forward_context={name: Layer() for name in NAMES})
    )
    caches = KVCacheConfig(num_blocks=BLOCKS, kv_cache_tensors=[], kv_cache_groups=[KVCacheGroupSpec(NAMES, spec)])
    tensors = {name: torch.zeros(shape, dtype=torch.bfloat16) for name in NAMES}
    chunk_bytes = len(NAMES) * CHUNK_BLOCKS * spec.page_size_bytes
    groups = CacheGroups(BLOCK_TOKENS)
    return shard_facts(config, caches, tensors, chunk_bytes, groups).kv_layout


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        ((BLOCKS, 2, BLOCK_TOKENS, 4, 32), "bf16.l2.b4.p2.t16.h4.d32"),
        ((BLOCKS, 2, 4, BLOCK_TOKENS, 32), "bf16.l2.b4.p2.h4.t16.d32"),
    ],
)
def test_full_attention_on_a_gpu(shape: tuple[int, ...], expected: str) -> None:
    import torch
    from vllm.v1.kv_cache_interface import FullAttentionSpec

    spec = FullAttentionSpec(block_size=BLOCK_TOKENS, num_kv_heads=4, head_size=32, dtype=torch.bfloat16)
    assert kv_layout(spec, shape, "FLASH_ATTN") == expected
    assert kv_layout(spec, shape, "CPU_ATTN") == "", "its keys are packed for the instruction set"


def test_latent_attention_has_one_head() -> None:
    import torch
    from vllm.v1.kv_cache_interface import MLAAttentionSpec

    spec = MLAAttentionSpec(block_size=BLOCK_TOKENS, num_kv_heads=1, head_size=576, dtype=torch.bfloat16)
    assert kv_layout(spec, (BLOCKS, BLOCK_TOKENS, 576), "FLASHMLA") == "bf16.l2.b4.t16.d576"
