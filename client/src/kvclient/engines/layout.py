"""The torch side of `kvclient.engines.paged`: byte views of an engine's tensors."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence

import torch

from kvclient.engines.device import DeviceLayers, Staging
from kvclient.engines.paged import HostLayers, PagedLayers

# Leased chunks are read-only memory, of which torch warns once. Copying out of them never writes: warn here, unseen.
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    torch.frombuffer(bytes(1), dtype=torch.uint8)

HEADS_AXIS = -3
"""Of vLLM's caches: (blocks, heads, tokens, numbers), with blocks of a kernel's size behind the first where those are
smaller."""


class LayoutError(ValueError):
    """The cache cannot be copied by pages; one line that names the obstacle."""


def page_view(cache: torch.Tensor, page_bytes: int) -> torch.Tensor:
    """A layer's cache, shape (blocks, ...), as bytes in the order of memory: shape (blocks, page_bytes) where a block's
    page is one run of bytes, else (blocks, ..., run bytes). Strides are those of the cache.

    Raises LayoutError for a page whose numbers do not lie next to each other at all, or that is larger than it may be.
    """
    item_bytes = cache.element_size()
    sizes = [size for _, size in _runs(cache)]
    if math.prod(sizes) * item_bytes > page_bytes:
        raise LayoutError(f"a block has {math.prod(sizes) * item_bytes} bytes, more than its page of {page_bytes}")
    runs = _merged(_runs(cache))
    if runs[-1][0] != 1:
        raise LayoutError(f"the pages of a cache of shape {tuple(cache.shape)} are not contiguous")
    shape = [cache.shape[0], *(size for _, size in runs)]
    strides = [cache.stride(0), *(stride for stride, _ in runs)]
    shape[-1] *= item_bytes
    return torch.tensor([], dtype=torch.uint8, device=cache.device).set_(
        cache.untyped_storage(),
        cache.storage_offset() * item_bytes,
        shape,
        [*(stride * item_bytes for stride in strides[:-1]), 1],
    )


def page_shape(cache: torch.Tensor, groups: int = 1) -> tuple[list[int], list[int]]:
    """Shape and strides, in numbers, of a page that holds one of `groups` groups of heads and nothing else: of an
    engine that has these heads only. The same for every number of blocks, wherever the other groups lie."""
    shape = list(cache.shape[1:])
    if groups > 1:
        shape[HEADS_AXIS] //= groups
    sizes = list(cache.shape[1:])
    strides = list(cache.stride()[1:])
    if groups > 1 or len(_merged(_runs(cache))) > 1:
        expected = 1
        order = sorted(range(len(shape)), key=lambda axis: (strides[axis], sizes[axis]))
        for axis in order:
            strides[axis] = expected
            expected *= shape[axis]
    return shape, strides


def heads_of(cache: torch.Tensor, group: int, groups: int) -> torch.Tensor:
    """Of a layer's cache, shape (blocks, ..., heads, tokens, numbers), group `group` of `groups` of its heads. Raises
    LayoutError for one that is no such cache."""
    if groups == 1:
        return cache
    if cache.dim() < 4 or cache.shape[HEADS_AXIS] % groups:
        raise LayoutError(f"a cache of shape {tuple(cache.shape)} has no {groups} groups of heads")
    heads = cache.shape[HEADS_AXIS] // groups
    return cache.narrow(HEADS_AXIS, group * heads, heads)


def _runs(cache: torch.Tensor) -> list[tuple[int, int]]:
    """(stride, size) of the axes of a page, in numbers, the outermost first."""
    axes = zip(cache.stride()[1:], cache.shape[1:], strict=True)
    return sorted(((stride, size) for stride, size in axes if size > 1), reverse=True) or [(1, 1)]


def _merged(runs: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """The same numbers in as few axes as there can be."""
    made = [runs[-1]]
    for stride, size in reversed(runs[:-1]):
        inner_stride, inner_size = made[-1]
        if stride == inner_stride * inner_size:
            made[-1] = (inner_stride, inner_size * size)
        else:
            made.append((stride, size))
    return made[::-1]


def paged_layers(views: Sequence[torch.Tensor], staging: Staging | None = None) -> PagedLayers:
    """The copier for the memory that the layers are in; `staging`: of a device."""
    if views[0].device.type == "cpu":
        return HostLayers([view.numpy() for view in views])
    return DeviceLayers(views, staging)
