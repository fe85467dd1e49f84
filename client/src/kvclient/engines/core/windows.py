"""Caches of layers that look back over a window only, beside those that look back to the beginning. Pure.

The engine keeps a table of blocks for each group of layers. From the table of a group with a window it gives back the
blocks that have left the window, and puts the null block in their place. A prefix needs only the last `window - 1`
tokens of such a group. So a chunk holds its last blocks of the group, as many as one window reaches back: those are
still in the table when the chunk has just become whole. A prefix with a longer window takes them from several chunks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

NULL_BLOCK: Final = 0


@dataclass(frozen=True, slots=True)
class WindowPart:
    """Where the blocks go that a chunk holds of one group."""

    skip_blocks: int
    """At the head of what the chunk holds: the prefix does not need them, or the engine has them itself."""
    block_ids: tuple[int, ...]


def kept_blocks(window_tokens: int, block_tokens: int, chunk_blocks: int) -> int:
    """Blocks of a group with a window that a chunk holds, the last of its `chunk_blocks`."""
    return min(chunk_blocks, -(-(window_tokens - 1) // block_tokens))


def saved_blocks(
    tables: Sequence[Sequence[int]], kept: Sequence[int], chunk: int, chunk_blocks: int
) -> tuple[int, ...] | None:
    """Blocks that a chunk holds of all groups with windows, one after the other; None: the engine gave one back."""
    end = (chunk + 1) * chunk_blocks
    found = [tuple(table[end - count : end]) for table, count in zip(tables, kept, strict=True)]
    flat = tuple(block for blocks in found for block in blocks)
    return flat if len(flat) == sum(kept) and NULL_BLOCK not in flat else None


def loaded_blocks(
    tables: Sequence[Sequence[int]], kept: Sequence[int], first_block: int, end_block: int, chunk_blocks: int
) -> tuple[tuple[WindowPart, ...], ...]:
    """For each chunk of the blocks [first_block, end_block) and each group: which blocks are loaded, and where to."""
    found = []
    for chunk in range(first_block // chunk_blocks, end_block // chunk_blocks):
        end = (chunk + 1) * chunk_blocks
        parts = []
        for table, count in zip(tables, kept, strict=True):
            start = max(end - count, first_block)
            while start < end and table[start] == NULL_BLOCK:
                start += 1
            parts.append(WindowPart(start - (end - count), tuple(table[start:end])))
        found.append(tuple(parts))
    return tuple(found)
