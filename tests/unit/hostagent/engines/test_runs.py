"""The table of a chunk's runs, carried out byte by byte, against copies by pages."""

from __future__ import annotations

import numpy as np
import pytest

from kvclient.engines.core.runs import LayerPages, RunTable, run_table
from kvclient.engines.paged import HostLayers

BLOCKS, LAYERS = 12, 3


def pages_of(view: np.ndarray, base: int) -> LayerPages:
    """Of a view of bytes, whose last axis is its runs; addresses count from `base`."""
    axes = tuple(zip(view.strides[1:-1], view.shape[1:-1], strict=True))
    return LayerPages(view.ctypes.data - base, view.strides[0], axes, view.shape[-1])


def views_of(order: str, sizes: dict[str, int]) -> tuple[np.ndarray, list[np.ndarray]]:
    """(memory, of each layer its bytes by block, head, token, number) with the axes of memory in an order."""
    count = int(np.prod([sizes[axis] for axis in order]))
    memory = np.random.default_rng(11).integers(0, 256, count, dtype=np.uint8)
    shaped = memory.reshape([sizes[axis] for axis in order])
    whole = shaped.transpose([order.index(axis) for axis in "LBHNC"])
    inner = "NHC" if order.index("N") < order.index("H") else "HNC"
    return memory, [layer.transpose([0, *("BHNC".index(axis) for axis in inner)]) for layer in whole]


def carry_out(
    table: RunTable, memory: np.ndarray, chunk: np.ndarray, blocks: list[int], of: int, skip: int, layer: int | None
) -> None:
    """Chunk -> memory, as the kernel does."""
    word = table.word_bytes
    for row in table.rows_of(layer):
        address, stride, start, page, inner, run = table.rows[row]
        for number, block in enumerate(blocks):
            at = address + block * stride * word
            source = (start * of + (number + skip) * page + inner) * word
            memory[at : at + run * word] = chunk[source : source + run * word]


@pytest.mark.parametrize("order", ["LBHNC", "LBNHC", "BLHNC", "BLNHC", "LHBNC", "BHLNC"])
@pytest.mark.parametrize(("numbers", "word"), [(16, 8), (20, 4), (18, 2), (7, 1)])
@pytest.mark.parametrize("layer", [None, 1])
def test_runs_go_where_pages_go(order: str, numbers: int, word: int, layer: int | None) -> None:
    sizes = {"L": LAYERS, "B": BLOCKS, "H": 2, "N": 4, "C": numbers}
    memory, views = views_of(order, sizes)
    table = run_table([pages_of(view, memory.ctypes.data) for view in views])
    assert table.word_bytes == word
    chunk = np.random.default_rng(12).integers(0, 256, LAYERS * 4 * 2 * 4 * numbers, dtype=np.uint8)
    blocks, skip = [7, 0, 11], 1
    expected_memory, expected_views = views_of(order, sizes)
    HostLayers(expected_views).scatter(chunk.tobytes(), 4, skip, blocks, layer)
    carry_out(table, memory, chunk, blocks, 4, skip, layer)
    assert np.array_equal(memory, expected_memory)


def test_layers_of_different_sizes_follow_on_each_other() -> None:
    table = run_table([LayerPages(0, 64, (), 64), LayerPages(1024, 32, ((16, 2),), 16)])
    assert table.word_bytes == 8
    assert table.rows == ((0, 8, 0, 8, 0, 8), (1024, 4, 8, 4, 0, 2), (1040, 4, 8, 4, 2, 2))
    assert [table.rows_of(layer) for layer in (0, 1, None)] == [range(1), range(1, 3), range(3)]
    assert table.run_words_max == 8
