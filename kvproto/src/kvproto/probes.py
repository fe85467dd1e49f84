"""The chunks with which `kvcast doctor cluster` tries the pool: their keys and bytes. Pure."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from kvchunk.ids import ChunkKey, KvIdentity, prefix_keys

PROBE_NAMESPACE = "kvcast doctor cluster"
"""The namespace that nothing but probes uses."""
PROBE_MAGIC = b"kvcast probe\n"
"""Begins each of their datagrams."""


def probe_key(examination: int, number: int) -> ChunkKey:
    """Key of a probe's chunk; no other chunk has it."""
    identity = KvIdentity(model=PROBE_NAMESPACE, revision=f"{examination:016x}", chunk_tokens=1)
    return prefix_keys(identity, [number])[0]


def probe_bytes(key: ChunkKey, size_bytes: int) -> npt.NDArray[np.uint8]:
    """What the chunk contains, shape (size_bytes,): no two of its 8-byte words, and no two chunks, are alike."""
    first = int.from_bytes(key[:8], "little")
    words = np.arange(-(-size_bytes // 8), dtype=np.uint64) * np.uint64(0x9E37_79B9_7F4A_7C15) + np.uint64(first)
    return words.view(np.uint8)[:size_bytes]
