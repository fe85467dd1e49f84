"""Chunks whose bytes lie in several places of an engine's memory: gathered into the pool, scattered out of it.

An engine's page is seldom one run of bytes: keys and values apart, or each layer by itself. A chunk is its pieces one
behind the other, in the order given.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

Piece: TypeAlias = npt.NDArray[np.uint8]
"""A run of bytes in an engine's memory, shape (bytes,)."""


def piece_at(address: int, size_bytes: int) -> Piece:
    """The bytes at an address of this process. The caller keeps the memory alive and mapped."""
    return np.ctypeslib.as_array((ctypes.c_uint8 * size_bytes).from_address(address))


def size_of(pieces: Sequence[Piece]) -> int:
    """Bytes of a chunk of these pieces."""
    return sum(piece.nbytes for piece in pieces)


def gather(pieces: Sequence[Piece], chunk: memoryview) -> None:
    """Pieces -> chunk (writable, `size_of(pieces)` bytes). Other threads run meanwhile."""
    content = np.frombuffer(chunk, dtype=np.uint8)
    start = 0
    for piece in pieces:
        np.copyto(content[start : start + piece.nbytes], piece)
        start += piece.nbytes


def scatter(chunk: memoryview, pieces: Sequence[Piece]) -> bool:
    """Chunk -> pieces. Other threads run meanwhile. False, with nothing written: the chunk has another size."""
    if chunk.nbytes != size_of(pieces):
        return False
    content = np.frombuffer(chunk, dtype=np.uint8)
    start = 0
    for piece in pieces:
        np.copyto(piece, content[start : start + piece.nbytes])
        start += piece.nbytes
    return True
