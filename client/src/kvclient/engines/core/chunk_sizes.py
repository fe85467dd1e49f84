"""How many tokens a chunk has by default. Pure."""

from __future__ import annotations

from typing import Final

CHUNK_BYTES: Final = 8 << 20
"""The least bytes of a chunk, over all layers and heads. A chunk costs some 0.5 ms beside its bytes: 128 MiB
take 129 ms in chunks of 1 MiB, 91 of 2, 67 of 8 and 74 of 32. Larger ones leave more of a prompt's end to compute."""
CHUNK_TOKENS_MOST: Final = 256
"""The most tokens of a chunk. A model so small that they have fewer than CHUNK_BYTES computes the rest in no time."""


def chunk_tokens_for(token_bytes: int, block_tokens: int) -> int:
    """The fewest tokens, whole blocks of the engine, that have CHUNK_BYTES; at most CHUNK_TOKENS_MOST, or one block.

    `token_bytes`: KV of one token in the whole model, however it is split over workers, so that all who share a prefix
    find the same number.
    """
    blocks = -(-CHUNK_BYTES // (token_bytes * block_tokens))
    return max(1, min(blocks, CHUNK_TOKENS_MOST // block_tokens)) * block_tokens
