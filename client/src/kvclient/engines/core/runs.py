"""Where the runs of bytes of an engine's pages lie, and where they go in a chunk: a table for one kernel. Pure.

A page is one run, or several of the same size (each head's, each token's). The table has a row for each run of each
layer, in words as large as all of its numbers allow.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

COLUMNS: Final = 6
"""Of a row: address (in bytes), then in words: stride of blocks, start of the layer in a chunk of one block, size of a
page, start of the run in its page, its size."""
WORDS: Final = (8, 4, 2, 1)
"""Bytes of a word."""


@dataclass(frozen=True, slots=True)
class LayerPages:
    """Pages of one layer, in bytes."""

    address: int
    block_stride: int
    axes: tuple[tuple[int, int], ...]
    """(stride, size) of the axes outside a run, the outermost first."""
    run_bytes: int

    @property
    def page_bytes(self) -> int:
        return self.run_bytes * math.prod(size for _, size in self.axes)


@dataclass(frozen=True, slots=True)
class RunTable:
    """Of all layers."""

    word_bytes: int
    rows: tuple[tuple[int, ...], ...]
    first_rows: tuple[int, ...]
    """Of each layer, and behind the last one."""
    run_words_max: int

    def rows_of(self, layer: int | None) -> range:
        """Of a layer, or of all."""
        if layer is None:
            return range(len(self.rows))
        return range(self.first_rows[layer], self.first_rows[layer + 1])


def run_table(layers: Sequence[LayerPages]) -> RunTable:
    """The table, with the largest words that all addresses, strides and sizes are multiples of."""
    numbers = [
        number
        for layer in layers
        for number in (layer.address, layer.block_stride, layer.run_bytes, *(stride for stride, _ in layer.axes))
    ]
    word = next(size for size in WORDS if all(number % size == 0 for number in numbers))
    rows: list[tuple[int, ...]] = []
    first_rows, start = [0], 0
    for layer in layers:
        places = itertools.product(*(range(size) for _, size in layer.axes))
        for number, place in enumerate(places):
            offset = sum(at * stride for at, (stride, _) in zip(place, layer.axes, strict=True))
            rows.append(
                (
                    layer.address + offset,
                    layer.block_stride // word,
                    start // word,
                    layer.page_bytes // word,
                    number * layer.run_bytes // word,
                    layer.run_bytes // word,
                )
            )
        first_rows.append(len(rows))
        start += layer.page_bytes
    return RunTable(word, tuple(rows), tuple(first_rows), max(layer.run_bytes for layer in layers) // word)
