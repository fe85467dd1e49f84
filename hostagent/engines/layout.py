"""Copies between an engine's paged KV cache and chunks: blocks here and there in memory <-> one run of bytes.

A chunk is layer by layer, in each layer block by block, in each block the page as the engine has it:

    layer 0: block 0 page | block 1 page | ...    layer 1: block 0 page | ...

so that a layer can be used as soon as its part is there. Pages are opaque bytes; what they mean is bound into the keys.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt
import torch

Buffer: TypeAlias = memoryview | bytearray | bytes

# Chunks are lent read-only; copying out of them never writes.
warnings.filterwarnings("ignore", message="The given buffer is not writable")


class LayoutError(ValueError):
    """The cache cannot be copied by pages; one line that names what is in the way."""


def page_view(cache: torch.Tensor, page_bytes: int) -> torch.Tensor:
    """A layer's cache, shape (blocks, ...), as bytes: shape (blocks, page_bytes), block stride as in memory.

    Raises LayoutError when a block's page is not one run of bytes.
    """
    item_bytes = cache.element_size()
    runs = sorted((stride, size) for size, stride in zip(cache.shape[1:], cache.stride()[1:], strict=True) if size > 1)
    expected = 1
    for stride, size in runs:
        if stride != expected:
            raise LayoutError(f"the pages of a cache of shape {tuple(cache.shape)} are not contiguous")
        expected *= size
    if expected * item_bytes > page_bytes:
        raise LayoutError(f"a block has {expected * item_bytes} bytes, more than its page of {page_bytes}")
    return torch.tensor([], dtype=torch.uint8, device=cache.device).set_(
        cache.untyped_storage(),
        cache.storage_offset() * item_bytes,
        (cache.shape[0], expected * item_bytes),
        (cache.stride(0) * item_bytes, 1),
    )


class PagedLayers(Protocol):
    """A worker's layers. Threads may copy at the same time, as long as their blocks differ."""

    @property
    def layers_count(self) -> int: ...

    def chunk_bytes(self, blocks_count: int) -> int:
        """Bytes of a chunk of so many blocks."""
        ...

    def mark(self) -> Any:
        """A point in the engine's work of the calling thread; `gather` copies what had been submitted by then."""
        ...

    def gather(self, block_ids: Sequence[int], chunk: Buffer, after: Any = None) -> None:
        """Paged cache -> chunk (writable, `chunk_bytes(len(block_ids))`), as it is `after` a mark."""
        ...

    def scatter(
        self, chunk: Buffer, blocks_count: int, skip_blocks: int, block_ids: Sequence[int], layer: int | None = None
    ) -> None:
        """Chunk of `blocks_count` blocks -> paged cache: its blocks from `skip_blocks` on into `block_ids`.

        One layer, or all of them.
        """
        ...


@dataclass(frozen=True, slots=True)
class _Span:
    start: int
    page_bytes: int


def _spans(pages: Sequence[int]) -> list[_Span]:
    """Where each layer's part begins in a chunk of one block; starts scale with the number of blocks."""
    spans, start = [], 0
    for page_bytes in pages:
        spans.append(_Span(start, page_bytes))
        start += page_bytes
    return spans


class HostLayers:
    """Layers in host memory: rows of bytes, copied by numpy, which lets go of nothing and copies at memory speed."""

    def __init__(self, views: Sequence[torch.Tensor]) -> None:
        """`views`: `page_view` of each layer."""
        self._layers: list[npt.NDArray[np.uint8]] = [view.numpy() for view in views]
        self._spans = _spans([layer.shape[1] for layer in self._layers])
        self._bytes = sum(span.page_bytes for span in self._spans)

    @property
    def layers_count(self) -> int:
        return len(self._layers)

    def chunk_bytes(self, blocks_count: int) -> int:
        """See PagedLayers."""
        return self._bytes * blocks_count

    def mark(self) -> None:
        """What the host has computed is there: nothing to wait for."""

    def gather(self, block_ids: Sequence[int], chunk: Buffer, after: Any = None) -> None:
        """See PagedLayers."""
        content = np.frombuffer(chunk, dtype=np.uint8)
        ids = np.asarray(block_ids, dtype=np.intp)
        for layer, span in zip(self._layers, self._spans, strict=True):
            np.take(layer, ids, axis=0, out=_part(content, span, len(ids)), mode="clip")

    def scatter(
        self, chunk: Buffer, blocks_count: int, skip_blocks: int, block_ids: Sequence[int], layer: int | None = None
    ) -> None:
        """See PagedLayers."""
        content = np.frombuffer(chunk, dtype=np.uint8)
        ids = np.asarray(block_ids, dtype=np.intp)
        for index in range(len(self._layers)) if layer is None else (layer,):
            part = _part(content, self._spans[index], blocks_count)
            self._layers[index][ids] = part[skip_blocks : skip_blocks + len(ids)]


def _part(content: npt.NDArray[np.uint8], span: _Span, blocks_count: int) -> npt.NDArray[np.uint8]:
    start = span.start * blocks_count
    return content[start : start + span.page_bytes * blocks_count].reshape(blocks_count, span.page_bytes)


class DeviceLayers:
    """Layers in a device's memory: through pinned staging memory, on streams of their own.

    The engine's stream is never waited for by the host: a copy out waits for an event on its own stream, and a copy
    is over when its stream says so. On the CPU (for tests) everything happens at once.
    """

    def __init__(self, views: Sequence[torch.Tensor]) -> None:
        """`views`: `page_view` of each layer, all on one device."""
        self._layers = list(views)
        self._device = views[0].device
        self._spans = _spans([view.shape[1] for view in views])
        self._bytes = sum(span.page_bytes for span in self._spans)
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
    def _stream(self, after: Any = None) -> Iterator[None]:
        """This thread's own stream."""
        if not self._is_cuda:
            yield
            return
        stream = getattr(self._own, "stream", None)
        if stream is None:
            stream = self._own.stream = torch.cuda.Stream(self._device)
        with torch.cuda.stream(stream):
            if after is not None:
                stream.wait_event(after)
            yield

    def gather(self, block_ids: Sequence[int], chunk: Buffer, after: Any = None) -> None:
        """See PagedLayers."""
        count = len(block_ids)
        content = torch.frombuffer(chunk, dtype=torch.uint8)
        with self._stream(after):
            ids = torch.tensor(block_ids, dtype=torch.long).to(self._device, non_blocking=True)
            staging = torch.empty(self._bytes * count, dtype=torch.uint8, device=self._device)
            for layer, span in zip(self._layers, self._spans, strict=True):
                torch.index_select(layer, 0, ids, out=self._part(staging, span, count))
            if self._is_cuda:
                pinned = torch.empty(content.shape, dtype=torch.uint8, pin_memory=True)
                pinned.copy_(staging, non_blocking=True)
                torch.cuda.current_stream(self._device).synchronize()
                staging = pinned
            content.copy_(staging)

    def scatter(
        self, chunk: Buffer, blocks_count: int, skip_blocks: int, block_ids: Sequence[int], layer: int | None = None
    ) -> None:
        """See PagedLayers. The blocks are written when this returns."""
        content = torch.frombuffer(chunk, dtype=torch.uint8)
        with self._stream():
            ids = torch.tensor(block_ids, dtype=torch.long).to(self._device, non_blocking=True)
            for index in range(len(self._layers)) if layer is None else (layer,):
                part = self._part(content, self._spans[index], blocks_count)[skip_blocks : skip_blocks + len(block_ids)]
                if self._is_cuda:
                    part = part.pin_memory().to(self._device, non_blocking=True)
                self._layers[index].index_copy_(0, ids, part)
            if self._is_cuda:
                torch.cuda.current_stream(self._device).synchronize()

    @staticmethod
    def _part(content: torch.Tensor, span: _Span, blocks_count: int) -> torch.Tensor:
        start = span.start * blocks_count
        return content[start : start + span.page_bytes * blocks_count].view(blocks_count, span.page_bytes)


def paged_layers(views: Sequence[torch.Tensor]) -> PagedLayers:
    """The copier for where the layers are."""
    return HostLayers(views) if views[0].device.type == "cpu" else DeviceLayers(views)
