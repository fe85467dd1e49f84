"""Copies between a device's paged cache and chunks: one copy over the bus and one kernel for each chunk.

The host never waits for the engine's stream: copies wait, on their own streams, for an event on it, and a copy is over
when its stream says so. On the CPU (for tests) the same code runs at once.
"""

from __future__ import annotations

import functools
import importlib.util
import math
import os
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any, Final

import torch

from kvclient.engines.core.runs import LayerPages, run_table
from kvclient.engines.paged import Buffer, Span, spans_of
from kvclient.engines.pinned import RegisteredMemory

_INTEGERS: Final = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
"""Numbers are copied as integers of their size, so that no kernel needs to know the type of the cache."""


class Lane:
    """What one copy uses at a time: a stream, and memory for a chunk on the device and, once needed, on the host."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self.is_cuda = device.type == "cuda"
        self.stream: Any = torch.cuda.Stream(device) if self.is_cuda else None
        self._staging = torch.empty(0, dtype=torch.uint8, device=device)
        self._bounce = torch.empty(0, dtype=torch.uint8)
        self._ids = torch.empty(0, dtype=torch.long)

    def staging(self, size_bytes: int) -> torch.Tensor:
        """On the device; its content is lost with the next call."""
        if self._staging.nbytes < size_bytes:
            self._staging = torch.empty(size_bytes, dtype=torch.uint8, device=self._device)
        return self._staging[:size_bytes]

    def bounce(self, size_bytes: int) -> torch.Tensor:
        """On the host, pinned."""
        if self._bounce.nbytes < size_bytes:
            self._bounce = torch.empty(size_bytes, dtype=torch.uint8, pin_memory=self.is_cuda)
        return self._bounce[:size_bytes]

    def blocks(self, ids: Sequence[int]) -> torch.Tensor:
        """Numbers of blocks, on the device."""
        if self._ids.numel() < len(ids):
            self._ids = torch.empty(len(ids), dtype=torch.long, pin_memory=self.is_cuda)
        pinned = self._ids[: len(ids)]
        pinned[:] = torch.tensor(ids, dtype=torch.long)
        return pinned.to(self._device, non_blocking=True)


class Staging:
    """Lanes of one worker, for all of its layers."""

    def __init__(
        self,
        device: torch.device,
        *,
        lanes: int = 1,
        memory: RegisteredMemory | None = None,
    ) -> None:
        """`lanes`: copies at a time. `memory`: where copies go straight from and to chunks."""
        self._memory = memory
        self._free = deque(Lane(device) for _ in range(lanes))
        self._lock = threading.Condition()

    def prepare(self, chunk_bytes: int) -> int:
        """Take all memory for chunks of this size now, before anything is copied. Returns its bytes on the device."""
        for lane in self._free:
            lane.staging(chunk_bytes)
        return chunk_bytes * len(self._free)

    @contextmanager
    def lane(self, after: Any) -> Iterator[Lane]:
        """A lane of one's own, its stream behind a mark. What was submitted there is done when this is left."""
        with self._lock:
            self._lock.wait_for(lambda: self._free)
            lane = self._free.popleft()
        try:
            with torch.cuda.stream(lane.stream) if lane.is_cuda else nullcontext():
                if after is not None:
                    lane.stream.wait_event(after)
                try:
                    yield lane
                finally:
                    # Also after an error: submitted copies use memory that is about to be given back.
                    if lane.is_cuda:
                        lane.stream.synchronize()
        finally:
            with self._lock:
                self._free.append(lane)
                self._lock.notify()

    def use(self, content: torch.Tensor) -> Any:
        """A context: whether the device copies from and to these bytes by itself."""
        return nullcontext(False) if self._memory is None else self._memory.use(content.data_ptr(), content.nbytes)


class DeviceLayers:
    """Layers in a device's memory."""

    def __init__(self, views: Sequence[torch.Tensor], staging: Staging | None = None) -> None:
        """`views`: of each layer, shape (blocks, ...), with any strides, all on one device: `page_view` where pages are
        bytes. A chunk has a page's numbers in the order of the view's dimensions. `staging`: None: one of its own."""
        self._device = views[0].device
        self._staging = staging or Staging(self._device)
        self._spans = spans_of([math.prod(view.shape[1:]) * view.element_size() for view in views])
        self._bytes = sum(span.page_bytes for span in self._spans)
        self._views = [view.view(_INTEGERS[view.element_size()]) for view in views]
        kernel = _kernel(self._device)
        self._copy = _RunCopies(views, kernel) if kernel is not None else _TorchCopies(self._views, self._spans)

    @property
    def layers_count(self) -> int:
        return len(self._views)

    @property
    def by_kernel(self) -> bool:
        """Whether one kernel copies all layers."""
        return isinstance(self._copy, _RunCopies)

    def chunk_bytes(self, blocks_count: int) -> int:
        """See PagedLayers."""
        return self._bytes * blocks_count

    def mark(self) -> Any:
        """See PagedLayers."""
        if self._device.type != "cuda":
            return None
        event = torch.cuda.Event()
        event.record(torch.cuda.current_stream(self._device))
        return event

    def gather(self, block_ids: Sequence[int], chunk: Buffer, after: Any = None) -> None:
        """See PagedLayers. The chunk is written when this returns."""
        content = torch.frombuffer(chunk, dtype=torch.uint8)
        with self._staging.use(content) as is_registered, self._staging.lane(after) as lane:
            staged = lane.staging(content.nbytes)
            self._copy(lane.blocks(block_ids), staged, len(block_ids), 0, None, to_cache=False)
            landing = lane.bounce(content.nbytes) if lane.is_cuda and not is_registered else content
            landing.copy_(staged, non_blocking=True)
            if landing is not content:
                lane.stream.synchronize()
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
        wanted = slice(0, content.nbytes)
        if layer is not None:
            span = self._spans[layer]
            wanted = slice(span.start * blocks_count, (span.start + span.page_bytes) * blocks_count)
        with self._staging.use(content) as is_registered, self._staging.lane(after) as lane:
            source = content[wanted]
            if lane.is_cuda and not is_registered:
                source = lane.bounce(source.nbytes).copy_(source)
            staged = lane.staging(content.nbytes)
            staged[wanted].copy_(source, non_blocking=True)
            self._copy(lane.blocks(block_ids), staged, blocks_count, skip_blocks, layer, to_cache=True)


class _RunCopies:
    """By one kernel."""

    def __init__(self, views: Sequence[torch.Tensor], kernel: Callable[..., None]) -> None:
        self._kernel = kernel
        self._table = run_table([_pages(view) for view in views])
        self._rows = torch.tensor(self._table.rows, dtype=torch.long, device=views[0].device)

    def __call__(
        self,
        blocks: torch.Tensor,
        chunk: torch.Tensor,
        blocks_count: int,
        skip_blocks: int,
        layer: int | None,
        *,
        to_cache: bool,
    ) -> None:
        rows = self._table.rows_of(layer)
        self._kernel(
            self._rows[rows.start : rows.stop],
            blocks,
            chunk,
            blocks_in_chunk=blocks_count,
            skipped_blocks=skip_blocks,
            word_bytes=self._table.word_bytes,
            run_words_max=self._table.run_words_max,
            to_cache=to_cache,
        )


class _TorchCopies:
    """By PyTorch's own operations: one for each layer."""

    def __init__(self, views: Sequence[torch.Tensor], spans: Sequence[Span]) -> None:
        self._views = views
        self._spans = spans

    def __call__(
        self,
        blocks: torch.Tensor,
        chunk: torch.Tensor,
        blocks_count: int,
        skip_blocks: int,
        layer: int | None,
        *,
        to_cache: bool,
    ) -> None:
        for index in range(len(self._views)) if layer is None else (layer,):
            view, span = self._views[index], self._spans[index]
            part = chunk[span.start * blocks_count : (span.start + span.page_bytes) * blocks_count]
            pages = part.view(view.dtype).view(blocks_count, *view.shape[1:])
            if to_cache:
                view.index_copy_(0, blocks, pages[skip_blocks : skip_blocks + blocks.shape[0]])
            else:
                torch.index_select(view, 0, blocks, out=pages)


def _pages(view: torch.Tensor) -> LayerPages:
    """In bytes; axes that follow on each other in memory as one run."""
    size = view.element_size()
    run, axes = size, list(zip(view.stride()[1:], view.shape[1:], strict=True))
    while axes and (axes[-1][0] * size == run or axes[-1][1] == 1):
        run *= axes.pop()[1]
    strides = tuple((stride * size, count) for stride, count in axes)
    return LayerPages(view.data_ptr(), view.stride(0) * size, strides, run)


@functools.cache
def _kernel(device: torch.device) -> Callable[..., None] | None:
    """The kernel, where one can run: with Triton, on a GPU, or anywhere by its interpreter."""
    if importlib.util.find_spec("triton") is None:
        return None
    if device.type != "cuda" and os.environ.get("TRITON_INTERPRET") != "1":
        return None
    from kvclient.engines.kernels import copy_runs

    return copy_runs
