"""Keys of chunks that an engine names by a hash of its own. Pure.

vLLM's connector derives keys from tokens (`keys`). Other engines hand their store a name per chunk: SGLang the hash of
a page and all before it, LMCache and UCM the like. A name says which tokens; the identity says everything else that
decides the bytes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

from kvchunk.ids import DIGEST_BYTES, KEY_BYTES, ChunkKey


def named_keys(identity_digest: bytes, names: Iterable[bytes]) -> list[ChunkKey]:
    """A key for each name (any bytes): 128 bits of blake2b over the name, keyed with the identity's digest.

    Two keys are equal only if identity and name are. Raises ValueError for a digest of another length.
    """
    if len(identity_digest) != DIGEST_BYTES:
        raise ValueError(f"an identity's digest has {DIGEST_BYTES} bytes, not {len(identity_digest)}")
    return [
        ChunkKey(hashlib.blake2b(name, digest_size=KEY_BYTES, key=identity_digest, person=b"kvcast-named").digest())
        for name in names
    ]


def leading(present: Iterable[bool]) -> int:
    """How many are present before the first that is absent."""
    count = 0
    for here in present:
        if not here:
            break
        count += 1
    return count
