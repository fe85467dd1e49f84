"""Keys of a growing token sequence, for every shard of an engine. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

from kvchunk.ids import ROOT_KEY, TOKEN_BYTES, ChunkKey, chunk_keys, pack_tokens


@dataclass(frozen=True, slots=True)
class MediaSpan:
    """Placeholder tokens [start, end) of an image, a sound, ...; what they stand for is in `digest`, not in the ids."""

    start: int
    end: int
    digest: str | None
    """Of its data; None: nobody here has seen them, so no chunk from here on has a key."""


class PrefixKeys:
    """`keys[i][s]` is the key of chunk i at shard s. Grows with the sequence; a chunk's keys never change."""

    def __init__(self, digests: Sequence[bytes], chunk_tokens: int, media: Sequence[MediaSpan] = ()) -> None:
        """`digests`: digest of each shard's identity."""
        self._digests = tuple(digests)
        self._chunk_tokens = chunk_tokens
        self._media = tuple(sorted(media, key=lambda span: (span.start, span.end)))
        unseen = [span.start // chunk_tokens for span in self._media if span.digest is None]
        self._chunks_max = min(unseen, default=None)
        self.keys: list[tuple[ChunkKey, ...]] = []

    @property
    def chunks_count(self) -> int:
        return len(self.keys)

    def named(self, chunks: int) -> int:
        """How many of so many leading chunks have keys, now or once their tokens are known."""
        return chunks if self._chunks_max is None else min(chunks, self._chunks_max)

    def extend(self, tokens: Sequence[int], chunks_max: int | None = None) -> None:
        """Derive the keys of all full chunks of `tokens` (the whole sequence from its beginning) not derived yet, as
        far as they have any."""
        size = self._chunk_tokens
        count = self.named(len(tokens) // size)
        if chunks_max is not None:
            count = min(count, chunks_max)
        first = len(self.keys)
        if count <= first:
            return
        packed = pack_tokens(tokens[first * size : count * size])
        parents = self.keys[-1] if self.keys else (ROOT_KEY,) * len(self._digests)
        if self._media:
            self._extend_with_media(packed, parents)
        else:
            chains = [
                chunk_keys(parent, digest, packed, size) for parent, digest in zip(parents, self._digests, strict=True)
            ]
            self.keys.extend(zip(*chains, strict=True))

    def _extend_with_media(self, packed: bytes, parents: tuple[ChunkKey, ...]) -> None:
        size_bytes = self._chunk_tokens * TOKEN_BYTES
        for start in range(0, len(packed), size_bytes):
            chunk = len(self.keys)
            media = self._media_text(chunk * self._chunk_tokens, (chunk + 1) * self._chunk_tokens)
            content = packed[start : start + size_bytes]
            parents = tuple(
                chunk_keys(parent, _bind(digest, media), content, self._chunk_tokens)[0]
                for parent, digest in zip(parents, self._digests, strict=True)
            )
            self.keys.append(parents)

    def parents(self, chunk: int) -> tuple[ChunkKey | None, ...]:
        """Keys of the chunk before, per shard; None for the first."""
        return self.keys[chunk - 1] if chunk else (None,) * len(self._digests)

    def flat(self, first: int, end: int) -> list[ChunkKey]:
        """Keys of chunks [first, end): all shards of a chunk next to each other, chunks in prefix order."""
        return list(chain.from_iterable(self.keys[first:end]))

    def _media_text(self, start: int, end: int) -> bytes:
        spans = [span for span in self._media if span.start < end and span.end > start]
        return "".join(f"{span.start - start}+{span.end - span.start}={span.digest};" for span in spans).encode()


def _bind(digest: bytes, media: bytes) -> bytes:
    """A digest that also binds media; itself when there are none."""
    if not media:
        return digest
    return hashlib.blake2b(media, digest_size=32, key=digest, person=b"kvcast-media").digest()
