"""Everything that decides the bytes of an engine's KV cache, as namespaces of keys.

Two engines share a chunk only if all of it agrees. Knows nothing of any engine's classes: shells collect the facts.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from kvchunk.ids import KvIdentity


@dataclass(frozen=True, slots=True)
class Shard:
    """One part of a chunk: the layers and heads that one worker (or several with equal KV) holds."""

    tensor_rank: int
    tensor_size: int
    pipeline_rank: int
    pipeline_size: int
    layout: str
    """Digest of shapes, strides, dtypes, attention backend and its packing of this worker's cache."""
    chunk_bytes: int
    model: str = ""
    """Digest of the model's buffers (rotary tables, scales) and attention flags, as this worker has them."""


@dataclass(frozen=True, slots=True)
class RequestBinding:
    """What a request adds to the engine's own facts."""

    adapter: str = ""
    """Name and weights digest of the LoRA adapter; empty without one."""
    salt: str = ""
    """The request's `cache_salt`: requests share only within a salt."""


@dataclass(frozen=True, slots=True)
class EngineIdentity:
    """What an engine is, as far as its KV depends on it."""

    model: str
    revision: str
    weights_digest: str
    dtype: str
    cache_dtype: str
    block_tokens: int
    chunk_tokens: int
    engine: str
    """Name and version of the engine: packing of a cache may change with it."""
    extra: str
    """Whatever else decides bytes (load format, quantisation, draft model, media), in a canonical text."""
    shards: tuple[Shard, ...]
    generation: str = ""
    """Of weights that changed since they were loaded (`core.generations`); empty: they are what was loaded."""
    tenant_secret: bytes = field(default=b"", repr=False)
    """See `KvIdentity.tenant_secret`."""
    may_lose: bool = False
    """Its KV may be rounded on its way: its chunks have other keys than those of engines whose KV is exact."""

    @property
    def chunk_bytes(self) -> int:
        """Bytes of one chunk, all shards together."""
        return sum(shard.chunk_bytes for shard in self.shards)

    def of_shard(self, shard: Shard, binding: RequestBinding) -> KvIdentity:
        """What one shard's keys bind."""
        return KvIdentity(
            model=self.model,
            revision=self.revision,
            weights_digest=self.weights_digest,
            dtype=self.dtype,
            cache_dtype=self.cache_dtype,
            layout=f"{shard.layout};model={shard.model}" if shard.model else shard.layout,
            chunk_tokens=self.chunk_tokens,
            tensor_parallel_rank=shard.tensor_rank,
            tensor_parallel_size=shard.tensor_size,
            pipeline_parallel_rank=shard.pipeline_rank,
            pipeline_parallel_size=shard.pipeline_size,
            adapter=binding.adapter,
            tenant_salt=binding.salt,
            extra=f"engine={self.engine};block_tokens={self.block_tokens};{self.extra}{';kv=lossy' * self.may_lose}"
            + (f";weights {self.generation}" if self.generation else ""),
            tenant_secret=self.tenant_secret,
        )

    def digests(self, binding: RequestBinding) -> tuple[bytes, ...]:
        """Identity digests of all shards, in their order."""
        return tuple(self.of_shard(shard, binding).digest() for shard in self.shards)
