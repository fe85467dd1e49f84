"""Copies between an engine's paged KV cache and chunks: blocks here and there in memory <-> one run of bytes.

A chunk is layer by layer, in each layer block by block, in each block the page as the engine has it:

    layer 0: block 0 page | block 1 page | ...    layer 1: block 0 page | ...

so that a layer can be used as soon as its part is there. Pages are opaque bytes; what they mean is bound into the keys.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from kvclient.engines.core.windows import WindowPart

Buffer: TypeAlias = memoryview | bytearray | bytes


class PagedLayers(Protocol):
    """A worker's layers. Threads may copy at the same time, as long as their blocks differ."""

    @property
    def layers_count(self) -> int: ...

    def chunk_bytes(self, blocks_count: int) -> int:
        """Bytes of a chunk of `blocks_count` blocks."""

    def mark(self) -> Any:
        """A point in the engine's work of the calling thread: copies `after` it begin when all work submitted
        before it is done."""

    def gather(self, block_ids: Sequence[int], chunk: Buffer, after: Any = None) -> None:
        """Paged cache -> chunk (writable, `chunk_bytes(len(block_ids))`), as it is `after` a mark."""

    def scatter(
        self,
        chunk: Buffer,
        blocks_count: int,
        skip_blocks: int,
        block_ids: Sequence[int],
        layer: int | None = None,
        after: Any = None,
    ) -> None:
        """Chunk of `blocks_count` blocks -> paged cache: its blocks from `skip_blocks` on into `block_ids`.

        One layer, or all of them. Not before a mark: what had the blocks before may still be at work on them.
        """


@dataclass(frozen=True, slots=True)
class Span:
    start: int
    page_bytes: int


def spans_of(pages: Sequence[int]) -> list[Span]:
    """Where each layer's part begins in a chunk of one block; starts scale with the number of blocks."""
    spans, start = [], 0
    for page_bytes in pages:
        spans.append(Span(start, page_bytes))
        start += page_bytes
    return spans


class HostLayers:
    """Layers in host memory: bytes, copied by numpy, which holds no other thread up meanwhile."""

    def __init__(self, layers: Sequence[npt.NDArray[np.uint8]]) -> None:
        """`layers`: of each layer, shape (blocks, ..., bytes), in the order that a chunk has them, with any strides."""
        self._layers = list(layers)
        self._spans = spans_of([math.prod(layer.shape[1:]) for layer in self._layers])
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
            part = _part(content, span, layer, len(ids))
            if layer.flags.c_contiguous:
                np.take(layer, ids, axis=0, out=part, mode="clip")
                continue
            for row, block in zip(part, block_ids, strict=True):  # of gaps `take` would copy the whole cache first
                np.copyto(row, layer[block])

    def scatter(
        self,
        chunk: Buffer,
        blocks_count: int,
        skip_blocks: int,
        block_ids: Sequence[int],
        layer: int | None = None,
        after: Any = None,
    ) -> None:
        """See PagedLayers."""
        content = np.frombuffer(chunk, dtype=np.uint8)
        ids = np.asarray(block_ids, dtype=np.intp)
        for index in range(len(self._layers)) if layer is None else (layer,):
            layer_part = _part(content, self._spans[index], self._layers[index], blocks_count)
            self._layers[index][ids] = layer_part[skip_blocks : skip_blocks + len(ids)]


class GroupedLayers:
    """Groups of layers with block tables of their own: a chunk holds one group's part after the other's.

    The first group holds every token of a prefix; of the others a chunk holds its last blocks only.
    """

    def __init__(self, groups: Sequence[PagedLayers], blocks: Sequence[int]) -> None:
        """`blocks`: how many blocks a chunk holds of each group."""
        self._groups = list(groups)
        self._blocks = list(blocks)
        sizes = [group.chunk_bytes(count) for group, count in zip(self._groups, self._blocks, strict=True)]
        ends = list(accumulate(sizes))
        self._parts = [slice(end - size, end) for end, size in zip(ends, sizes, strict=True)]

    @property
    def layers_count(self) -> int:
        return sum(group.layers_count for group in self._groups)

    def chunk_bytes(self, blocks_count: int) -> int:
        """See PagedLayers. Raises ValueError for chunks of another size than these."""
        if blocks_count != self._blocks[0]:
            raise ValueError(f"chunks have {self._blocks[0]} blocks, not {blocks_count}")
        return self._parts[-1].stop

    def mark(self) -> Any:
        """See PagedLayers."""
        return self._groups[0].mark()

    def gather(self, block_ids: Sequence[int], chunk: Buffer, after: Any = None) -> None:
        """See PagedLayers; `block_ids` group by group."""
        content, first = memoryview(chunk), 0
        for group, count, part in zip(self._groups, self._blocks, self._parts, strict=True):
            group.gather(block_ids[first : first + count], content[part], after)
            first += count

    def scatter(
        self,
        chunk: Buffer,
        blocks_count: int,
        skip_blocks: int,
        block_ids: Sequence[int],
        layer: int | None = None,
        after: Any = None,
    ) -> None:
        """See PagedLayers; the first group only."""
        self._groups[0].scatter(memoryview(chunk)[self._parts[0]], blocks_count, skip_blocks, block_ids, layer, after)

    def scatter_windows(self, chunk: Buffer, parts: Sequence[WindowPart], after: Any = None) -> None:
        """The other groups."""
        others = zip(self._groups[1:], self._blocks[1:], self._parts[1:], parts, strict=True)
        for group, count, place, part in others:
            if part.block_ids:
                content = memoryview(chunk)[place]
                group.scatter(content, count, part.skip_blocks, part.block_ids, None, after)


class StateLayers:
    """Recurrent layers, in groups with block tables of their own: one block of each group holds all tokens so far."""

    def __init__(self, groups: Sequence[PagedLayers]) -> None:
        self._groups = list(groups)
        ends = list(accumulate(group.chunk_bytes(1) for group in self._groups))
        self._parts = [slice(start, end) for start, end in zip([0, *ends], ends, strict=False)]

    @property
    def state_bytes(self) -> int:
        """Of the states of all layers behind one token."""
        return self._parts[-1].stop

    def gather(self, block_ids: Sequence[int], chunk: Buffer, after: Any = None) -> None:
        """States -> chunk (writable, `state_bytes`), as they are `after` a mark; `block_ids`: one of each group."""
        content = memoryview(chunk)
        for group, part, block in zip(self._groups, self._parts, block_ids, strict=True):
            group.gather([block], content[part], after)

    def scatter(self, chunk: Buffer, block_ids: Sequence[int], after: Any = None) -> None:
        """Chunk -> states, not before a mark."""
        content = memoryview(chunk)
        for group, part, block in zip(self._groups, self._parts, block_ids, strict=True):
            group.scatter(content[part], 1, 0, [block], None, after)


def _part(
    content: npt.NDArray[np.uint8], span: Span, layer: npt.NDArray[np.uint8], blocks_count: int
) -> npt.NDArray[np.uint8]:
    start = span.start * blocks_count
    return content[start : start + span.page_bytes * blocks_count].reshape(blocks_count, *layer.shape[1:])
