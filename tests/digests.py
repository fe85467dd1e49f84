"""Digests for tests whose chunks have no bytes, or small ones: a number stands for the contents."""

from hostagent.tree import Hashed
from kvchunk.ids import Digest
from kvproto.integrity import Integrity, digest_of


def digest(number: int) -> Digest:
    """The digest of the contents that `number` stands for."""
    return digest_of(Integrity.BLAKE3, number.to_bytes(32, "big"))


def hashed(number: int) -> Hashed:
    """What hashing them gives; there is no tree."""
    return Hashed(digest(number))
