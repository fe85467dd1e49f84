"""States of the kinds of recurrent layers that vLLM has no kernels for on CPUs: copied as vLLM lays them out."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest

BLOCKS = 6
PADDING_BYTES = 256
KINDS: dict[str, tuple[tuple[tuple[int, ...], str], ...]] = {
    "Mamba (Jamba)": (((3, 512), "bfloat16"), ((512, 16), "float32")),
    "Mamba 2 (GraniteMoeHybrid, Falcon-H1)": (((3, 576), "bfloat16"), ((8, 64, 32), "bfloat16")),
    "linear attention (MiniMax)": (((8, 32, 32), "float32"),),
    "Kimi linear": (((3, 256), "bfloat16"), ((3, 256), "bfloat16"), ((3, 256), "bfloat16"), ((2, 64, 64), "float32")),
}
"""Shapes and types of the states of a layer."""


def config_of(kind: str) -> Any:
    """vLLM's configuration of a cache with one group of layers with attention and one of two recurrent layers."""
    import torch
    from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec, MambaSpec

    shapes, dtypes = zip(*KINDS[kind], strict=True)
    made = {
        "block_size": 32,
        "shapes": shapes,
        "dtypes": tuple(getattr(torch, name) for name in dtypes),
        "mamba_cache_mode": "align",
    }
    padded = MambaSpec(**made).page_size_bytes + PADDING_BYTES
    attention = FullAttentionSpec(block_size=32, num_kv_heads=2, head_size=64, dtype=torch.bfloat16)
    groups = [
        KVCacheGroupSpec(["attention"], attention),
        KVCacheGroupSpec(["first", "second"], MambaSpec(**made, page_size_padded=padded)),
    ]
    return KVCacheConfig(num_blocks=BLOCKS, kv_cache_tensors=[], kv_cache_groups=groups)


def caches_of(spec: Any, seed: int) -> tuple[Any, dict[str, list[Any]]]:
    """(pages of both layers, shape (layers, blocks, page bytes); their states): one behind the other in each page."""
    import torch

    torch.manual_seed(seed)
    pages = torch.randint(0, 256, (2, BLOCKS, spec.page_size_bytes), dtype=torch.uint8)
    found: dict[str, list[Any]] = {}
    for layer, name in enumerate(("first", "second")):
        start_bytes = layer * BLOCKS * spec.page_size_bytes
        for shape, dtype in zip(spec.shapes, spec.dtypes, strict=True):
            size = dtype.itemsize
            inner = [math.prod(shape[axis + 1 :]) for axis in range(len(shape))]
            whole = pages.view(-1).view(dtype)
            stride = (spec.page_size_bytes // size, *inner)
            found.setdefault(name, []).append(whole.as_strided((BLOCKS, *shape), stride, start_bytes // size))
            start_bytes += math.prod(shape) * size
    return pages, found


@pytest.mark.parametrize("kind", KINDS)
def test_a_state_is_all_of_a_page_but_its_padding(kind: str) -> None:
    import torch

    from kvclient.engines.layout import paged_layers
    from kvclient.engines.paged import StateLayers
    from kvclient.engines.vllm.facts import CacheGroups, state_views

    config = config_of(kind)
    spec = config.kv_cache_groups[1].kv_cache_spec
    groups = CacheGroups(32, (0,), (), (1,))
    assert groups.is_hybrid

    def layers_of(caches: dict[str, list[Any]]) -> StateLayers:
        return StateLayers([paged_layers(views) for views in state_views(config, caches, groups)])

    source, made = caches_of(spec, 1)
    target, into = caches_of(spec, 2)
    before = target.clone()
    state = bytearray(layers_of(made).state_bytes)
    content_bytes = spec.page_size_bytes - PADDING_BYTES
    assert len(state) == 2 * content_bytes
    layers_of(made).gather((4,), state)
    assert bytes(state) == source[:, 4, :content_bytes].numpy().tobytes()
    layers_of(into).scatter(bytes(state), (1,))
    for layer, block in itertools.product(range(2), range(BLOCKS)):
        expected = before[layer, block].clone()
        if block == 1:
            expected[:content_bytes] = source[layer, 4, :content_bytes]
        assert torch.equal(target[layer, block], expected), (layer, block)
