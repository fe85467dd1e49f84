"""How many tokens a chunk has by default. Pure."""

from __future__ import annotations

from typing import Final

CHUNK_BYTES: Final = 8 << 20
"""The least bytes of a chunk, over all layers and heads. Larger chunks are not fetched faster, and they leave more of a
prompt's end to compute: 128 MiB took 129 ms in chunks of 1 MiB, 67 in chunks of 8 MiB, 74 in chunks of 32 MiB."""
CHUNK_TOKENS_MOST: Final = 256
"""The most tokens of a chunk. A model so small that they have fewer than CHUNK_BYTES computes the rest in no time."""


def chunk_tokens_for(token_bytes: int, block_tokens: int) -> int:
    """The fewest tokens, whole blocks of the engine, that have CHUNK_BYTES; at most CHUNK_TOKENS_MOST, or one block.

    `token_bytes`: KV of one token in the whole model, however it is split over workers, so that all who share a prefix
    find the same number.
    """
    blocks = -(-CHUNK_BYTES // (token_bytes * block_tokens))
    return max(1, min(blocks, CHUNK_TOKENS_MOST // block_tokens)) * block_tokens
