"""Layers with sliding windows beside layers without: what chunks hold of them is enough for any prefix."""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pytest

from kvclient.engines.core.windows import NULL_BLOCK, WindowPart, kept_blocks, loaded_blocks, saved_blocks
from kvclient.engines.paged import GroupedLayers, HostLayers

BLOCK, CHUNK_BLOCKS = 4, 4
CHUNK = BLOCK * CHUNK_BLOCKS
PAGE = 6
BLOCKS = 400
NO_WINDOW = 1 << 30


class Engine:
    """Block tables as vLLM keeps them, and caches whose pages say which tokens of which prompt they are of."""

    def __init__(self, windows: Sequence[int]) -> None:
        """`windows`: of each group, in tokens; the first has none."""
        self.windows = windows
        self.kept = [kept_blocks(window, BLOCK, CHUNK_BLOCKS) for window in windows[1:]]
        self.caches = [np.zeros((BLOCKS, PAGE), np.uint8) for _ in windows]
        self.layers = GroupedLayers([HostLayers([cache]) for cache in self.caches], [CHUNK_BLOCKS, *self.kept])
        self.free = [list(range(1, BLOCKS)) for _ in windows]
        self.tables: list[list[int]] = [[] for _ in windows]

    def skipped_blocks(self, group: int, computed: int) -> int:
        return max(0, computed - self.windows[group] + 1) // BLOCK

    def compute(self, start: int, end: int) -> None:
        """A step: blocks out of a window before it go, those of its tokens are there during it."""
        for group, table in enumerate(self.tables):
            gone = min(self.skipped_blocks(group, start), len(table))
            table[:gone] = [NULL_BLOCK] * gone
            while len(table) * BLOCK < end:
                table.append(self.free[group].pop())
            for block in range(start // BLOCK, -(-end // BLOCK)):
                self.caches[group][table[block]] = page(group, block)

    def take(self, tokens: int) -> None:
        """Room for a prefix that is loaded."""
        for group, table in enumerate(self.tables):
            skipped = self.skipped_blocks(group, tokens)
            table += [NULL_BLOCK] * skipped
            table += [self.free[group].pop() for _ in range(tokens // BLOCK - skipped)]


def page(group: int, block: int) -> npt.NDArray[np.uint8]:
    return np.full(PAGE, 1 + (37 * group + block) % 255, np.uint8)


@pytest.mark.parametrize("windows", [(NO_WINDOW, 5), (NO_WINDOW, 9, 16), (NO_WINDOW, 17), (NO_WINDOW, 50, NO_WINDOW)])
@pytest.mark.parametrize("seed", range(5))
def test_any_prefix_of_whole_chunks_is_loaded_as_it_was_computed(windows: tuple[int, ...], seed: int) -> None:
    chance = random.Random(seed)
    computing = Engine(windows)
    pool: list[bytearray] = []
    done, total = 0, 10 * CHUNK
    while done < total:
        step = min(total - done, chance.randint(1, 3 * CHUNK))
        computing.compute(done, done + step)
        for chunk in range(done // CHUNK, (done + step) // CHUNK):
            others = saved_blocks(computing.tables[1:], computing.kept, chunk, CHUNK_BLOCKS)
            assert others is not None
            main = tuple(computing.tables[0][chunk * CHUNK_BLOCKS : (chunk + 1) * CHUNK_BLOCKS])
            pool.append(bytearray(computing.layers.chunk_bytes(CHUNK_BLOCKS)))
            computing.layers.gather(main + others, pool[-1])
        done += step
    for chunks in range(1, len(pool) + 1):
        loading = Engine(windows)
        loading.take(chunks * CHUNK)
        own = chance.randrange(chunks * CHUNK_BLOCKS)
        for group, table in enumerate(loading.tables):
            for block in range(own):
                if table[block] != NULL_BLOCK:
                    loading.caches[group][table[block]] = page(group, block)
        load(loading, pool, own, chunks)
        for group, table in enumerate(loading.tables):
            seen = range(loading.skipped_blocks(group, chunks * CHUNK), chunks * CHUNK_BLOCKS)
            assert all((loading.caches[group][table[block]] == page(group, block)).all() for block in seen)
            assert not loading.caches[group][NULL_BLOCK].any()


def load(engine: Engine, pool: Sequence[bytearray], own: int, chunks: int) -> None:
    """As a worker does it: the blocks from `own` on."""
    first, end = own // CHUNK_BLOCKS, chunks * CHUNK_BLOCKS
    parts = loaded_blocks(engine.tables[1:], engine.kept, own, end, CHUNK_BLOCKS)
    assert len(parts) == chunks - first
    for chunk in range(first, chunks):
        skip = max(0, own - chunk * CHUNK_BLOCKS)
        ids = engine.tables[0][chunk * CHUNK_BLOCKS + skip : (chunk + 1) * CHUNK_BLOCKS]
        engine.layers.scatter(pool[chunk], CHUNK_BLOCKS, skip, ids)
        engine.layers.scatter_windows(pool[chunk], parts[chunk - first])


def test_a_chunk_of_which_the_engine_gave_a_block_back_is_not_saved() -> None:
    table = [0, 0, 0, 4, 5, 6, 7, 8]
    assert saved_blocks([table], [1], 0, 4) == (4,)
    assert saved_blocks([table], [2], 0, 4) is None
    assert saved_blocks([table], [2], 1, 4) == (7, 8)
    assert saved_blocks([table[:6]], [2], 1, 4) is None, "not all of it is there yet"


def test_what_a_chunk_holds_of_a_window() -> None:
    assert [kept_blocks(window, 16, 16) for window in (1, 2, 17, 18, 128, 512)] == [0, 1, 1, 2, 8, 16]
    assert loaded_blocks([[0, 0, 0, 4]], [2], 0, 4, 4) == ((WindowPart(1, (4,)),),)
    assert loaded_blocks([[0, 0, 0, 0]], [0], 0, 4, 4) == ((WindowPart(0, ()),),)


def test_chunks_have_one_size() -> None:
    layers = Engine((NO_WINDOW, 5)).layers
    assert layers.chunk_bytes(CHUNK_BLOCKS) == (CHUNK_BLOCKS + 1) * PAGE
    with pytest.raises(ValueError, match="4 blocks, not 3"):
        layers.chunk_bytes(3)
