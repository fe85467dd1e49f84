"""The torch side of `kvclient.engines.paged`: byte views of an engine's tensors, and copies on a device."""

from __future__ import annotations

import math
import threading
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from kvclient.engines.paged import Buffer, HostLayers, PagedLayers, Span, spans_of

# Leased chunks are read-only memory, of which torch warns once. Copying out of them never writes: warn here, unseen.
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    torch.frombuffer(bytes(1), dtype=torch.uint8)

WORD_BYTES = 8
HEADS_AXIS = -3
"""Of vLLM's caches: (blocks, heads, tokens, numbers), with blocks of a kernel's size behind the first where those are
smaller."""
_WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
"""Numbers are copied as integers of their size, so that no kernel needs to know the type of the cache."""


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


class DeviceLayers:
    """Layers in a device's memory: through pinned staging memory, on streams of their own.

    The host never waits for the engine's stream: copies wait, on their own streams, for an event on it, and a copy is
    over when its stream says so. On the CPU (for tests) everything happens at once.
    """

    def __init__(self, views: Sequence[torch.Tensor]) -> None:
        """`views`: of each layer, shape (blocks, ...), with any strides, all on one device: `page_view` where pages are
        bytes. A chunk has a page's numbers in the order of the view's dimensions."""
        self._device = views[0].device
        self._spans = spans_of([math.prod(view.shape[1:]) * view.element_size() for view in views])
        self._bytes = sum(span.page_bytes for span in self._spans)
        self._layers = [view.view(_WORDS[view.element_size()]) for view in views]
        # Kernels move one element per thread: eight bytes at a time where pages are bytes and allow it.
        if all(_is_aligned(view, WORD_BYTES) for view in views):
            self._layers = [view.view(torch.int64) for view in views]
        self._is_cuda = self._device.type == "cuda"
        self._own = threading.local()

    @property
    def layers_count(self) -> int:
        return len(self._layers)

    def chunk_bytes(self, blocks_count: int) -> int:
        """See PagedLayers."""
        return self._bytes * blocks_count

    def mark(self) -> Any:
        """See PagedLayers."""
        if not self._is_cuda:
            return None
        event = torch.cuda.Event()
        event.record(torch.cuda.current_stream(self._device))
        return event

    @contextmanager
    def _stream(self, after: Any) -> Iterator[None]:
        """This thread's own stream, behind a mark."""
        if not self._is_cuda:
            yield
            return
        stream = getattr(self._own, "stream", None)
        if stream is None:
            stream = self._own.stream = torch.cuda.Stream(self._device)
        with torch.cuda.stream(stream):
            if after is not None:
                stream.wait_event(after)
            try:
                yield
            finally:
                # Also after an error: submitted copies use memory that is about to be given back.
                stream.synchronize()

    def gather(self, block_ids: Sequence[int], chunk: Buffer, after: Any = None) -> None:
        """See PagedLayers. The chunk is written when this returns."""
        count = len(block_ids)
        content = torch.frombuffer(chunk, dtype=torch.uint8)
        landing = torch.empty_like(content, pin_memory=True) if self._is_cuda else content
        with self._stream(after):
            ids = torch.tensor(block_ids, dtype=torch.long).to(self._device, non_blocking=True)
            staging = torch.empty(self._bytes * count, dtype=torch.uint8, device=self._device)
            for layer, span in zip(self._layers, self._spans, strict=True):
                torch.index_select(layer, 0, ids, out=_as_pages(self._part(staging, span, count), layer))
            landing.copy_(staging, non_blocking=True)
        if landing is not content:
            content.copy_(landing)

    def scatter(
        self,
        chunk: Buffer,
        blocks_count: int,
        skip_blocks: int,
        block_ids: Sequence[int],
        layer: int | None = None,
        after: Any = None,
    ) -> None:
        """See PagedLayers. The blocks are written when this returns."""
        content = torch.frombuffer(chunk, dtype=torch.uint8)
        with self._stream(after):
            ids = torch.tensor(block_ids, dtype=torch.long).to(self._device, non_blocking=True)
            for index in range(len(self._layers)) if layer is None else (layer,):
                part = self._part(content, self._spans[index], blocks_count)[skip_blocks : skip_blocks + len(block_ids)]
                if self._is_cuda:
                    part = part.pin_memory().to(self._device, non_blocking=True)
                self._layers[index].index_copy_(0, ids, _as_pages(part, self._layers[index]))

    @staticmethod
    def _part(content: torch.Tensor, span: Span, blocks_count: int) -> torch.Tensor:
        start = span.start * blocks_count
        return content[start : start + span.page_bytes * blocks_count].view(blocks_count, span.page_bytes)


def _as_pages(part: torch.Tensor, layer: torch.Tensor) -> torch.Tensor:
    """Pages as bytes, shape (blocks, page_bytes), as pages of the layer."""
    return part.view(layer.dtype).view(part.shape[0], *layer.shape[1:])


def _is_aligned(view: torch.Tensor, word_bytes: int) -> bool:
    if view.dtype != torch.uint8:
        return False
    numbers = (view.shape[-1], *view.stride()[:-1], view.storage_offset(), view.data_ptr())
    return all(number % word_bytes == 0 for number in numbers)


def paged_layers(views: Sequence[torch.Tensor]) -> PagedLayers:
    """The copier for the memory that the layers are in."""
    return HostLayers([view.numpy() for view in views]) if views[0].device.type == "cpu" else DeviceLayers(views)
