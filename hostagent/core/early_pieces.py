"""Which pieces of a chunk may be hashed while the rest of it still comes. Pure.

A piece (`hostagent.tree`) is settled when each of its segments is here and none is under a reliable read: nobody writes
to it any more, unless the chunk turns out to be wrong as a whole.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np
import numpy.typing as npt

from hostagent.core import effects
from hostagent.core.inbound import InboundChunk
from hostagent.tree import PIECE_BYTES
from kvproto.integrity import Integrity, algorithm_of

PIECES_MIN: Final = 4
"""A way to a hashing thread and back costs as much as hashing two pieces."""
CHUNK_PIECES_MIN: Final = 3 * PIECES_MIN
"""Of smaller chunks, the whole digest takes no longer than that way."""


class EarlyPieces:
    """Hands out each settled piece once, a few at a time."""

    def __init__(self, emit: Callable[[effects.Effect], None]) -> None:
        self._emit = emit

    def look(self, inbound: InboundChunk, unsettled: npt.NDArray[np.bool_], segment_bytes: int) -> None:
        """Something came. `unsettled`: segments that may still be written, one entry for each of the chunk."""
        per_piece = PIECE_BYTES // segment_bytes
        if (
            inbound.chunk.size_bytes < CHUNK_PIECES_MIN * PIECE_BYTES
            or per_piece * segment_bytes != PIECE_BYTES
            or algorithm_of(inbound.entry.digest) is not Integrity.BLAKE3
        ):
            return
        pieces = -(-len(unsettled) // per_piece)
        if inbound.pieces_given is None:
            inbound.pieces_given = np.zeros(pieces, np.bool_)
        # `reduceat` ORs each run of a piece's segments; the last piece may be short.
        busy = np.logical_or.reduceat(unsettled, np.arange(0, len(unsettled), per_piece))
        ready = np.flatnonzero(~(busy | inbound.pieces_given))
        if len(ready) >= PIECES_MIN:
            inbound.pieces_given[ready] = True
            self._emit(effects.HashPieces(inbound.chunk, tuple(ready.tolist())))

    def forget(self, inbound: InboundChunk) -> None:
        """The chunk will not become whole."""
        if inbound.pieces_given is not None and inbound.pieces_given.any():
            self._emit(effects.ForgetPieces(inbound.chunk))
        self.used(inbound)

    def used(self, inbound: InboundChunk) -> None:
        """The digest of the whole chunk is asked for, and ends what was begun."""
        inbound.pieces_given = None
