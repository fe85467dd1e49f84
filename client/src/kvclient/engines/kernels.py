"""One kernel for all runs of a chunk, in Triton. It runs on a GPU, and on a CPU with TRITON_INTERPRET=1 (for tests)."""

# ruff: noqa: N803 - what is known when a kernel is compiled has capitals, as in Triton's own
# No `from __future__ import annotations`: Triton reads the annotations of a kernel's parameters.
import os
import threading
from contextlib import AbstractContextManager, nullcontext

import torch
import triton
import triton.language as tl

from kvclient.engines.core.runs import COLUMNS

BLOCK_WORDS_MAX = 1024
# Triton's interpreter changes Triton's own module while it runs, so it takes one thread at a time.
_IS_INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
_turn: AbstractContextManager[object] = threading.Lock() if _IS_INTERPRETED else nullcontext()
_WORDS = {1: tl.int8, 2: tl.int16, 4: tl.int32, 8: tl.int64}


@triton.jit  # type: ignore[untyped-decorator]
def _copy_runs(  # type: ignore[no-untyped-def]
    table,
    blocks,
    chunk,
    blocks_in_chunk,
    skipped_blocks,
    WORD: tl.constexpr,
    TO_CACHE: tl.constexpr,
    COLUMNS_: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """A program copies BLOCK words of one run of one block. Axes of the grid: blocks, runs, parts of a run."""
    block = tl.program_id(0)
    row = table + tl.program_id(1) * COLUMNS_
    address = tl.load(row)
    block_stride = tl.load(row + 1)
    layer_start = tl.load(row + 2)
    page_words = tl.load(row + 3)
    run_start = tl.load(row + 4)
    run_words = tl.load(row + 5)
    words = tl.program_id(2).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = words < run_words
    paged = tl.cast(address, tl.pointer_type(WORD)) + tl.load(blocks + block) * block_stride + words
    packed = (
        tl.cast(chunk, tl.pointer_type(WORD))
        + layer_start * blocks_in_chunk
        + (block + skipped_blocks).to(tl.int64) * page_words
        + run_start
        + words
    )
    if TO_CACHE:
        tl.store(paged, tl.load(packed, mask=inside), mask=inside)
    else:
        tl.store(packed, tl.load(paged, mask=inside), mask=inside)


def copy_runs(
    table: torch.Tensor,
    blocks: torch.Tensor,
    chunk: torch.Tensor,
    *,
    blocks_in_chunk: int,
    skipped_blocks: int,
    word_bytes: int,
    run_words_max: int,
    to_cache: bool,
) -> None:
    """Cache -> chunk, or chunk -> cache, on the current stream.

    `table`: rows of `core.runs.RunTable`, shape (runs, COLUMNS), int64; `blocks`: numbers of blocks, int64; `chunk`:
    uint8, the whole chunk of `blocks_in_chunk` blocks. The blocks are those of the chunk from `skipped_blocks` on.
    """
    size = min(BLOCK_WORDS_MAX, triton.next_power_of_2(run_words_max))
    grid = (blocks.shape[0], table.shape[0], triton.cdiv(run_words_max, size))
    with _turn:
        _copy_runs[grid](
            table,
            blocks,
            chunk,
            blocks_in_chunk,
            skipped_blocks,
            WORD=_WORDS[word_bytes],
            TO_CACHE=to_cache,
            COLUMNS_=COLUMNS,
            BLOCK=size,
        )
