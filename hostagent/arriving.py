"""Chunks on their way into the pool: who waits for each, and where its segments go.

Owns nothing of the pool: the memory is a FILLING chunk's, which whoever ends the arrival commits or gives up.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from hostagent.directory import ChunkEntry
from hostagent.pool.chunks import Chunk
from hostagent.pool.memory import PoolMemory
from kvproto.ids import Address, FetchId
from kvproto.value import Source


@dataclass(slots=True, eq=False)
class Arriving:
    """A chunk on its way into the pool."""

    chunk: Chunk
    entry: ChunkEntry
    segment_bytes: int
    full_rows: npt.NDArray[np.uint8]
    """The segments that are not short, shape (n, segment_bytes): rows of the pool itself."""
    tail: npt.NDArray[np.uint8]
    """The last segment if it is short, shape (bytes,), else empty."""
    route: Source
    """Where it was asked of first."""
    fetches: set[FetchId] = field(default_factory=set)
    last_source: Address | None = None
    from_switch: int = 0
    found: int = 0
    """The checksum that its bytes turned out to have."""

    @classmethod
    def into(cls, chunk: Chunk, entry: ChunkEntry, segment_bytes: int, memory: PoolMemory, route: Source) -> Arriving:
        """`chunk` is FILLING and has room for `entry.size_bytes`."""
        whole_bytes = entry.size_bytes // segment_bytes * segment_bytes
        rows = memory.array(chunk.offset, whole_bytes).reshape(-1, segment_bytes)
        tail = memory.array(chunk.offset + whole_bytes, entry.size_bytes - whole_bytes)
        return cls(chunk, entry, segment_bytes, rows, tail, route)

    @property
    def segments_count(self) -> int:
        return -(-self.entry.size_bytes // self.segment_bytes)

    def place(
        self, segments: npt.NDArray[np.uint32], payload: npt.NDArray[np.uint8], wanted: npt.NDArray[np.bool_]
    ) -> None:
        """Write the wanted rows of `payload`, shape (n, segment_bytes), to the places that `segments` (n) names."""
        rows = self.full_rows
        if int(segments.max()) >= len(rows):
            short = wanted & (segments >= len(rows))
            if short.any():
                self.tail[:] = payload[int(short.argmax()), : len(self.tail)]
            wanted = wanted & (segments < len(rows))
        if wanted.all():
            rows[segments] = payload
        elif wanted.any():
            rows[segments[wanted]] = payload[wanted]
