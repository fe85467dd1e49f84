"""Keys of chunks that are named by their own tokens alone, whatever stands before them. Pure.

A document that appears in many prompts, each time behind something else, has one key. A client that puts a chunk under
such a key has computed it alone, from position 0 and with nothing before it, so all clients put the same bytes. A
client that fetches it turns K to its place in the prompt and computes some tokens again (`kvclient.engines.blend`),
because in a prompt its tokens see what stands before them.

Keys of prefixes are an unkeyed hash that begins with a parent (`kvchunk.ids`), keys of names one with another
personalisation (`named_keys`): the same tokens, or the same bytes, give different keys in each.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence

from kvchunk.ids import DIGEST_BYTES, KEY_BYTES, ChunkKey, pack_tokens


def content_keys(identity_digest: bytes, chunks: Iterable[Sequence[int]]) -> list[ChunkKey]:
    """A key for the tokens (each 0..2**32-1) of each chunk: 128 bits of blake2b, keyed with the identity's digest.

    Two keys are equal only if identity and tokens are. Raises ValueError for a digest of another length and for a
    chunk without tokens, OverflowError for any other token.
    """
    if len(identity_digest) != DIGEST_BYTES:
        raise ValueError(f"an identity's digest has {DIGEST_BYTES} bytes, not {len(identity_digest)}")
    return [_content_key(identity_digest, tokens) for tokens in chunks]


def _content_key(identity_digest: bytes, tokens: Sequence[int]) -> ChunkKey:
    if not len(tokens):
        raise ValueError("a chunk without tokens has no content to be named by")
    packed = pack_tokens(tokens)
    return ChunkKey(
        hashlib.blake2b(packed, digest_size=KEY_BYTES, key=identity_digest, person=b"kvcast-content").digest()
    )
