"""FlashInfer's paged KV caches, in every layout that its kernels take, as parts that chunks are copied from and to.

FlashInfer's documentation (KV-Cache Layout) names two orders of a page's numbers and two ways to keep keys and values:

    NHD   (pages, 2, page size, heads, dim)  or  keys and values apart, (pages, page size, heads, dim) each
    HND   (pages, 2, heads, page size, dim)  or  keys and values apart, (pages, heads, page size, dim) each

A chunk has one order whatever the cache has, so that engines of different layouts share chunks: layer by layer the
keys of all its pages, then their values, each page as NHD.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import TypeAlias

import torch

from kvclient.engines.device import DeviceLayers
from kvclient.engines.layout import LayoutError
from kvclient.engines.paged import PagedLayers


class KvLayout(enum.StrEnum):
    """The order of a page's numbers; values are FlashInfer's `kv_layout`."""

    NHD = "NHD"
    HND = "HND"


LayerCache: TypeAlias = torch.Tensor | tuple[torch.Tensor, torch.Tensor]
"""What FlashInfer calls `paged_kv_cache`, of one layer."""


def parts_of(caches: Sequence[LayerCache], layout: KvLayout) -> list[torch.Tensor]:
    """Keys of layer 0, its values, keys of layer 1, ...: views of shape (pages, page size, heads, dim), nothing copied.

    Raises LayoutError for caches that have not FlashInfer's shapes, or not all the same.
    """
    parts: list[torch.Tensor] = []
    for layer, cache in enumerate(caches):
        if isinstance(cache, torch.Tensor):
            if cache.dim() != 5 or cache.shape[1] != 2:
                raise LayoutError(
                    f"the cache of layer {layer} has shape {tuple(cache.shape)}, not (pages, 2, ., ., dim): "
                    "give keys and values apart as a pair"
                )
            sides = cache.unbind(1)
        else:
            sides = cache
        for side in sides:
            if side.dim() != 4:
                raise LayoutError(
                    f"the cache of layer {layer} has a side of shape {tuple(side.shape)}, not 4 dimensions"
                )
            parts.append(side.transpose(1, 2) if layout is KvLayout.HND else side)
    kinds = {(part.shape, part.dtype, part.device) for part in parts}
    if len(kinds) != 1:
        raise LayoutError(f"the caches differ: {sorted(map(str, kinds))}; give those of one group of layers")
    return parts


def paged_caches(caches: Sequence[LayerCache], layout: KvLayout | str) -> PagedLayers:
    """The copier between these caches and chunks, on the CPU or on a GPU. Its `layers` are parts: 2 i and 2 i + 1 are
    the keys and values of layer i. Raises LayoutError as `parts_of`, ValueError for an unknown layout."""
    return DeviceLayers(parts_of(caches, KvLayout(layout)))
