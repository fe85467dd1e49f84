"""How many tokens a chunk has where nobody says. Pure."""

from __future__ import annotations

from typing import Final

CHUNK_BYTES: Final = 8 << 20
"""A chunk has at least so many bytes of all layers and heads. Larger ones are not fetched faster, and leave more of a
prompt's end to compute: 128 MiB took 129 ms in chunks of 1 MiB, 67 in chunks of 8 MiB, 74 in chunks of 32 MiB."""
CHUNK_TOKENS_MOST: Final = 256
"""Models so small that this is less than CHUNK_BYTES compute what is left in no time."""


def chunk_tokens_for(token_bytes: int, block_tokens: int) -> int:
    """The fewest tokens, whole blocks of the engine, that have CHUNK_BYTES; at most CHUNK_TOKENS_MOST, or one block.

    `token_bytes`: KV of one token in the whole model, however it is split over workers, so that all who share a prefix
    find the same number.
    """
    blocks = -(-CHUNK_BYTES // (token_bytes * block_tokens))
    return max(1, min(blocks, CHUNK_TOKENS_MOST // block_tokens)) * block_tokens
