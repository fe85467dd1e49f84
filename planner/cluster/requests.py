"""A trace's requests as the replay works on them, and what becomes of each. Deterministic: jitter comes from a seed."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from kvchunk.ids import KEY_BYTES, ChunkKey
from planner.traces import BLOCK_TOKENS, TraceRequest


@dataclass(frozen=True, slots=True)
class Request:
    """One request: arrival in seconds, prompt as chunks in prefix order."""

    at_s: float
    tokens: int
    keys: tuple[ChunkKey, ...]
    node: int | None = None
    """Where it goes; None: the router decides."""
    chunk_tokens: int = BLOCK_TOKENS
    """Of each chunk."""

    def cached_tokens(self, chunks: int) -> int:
        """Tokens that the first `chunks` chunks spare. The last token is always computed: it gives the first answer."""
        return min(chunks * self.chunk_tokens, self.tokens - 1)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a request. Tokens by where their KV came from; the rest was computed."""

    at_s: float
    ttft_s: float
    """Time to first token."""
    fetch_s: float
    """Spent fetching, 0 without a fetch."""
    queue_s: float
    """Spent waiting for the engine, its input at hand."""
    prefill_s: float
    tokens: int
    local_tokens: int
    disk_tokens: int
    """From the node's own disk."""
    holder_tokens: int
    cast_tokens: int
    switch_tokens: int
    refused_tokens: int
    """That the pool had, and the gate left to the engine."""


def key_of(block: int) -> ChunkKey:
    """Ids are chained over the prefix already, so the id alone names the chunk."""
    return ChunkKey(hashlib.blake2b(block.to_bytes(8, "big"), digest_size=KEY_BYTES).digest())


JITTER_S: Final = 0.01
"""Less than a request takes anywhere: who gets a request first may change, nothing else."""


def requests_of(trace: Sequence[TraceRequest], speed: float = 1.0, jitter_seed: int = 0) -> list[Request]:
    """Arrivals from 0 on, `speed` times as fast; with a seed moved by up to JITTER_S."""
    rng = random.Random(jitter_seed) if jitter_seed else None
    keys: dict[int, ChunkKey] = {}
    first_ms = trace[0].arrival_ms if trace else 0.0
    requests = []
    for one in trace:
        for block in one.blocks:
            if block not in keys:
                keys[block] = key_of(block)
        tokens = max(1, one.input_tokens)
        chunks = tuple(keys[block] for block in one.blocks[: -(-tokens // BLOCK_TOKENS)])
        at_s = (one.arrival_ms - first_ms) / 1000 / speed + (rng.random() * JITTER_S if rng else 0.0)
        requests.append(Request(at_s, tokens, chunks))
    return sorted(requests, key=lambda request: request.at_s)
