"""Finds the meaning of a paged cache's axes by their sizes and strides, for the namespace of its chunks. Pure.

Engines lay pages out as their attention backends want them and do not name the axes. Axes of different sizes can be
told apart by them. Where two have the same size the layout stays unknown, and KV of an unknown layout is never rounded.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kvchunk.kv_layout import KvLayout

ELEMENTS = {"torch.bfloat16": "bf16", "torch.float16": "fp16", "torch.float32": "fp32"}
"""By the name that engines have for the type of a cache."""


@dataclass(frozen=True, slots=True)
class CachePage:
    """One layer's cache without its axis of blocks."""

    element: str
    """As the engine names it."""
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    """In numbers."""


def chunk_layout(pages: Sequence[CachePage], chunk_blocks: int, block_tokens: int, heads: int) -> KvLayout | None:
    """Of chunks of `chunk_blocks` blocks, layer by layer, each page as it lies in memory; None: unknown.

    `pages`: of all layers, in the order of the chunk; `heads`: whose KV a token of this worker has.
    """
    if not pages or len(set(pages)) > 1 or pages[0].element not in ELEMENTS:
        return None
    found = _axes(pages[0], block_tokens, heads)
    if found is None:
        return None
    return KvLayout(ELEMENTS[pages[0].element], (("l", len(pages)), ("b", chunk_blocks), *found))


def _axes(page: CachePage, block_tokens: int, heads: int) -> list[tuple[str, int]] | None:
    """In the order of memory."""
    pairs = zip(page.strides, page.shape, strict=True)
    sizes = [size for _, size in sorted(((stride, size) for stride, size in pairs if size > 1), reverse=True)]
    if not sizes:
        return None
    *outer, innermost = sizes
    named = {"t": block_tokens, "h": heads} | ({"p": 2} if len(outer) == 3 else {})
    wanted = {name: size for name, size in named.items() if size > 1}
    by_size = {size: name for name, size in wanted.items()}
    if len(by_size) < len(wanted) or sorted(outer) != sorted(by_size):
        return None
    return [*((by_size[size], size) for size in outer), ("d", innermost)]
