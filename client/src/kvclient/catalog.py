"""The catalog of chunks that are in a node's pool, and the table of leases: memory that agent and engines share. Pure.

Integers are 64 bits in the machine's own order; each is read and written at once.

The catalog is written by the agent and read by engines. A page of header comes first:

| word | meaning |
|---|---|
| 0 | MAGIC |
| 1 | VERSION of the layout |
| 2 | sets, a power of two; each has WAYS entries |
| 3 | reserved |
| 4, 5 | salt: 16 random bytes of this agent's life |

Entries of 64 bytes follow, set by set. A chunk is in the set that the low bits of its tag name, or in none:

| word | meaning |
|---|---|
| 0 | generation: odd while the entry holds, even while it does not; it only grows |
| 1, 2 | tag: BLAKE2s of the chunk's key, 16 bytes, keyed with the salt |
| 3 | offset of the chunk in the pool |
| 4 | bytes of the chunk |

The tag names a chunk to whoever has its key, and tells nobody else the key.

A table of leases belongs to one connection. The engine writes it, the agent reads it:

| word | meaning |
|---|---|
| 0 | MAGIC, written by the agent |
| 1 | bytes that this connection may lease without asking, written by the agent |
| 2 | hits so far, written by the engine |
| 8 to 1031 | leases: 0, or `lease_word` of the entry that is being read |
| 1032 to 2047 | the last hits: hit number n is at 1032 + n modulo HITS |

To lease a chunk an engine (1) reads an entry's generation, tag, offset and size, (2) writes the lease, (3) reads the
generation again: unchanged and odd, the chunk stays until the lease is written over. An agent that takes a chunk away
(1) makes the generation even, (2) issues a barrier (`kvclient.barrier`), (3) reads all tables: whoever has no lease
there by now cannot get one any more.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

MAGIC: Final = int.from_bytes(b"KVCASTCA", "little")
VERSION: Final = 1
HEADER_BYTES: Final = 4096
WORD_BYTES: Final = 8
ENTRY_WORDS: Final = 8
ENTRY_BYTES: Final = ENTRY_WORDS * WORD_BYTES
WAYS: Final = 4
SALT_BYTES: Final = 16
TAG_BYTES: Final = 16
SETS_MAX: Final = 1 << 16
"""16 MiB of entries, of which only those in use take memory."""

LEASES: Final = 1024
HITS: Final = 1016
LEASES_AT: Final = 8
HITS_AT: Final = LEASES_AT + LEASES
TABLE_WORDS: Final = HITS_AT + HITS
TABLE_BYTES: Final = TABLE_WORDS * WORD_BYTES

ENTRY_BITS: Final = 20
_ENTRY_MASK: Final = (1 << ENTRY_BITS) - 1
GENERATION_MASK: Final = (1 << 44) - 1
_WORD_MASK: Final = (1 << 64) - 1
_WORDS_AT: Final = HEADER_BYTES // WORD_BYTES
_TAG: Final = struct.Struct("=QQ")

assert SETS_MAX * WAYS <= 1 << ENTRY_BITS
assert TABLE_BYTES % 4096 == 0


def catalog_bytes(sets: int) -> int:
    """Size of a catalog."""
    return HEADER_BYTES + sets * WAYS * ENTRY_BYTES


def sets_for(chunks_count: int) -> int:
    """Sets of a catalog for so many chunks: a power of two, not more than SETS_MAX."""
    return min(SETS_MAX, 1 << max(0, (2 * chunks_count // WAYS - 1).bit_length()))


def word_of(entry: int) -> int:
    """Index of the first word of an entry."""
    return _WORDS_AT + entry * ENTRY_WORDS


def lease_word(entry: int, generation: int) -> int:
    """What says that a chunk is being read: its entry, as it was in a generation. Never 0, as generations are odd."""
    return (generation & GENERATION_MASK) << ENTRY_BITS | entry


def of_lease_word(word: int) -> tuple[int, int]:
    """(entry, generation)"""
    return word & _ENTRY_MASK, word >> ENTRY_BITS


class Tags:
    """Tags of keys in one catalog."""

    def __init__(self, salt: bytes) -> None:
        """`salt`: SALT_BYTES bytes."""
        self._hash = hashlib.blake2s(digest_size=TAG_BYTES, key=salt)

    def of(self, key: bytes) -> tuple[int, int]:
        """(low, high) of a key's tag."""
        made = self._hash.copy()
        made.update(key)
        low, high = _TAG.unpack(made.digest())
        return low, high


@dataclass(frozen=True, slots=True)
class Header:
    """Of a catalog."""

    sets: int
    salt: bytes

    def write(self, words: memoryview) -> None:
        """Words of format Q, a whole catalog of zeros. The magic comes last."""
        words[1], words[2] = VERSION, self.sets
        words[4], words[5] = _TAG.unpack(self.salt)
        words[0] = MAGIC

    @staticmethod
    def read(words: memoryview) -> Header | None:
        """None: this is no catalog that this side understands."""
        if len(words) * WORD_BYTES < HEADER_BYTES or words[0] != MAGIC or words[1] != VERSION:
            return None
        sets = int(words[2])
        if not 0 < sets <= SETS_MAX or sets & (sets - 1) or len(words) * WORD_BYTES < catalog_bytes(sets):
            return None
        return Header(sets, _TAG.pack(words[4], words[5]))


class CatalogReader:
    """An engine's look at a catalog and at its own table."""

    __slots__ = ("_hash", "_leases", "_mask", "_words")

    def __init__(self, words: memoryview, header: Header, table: memoryview) -> None:
        """`words`, `table`: of format Q. One thread at a time."""
        self._words = words
        self._leases = table
        self._mask = header.sets - 1
        self._hash = hashlib.blake2s(digest_size=TAG_BYTES, key=header.salt)

    def lease(self, key: bytes, place: int, most_bytes: int) -> tuple[int, int] | None:
        """(offset, bytes) of a chunk, leased at a free word of the table; None: it is not here, or beyond
        `most_bytes`, and nothing is leased."""
        made = self._hash.copy()
        made.update(key)
        low, high = _TAG.unpack(made.digest())
        words = self._words
        at = _WORDS_AT + (low & self._mask) * (WAYS * ENTRY_WORDS)
        for first in range(at, at + WAYS * ENTRY_WORDS, ENTRY_WORDS):
            if words[first + 1] != low:
                continue
            generation = words[first]
            if not generation & 1 or words[first + 1] != low or words[first + 2] != high:
                continue
            size_bytes = words[first + 4]
            if size_bytes > most_bytes:
                return None
            word = (generation & GENERATION_MASK) << ENTRY_BITS | (first - _WORDS_AT) // ENTRY_WORDS
            leases = self._leases
            leases[place] = word
            offset = words[first + 3]
            if words[first] == generation:
                return offset, size_bytes
            leases[place] = 0
        return None

    def holds(self, key: bytes) -> bool:
        """Whether a chunk is here at this moment; nothing is leased."""
        made = self._hash.copy()
        made.update(key)
        low, high = _TAG.unpack(made.digest())
        words = self._words
        at = _WORDS_AT + (low & self._mask) * (WAYS * ENTRY_WORDS)
        return any(
            words[first] & 1 and words[first + 1] == low and words[first + 2] == high
            for first in range(at, at + WAYS * ENTRY_WORDS, ENTRY_WORDS)
        )

    def count_hits(self, places: Sequence[int]) -> None:
        """Tell the agent of chunks that are leased at these words of the table, when it looks."""
        table = self._leases
        hit = table[2]
        for place in places:
            table[HITS_AT + hit % HITS] = table[place]
            hit = hit + 1 & _WORD_MASK
        table[2] = hit

    def release(self) -> None:
        """Let go of the memory."""
        self._words = self._leases = memoryview(b"")


def leases_of(table: bytes) -> list[int]:
    """Words of a table's leases that are not 0, in order. `table`: what an engine wrote, anything; shorter than
    TABLE_BYTES, it has none."""
    if len(table) < TABLE_BYTES:
        return []
    used = table[LEASES_AT * WORD_BYTES : HITS_AT * WORD_BYTES].rstrip(b"\0")
    count = -(-len(used) // WORD_BYTES)
    return [word for word in struct.unpack_from(f"={count}Q", table, LEASES_AT * WORD_BYTES) if word]


def hits_of(table: bytes, seen: int) -> tuple[int, tuple[int, ...]]:
    """(hits counted so far, words of those after the first `seen`, oldest first, as far as they are still there)."""
    if len(table) < TABLE_BYTES:
        return seen, ()
    (now,) = struct.unpack_from("=Q", table, 2 * WORD_BYTES)
    left = min((now - seen) & _WORD_MASK, HITS)
    if not left:
        return now, ()
    words = struct.unpack_from(f"={HITS}Q", table, HITS_AT * WORD_BYTES)
    return now, tuple(words[(now - left + number) % HITS] for number in range(left))
