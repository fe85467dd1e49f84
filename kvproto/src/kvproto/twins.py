"""Twins: a chunk in a form of fewer bytes is a chunk of its own, with a key that follows from the chunk's. Pure.

A twin is announced, read, cast and cached like any chunk. Whoever knows the key of a chunk can name its twins, and
nobody else: a namespace's secret protects them as it protects the chunk. `kvcodec.forms.Form` says what the codes mean.
"""

from __future__ import annotations

import hashlib
from functools import lru_cache
from typing import Final

from kvchunk.ids import KEY_BYTES, ChunkKey

TWIN_CODES: Final = (1, 2)
"""Of the forms that twins have."""
_PERSON: Final = b"kvcast-twin"


@lru_cache(maxsize=1 << 16)
def twin_key(key: ChunkKey, code: int) -> ChunkKey:
    """The key of a chunk's twin: 128 bits of blake2b, personalized so that no prefix of tokens has it."""
    if code not in TWIN_CODES:
        raise ValueError(f"no form of twins has the code {code}")
    return ChunkKey(hashlib.blake2b(bytes((code,)) + key, digest_size=KEY_BYTES, person=_PERSON).digest())


def twin_code(key: ChunkKey, parent: ChunkKey | None) -> int | None:
    """In which form a chunk of these keys is its parent's twin; None: it is no twin."""
    if parent is None:
        return None
    return next((code for code in TWIN_CODES if twin_key(parent, code) == key), None)
