"""Sets of a chunk's pieces, as the bits of an integer: bit p is piece p."""

from collections.abc import Iterator


def pieces_of(first: int, count: int) -> int:
    """The pieces [first, first + count)."""
    return ((1 << count) - 1) << first


def lowest(pieces: int) -> int:
    """The first piece of a set that is not empty."""
    return (pieces & -pieces).bit_length() - 1


def run_length(pieces: int, first: int, limit: int) -> int:
    """How many pieces from `first`, which is in the set, follow each other in it; `limit` at most."""
    return min(limit, lowest(~(pieces >> first)))


def runs_of(pieces: int) -> Iterator[tuple[int, int]]:
    """(first, count) of each run of a set."""
    first = 0
    while pieces:
        skipped = lowest(pieces)
        pieces >>= skipped
        first += skipped
        count = lowest(~pieces)
        yield first, count
        pieces >>= count
        first += count
