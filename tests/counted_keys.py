"""Keys that count how often they are compared: what a request costs, without a clock."""

from __future__ import annotations

from kvchunk.ids import ChunkKey


class CountedKey(bytes):
    """A key that is another object than the one that whoever is asked has."""

    compared_count = 0

    def __eq__(self, other: object) -> bool:
        CountedKey.compared_count += 1
        return bytes.__eq__(self, other)

    def __ne__(self, other: object) -> bool:
        CountedKey.compared_count += 1
        return bytes.__ne__(self, other)

    __hash__ = bytes.__hash__


def counted(number: int) -> ChunkKey:
    """The key of this number."""
    return ChunkKey(CountedKey(number.to_bytes(16, "big")))
