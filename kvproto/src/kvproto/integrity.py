"""What a chunk's bytes are compared with: a digest, and the algorithm that made it. Pure.

A fabric has one algorithm. With BLAKE3 nobody can make other bytes with the same digest: finding any two chunks of one
digest takes 2^128 tries. Half as many bits would not do, because whoever may choose both chunks needs only the square
root: 2^64 tries for a tag of 128 bits, which is in reach. With xxh3 anybody makes such chunks in a millisecond; it
finds accidents, and is for a fabric whose owner trusts every host on it.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator
from typing import Final

from kvchunk.ids import Digest


class Integrity(enum.Enum):
    """How chunks are digested, by the name in configurations."""

    BLAKE3 = "blake3"
    """A tree of BLAKE3: `hostagent.tree`."""
    XXH3 = "xxh3"
    """xxh3-64 of the bytes."""


DIGEST_BYTES_MAX: Final = 33
NO_DIGEST: Final = Digest(b"")
"""Of bytes that nobody has digested yet."""

_CODES: Final = {Integrity.XXH3: 1, Integrity.BLAKE3: 2}
_ALGORITHMS: Final = {code: algorithm for algorithm, code in _CODES.items()}
_BYTES: Final = {Integrity.XXH3: 8, Integrity.BLAKE3: 32}
OUTPUT_BYTES: Final = {_CODES[algorithm]: size_bytes for algorithm, size_bytes in _BYTES.items()}
"""Bytes behind the first byte of a digest, by that byte."""

assert max(_BYTES.values()) + 1 == DIGEST_BYTES_MAX


def digest_of(algorithm: Integrity, output: bytes) -> Digest:
    """A digest from an algorithm's output. Raises ValueError for another length than the algorithm's."""
    if len(output) != _BYTES[algorithm]:
        raise ValueError(f"{len(output)} bytes are no digest by {algorithm.value}")
    return Digest(bytes((_CODES[algorithm],)) + output)


def parse_digest(packed: bytes) -> Digest:
    """A digest as somebody else gave it. Raises ValueError when it is none."""
    algorithm = _ALGORITHMS.get(packed[0]) if packed else None
    if algorithm is None or len(packed) != 1 + _BYTES[algorithm]:
        raise ValueError(f"no digest: {packed[:DIGEST_BYTES_MAX].hex() or 'nothing'}")
    return Digest(bytes(packed))


def algorithm_of(digest: Digest) -> Integrity:
    """Who made it; it must not be NO_DIGEST."""
    return _ALGORITHMS[digest[0]]


def code_of(algorithm: Integrity) -> int:
    """As messages name the algorithm."""
    return _CODES[algorithm]


def algorithms_of(codes: Iterator[int] | list[int]) -> frozenset[Integrity]:
    """Those that somebody names; unknown ones are left out."""
    return frozenset(_ALGORITHMS[code] for code in codes if code in _ALGORITHMS)
