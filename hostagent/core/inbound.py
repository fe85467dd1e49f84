"""Chunks on their way into the pool: who waits for each, and how it came.

Owns nothing in the pool: the memory belongs to a FILLING chunk; whoever ends the arrival commits it or gives it up.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from hostagent.core.directory import ChunkEntry
from hostagent.core.twins import Twin
from hostagent.pool.chunks import Chunk
from hostagent.tree import LEAF_BYTES, NOT_HASHED, PIECE_BYTES, Hashed
from kvchunk.sources import ChunkSource
from kvpolicy.value import Tier
from kvproto.ids import Address, FetchId
from kvproto.integrity import Integrity, algorithm_of


@dataclass(slots=True, eq=False)
class InboundChunk:
    """A chunk on its way into the pool."""

    chunk: Chunk
    """FILLING, with room for all its bytes."""
    entry: ChunkEntry
    segments_count: int
    route: Tier
    """Where it was asked of first; REMOTE_DRAM once this node's disk has failed to deliver it."""
    fetches: set[FetchId] = field(default_factory=set)
    last_source: Address | None = None
    """Who sent the last of it."""
    whole: bool = False
    """All of it came; it is being verified."""
    from_switch: int = 0
    """Segments that came from the switch's memory."""
    pieces_given: npt.NDArray[np.bool_] | None = None
    """Pieces that are being hashed already (`EarlyPieces`); None: none."""
    unlooked: int = 0
    """Segments that came since `EarlyPieces` was asked last."""
    reckoned_bytes: int | None = None
    """What the gate reckons with, where the source has the chunk in fewer bytes; None: the chunk's own."""
    from_casts: int = 0
    """Segments that came by cast, those from the switch's memory included."""
    twin: Twin | None = None
    """By which it comes; None: as it is."""
    decoded_from: ChunkSource | None = None
    """Where its twin came from, once that is here."""
    found: Hashed = NOT_HASHED
    """What its bytes turned out to be."""
    is_cast: bool = False
    """Casts of it are expected, or came: others than reads may write to it."""
    proven: dict[int, bytes] = field(default_factory=dict)
    """Leaves of reads that were hashed on their way, by where they begin in the chunk."""

    def leaves(self) -> bytes:
        """All of its leaves, if reads that nobody else wrote beside brought it whole; else nothing."""
        if self.is_cast or self.from_casts or self.found is not NOT_HASHED:
            return b""
        at_bytes = 0
        for offset in sorted(self.proven):
            if offset != at_bytes:
                return b""
            at_bytes += len(self.proven[offset]) // LEAF_BYTES * PIECE_BYTES
        if at_bytes < self.chunk.size_bytes:
            return b""
        return b"".join(self.proven[offset] for offset in sorted(self.proven))

    @property
    def is_tree(self) -> bool:
        """Whether its digest is the root of its leaves."""
        return algorithm_of(self.entry.digest) is Integrity.BLAKE3

    @property
    def came_as(self) -> ChunkSource:
        """How most of it came, of those that come over the network."""
        if 2 * self.from_switch > self.segments_count:
            return ChunkSource.SWITCH
        return ChunkSource.CAST if 2 * self.from_casts > self.segments_count else ChunkSource.HOLDER
