"""Keys of an engine's chunks by the connector's own classes, from what its workers would say of their caches."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

from kvchunk.ids import ChunkKey
from kvclient.engines.core.head_groups import StageParts
from kvclient.engines.settings import Settings

CHUNK_TOKENS, BLOCK_TOKENS = 64, 16


def keys_of(text: Sequence[int], parts: StageParts, workers: Sequence[Any] | Any) -> list[tuple[ChunkKey, ...]]:
    """Keys of each chunk of a text, part by part, in an engine of one pipeline stage. `workers`: their ShardFacts, or
    those of all."""
    from vllm.config import AttentionConfig

    from kvclient.engines.vllm.chunk_names import ChunkNames
    from kvclient.engines.vllm.facts import CacheGroups

    configuration = SimpleNamespace(to_dict=lambda: {"kv_lora_rank": 512})
    model = SimpleNamespace(
        model="/models/tiny",
        revision=None,
        dtype="bfloat16",
        quantization=None,
        hf_config=configuration,
        multimodal_config=None,
        disable_sliding_window=False,
    )
    config = SimpleNamespace(
        model_config=model,
        cache_config=SimpleNamespace(cache_dtype="auto", enable_prefix_caching=True, kv_sharing_fast_prefill=False),
        parallel_config=SimpleNamespace(tensor_parallel_size=parts.tensor_size, pipeline_parallel_size=1),
        load_config=SimpleNamespace(load_format="auto"),
        attention_config=AttentionConfig(),
        ec_transfer_config=None,
    )
    chosen = Settings(chunk_tokens=CHUNK_TOKENS, weights_digest="w")
    link: Any = SimpleNamespace(away=False)
    names = ChunkNames(config, chosen, CacheGroups(BLOCK_TOKENS, parts=parts), link)
    told = workers if isinstance(workers, Sequence) else [workers] * parts.workers_count
    names.workers_reported({(0, worker): facts for worker, facts in enumerate(told)})
    assert names.keys is not None
    keys = names.keys.of_text(text)
    return list(keys.keys[: keys.chunks_count])
