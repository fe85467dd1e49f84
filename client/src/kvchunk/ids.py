"""How chunks are named: namespaces, and keys that chain over the tokens before. Pure."""

import hashlib
import sys
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import NewType, cast

ChunkKey = NewType("ChunkKey", bytes)
"""128-bit name of a chunk: 16 bytes that chain over the whole prefix before it (`chunk_key`)."""

Digest = NewType("Digest", bytes)
"""One byte that names the algorithm, then its output. Equal digests mean equal bytes, as far as the algorithm goes."""

KEY_BYTES = 16
TOKEN_BYTES = 4
"""Of a token as keys digest it."""
DIGEST_BYTES = 32
"""Of a `KvIdentity`."""
SECRET_BYTES_MIN = 16
"""Of a tenant's secret: as many as a key has, so that guessing the secret is no easier than guessing a key."""
ROOT_KEY = ChunkKey(bytes(KEY_BYTES))
"""The parent of a chunk that has none."""


@dataclass(frozen=True, slots=True)
class KvIdentity:
    """Everything besides the tokens that changes the bytes of a chunk; two nodes share bytes only if all of it agrees.

    Fields that do not apply stay at their defaults, which are digested as such.
    """

    model: str
    revision: str = ""
    weights_digest: str = ""
    dtype: str = ""
    cache_dtype: str = ""
    layout: str = ""
    chunk_tokens: int = 256
    tensor_parallel_rank: int = 0
    tensor_parallel_size: int = 1
    pipeline_parallel_rank: int = 0
    pipeline_parallel_size: int = 1
    adapter: str = ""
    tenant_salt: str = ""
    extra: str = ""
    """Whatever else an engine binds (multimodal hashes, backend packing), in a canonical text of its own."""
    tenant_secret: bytes = field(default=b"", repr=False)
    """Of those who share with each other and nobody else: without it nobody can name or find these chunks. Empty:
    whoever knows the other fields and the tokens can. Never sent, printed or logged."""

    def __post_init__(self) -> None:
        if 0 < len(self.tenant_secret) < SECRET_BYTES_MIN:
            raise ValueError(f"a tenant's secret has at least {SECRET_BYTES_MIN} bytes, not {len(self.tenant_secret)}")

    def digest(self) -> bytes:
        """32 bytes that differ whenever a field differs; each field goes in with its name and length. With a secret a
        keyed hash (BLAKE2, RFC 7693), so keys that chain over it are keyed, too."""
        state = hashlib.blake2b(digest_size=DIGEST_BYTES, person=b"kvcast-namespac", key=_hash_key(self.tenant_secret))
        for one in fields(self):
            if one.name == "tenant_secret":
                continue
            value = str(getattr(self, one.name)).encode(errors="surrogatepass")  # a path may be no text
            state.update(b"%s %d:" % (one.name.encode(), len(value)))
            state.update(value)
        return state.digest()


def _hash_key(secret: bytes) -> bytes:
    """A secret of any length as a key of BLAKE2b, which takes 64 bytes at most; empty stays empty: unkeyed."""
    return hashlib.blake2b(secret, person=b"kvcast-tenant").digest() if secret else b""


def pack_tokens(tokens: Sequence[int]) -> bytes:
    """Tokens (each 0..2**32-1) as 32-bit big-endian integers. Raises OverflowError for any other token."""
    packed = array("I", tokens)
    if packed.itemsize != TOKEN_BYTES:
        return b"".join(token.to_bytes(TOKEN_BYTES, "big") for token in tokens)
    if sys.byteorder == "little":
        packed.byteswap()
    return packed.tobytes()


def chunk_keys(parent: ChunkKey, identity_digest: bytes, packed: bytes, chunk_tokens: int) -> list[ChunkKey]:
    """Keys of the chunks that follow `parent` and cover whole chunks of tokens that `pack_tokens` packed.

    A key is the first 128 bits of blake2b over the parent's key, the identity's digest and the chunk's tokens as
    32-bit big-endian integers. Both prefixes have a fixed length, so no two inputs digest the same bytes.
    """
    if len(parent) != KEY_BYTES:
        raise ValueError(f"a parent key has {KEY_BYTES} bytes, not {len(parent)}")
    if len(identity_digest) != DIGEST_BYTES:
        raise ValueError(f"an identity's digest has {DIGEST_BYTES} bytes, not {len(identity_digest)}")
    size, view, key, keys = chunk_tokens * TOKEN_BYTES, memoryview(packed), bytes(parent), []
    for start in range(0, len(packed) - size + 1, size):
        key = hashlib.blake2b(b"".join((key, identity_digest, view[start : start + size]))).digest()[:KEY_BYTES]
        keys.append(key)
    return cast("list[ChunkKey]", keys)


def chunk_key(parent: ChunkKey, identity_digest: bytes, tokens: Sequence[int]) -> ChunkKey:
    """Key of one chunk that covers all of `tokens` (each 0..2**32-1), at least one: see `chunk_keys`."""
    return chunk_keys(parent, identity_digest, pack_tokens(tokens), len(tokens))[0]


def prefix_keys(identity: KvIdentity, tokens: Sequence[int], parent: ChunkKey = ROOT_KEY) -> list[ChunkKey]:
    """Keys of all full chunks of `tokens`, in prefix order; tokens behind the last full chunk have none."""
    return chunk_keys(parent, identity.digest(), pack_tokens(tokens), identity.chunk_tokens)
