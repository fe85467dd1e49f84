"""How vLLM's attention on CPUs lays a page out: it packs keys for the instruction set, so it is made to write one."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from kvchunk.kv_layout import KvLayout
from kvclient.engines.core.kv_axes import ELEMENTS


def cpu_layout(caches: Sequence[torch.Tensor], isas: set[str], chunk_blocks: int, groups: int) -> KvLayout | None:
    """Of chunks of `chunk_blocks` blocks with one of `groups` groups of heads; None: not known.

    `caches`: of all layers, each (blocks, heads, tokens, keys' and values' numbers); `isas`: as the layers name theirs.
    """
    shapes = {(cache.shape[1:], cache.stride()[1:], cache.dtype) for cache in caches}
    if len(shapes) > 1 or len(isas) != 1 or caches[0].dim() != 4 or not caches[0][0].is_contiguous():
        return None
    _, heads, tokens, both = caches[0].shape
    element = ELEMENTS.get(str(caches[0].dtype))
    if element is None or not _keys_lie_across(tokens, both // 2, caches[0].dtype, isas.copy().pop()):
        return None
    sizes = {"l": len(caches), "b": chunk_blocks, "h": heads // groups, "p": 2, "t": tokens, "d": both // 2}
    return KvLayout(element, tuple(sizes.items()), keys_across=True)


def _keys_lie_across(tokens: int, numbers: int, dtype: torch.dtype, isa: str) -> bool:
    """Whether of a head's page, first come keys, number by number, then values, token by token."""
    from vllm import _custom_ops as ops

    page = torch.zeros((1, 1, 2 * tokens, numbers), dtype=dtype)
    keys, values = page.chunk(2, dim=2)
    token, number = torch.meshgrid(torch.arange(tokens), torch.arange(numbers), indexing="ij")
    # Twice: no type of 16 bits could count all places.
    for count in (token % 128, number % 128):
        given = count.to(dtype).unsqueeze(1).contiguous()
        ops.cpu_attn_reshape_and_cache(given, given, keys, values, torch.arange(tokens), isa)
        across = count.T.reshape(tokens, numbers)
        if not (torch.equal(keys[0, 0], across.to(dtype)) and torch.equal(values[0, 0], count.to(dtype))):
            return False
    return True
