"""States of recurrent layers: one for all tokens so far, beside the layers that keep KV of every token. Pure.

The engine keeps states at some ends of chunks only, those where one of its steps ended. So a state is no part of its
chunk: it has a key of its own, made of the chunk's. A prefix can be loaded that ends with a chunk whose state is in the
pool, whatever states the chunks before it have; only the last one is fetched.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain

from kvchunk.ids import KEY_BYTES, ChunkKey
from kvclient.engines.core.windows import NULL_BLOCK
from kvclient.messages import Where


@dataclass(frozen=True, slots=True)
class StatePart:
    """The state at the end of a prefix, and where it goes."""

    keys: tuple[ChunkKey, ...]
    """Per shard."""
    block_ids: tuple[int, ...]
    """One block of each group of recurrent layers."""


def state_keys(keys: Iterable[ChunkKey]) -> tuple[ChunkKey, ...]:
    """Keys of the state at a chunk's end, by those of the chunk, per shard. They bind all that the chunk's bind."""
    return tuple(ChunkKey(hashlib.blake2b(key, digest_size=KEY_BYTES, person=b"kvcast-state").digest()) for key in keys)


def flat_state_keys(chunks: Iterable[Sequence[ChunkKey]]) -> list[ChunkKey]:
    """Keys of the states at the ends of several chunks: all shards of one next to each other."""
    return list(chain.from_iterable(state_keys(keys) for keys in chunks))


def chunks_with_state(states: Sequence[Where], chunks: int, expected_chunks: int) -> int:
    """How many of the leading `chunks` a prefix can have at most that ends with a state.

    `states`: where the states at the ends of the chunks are. `expected_chunks`: so many another engine computes. It
    ends a step with the last whole chunk of the prompt, which is the last one that was looked up.
    """
    if 0 < chunks == len(states) <= expected_chunks:
        return chunks
    return next((end for end in range(chunks, 0, -1) if states[end - 1] is not Where.NOWHERE), 0)


def state_blocks(tables: Sequence[Sequence[int]], end_block: int) -> tuple[int, ...]:
    """Blocks for the state behind block `end_block` - 1, of each group. Raises ValueError where the engine has none."""
    found = tuple(table[end_block - 1] for table in tables)
    if NULL_BLOCK in found:
        raise ValueError(f"the engine has no room for the state behind {end_block} blocks")
    return found
