"""KV events of the pool in vLLM's own format, medium `pool` or `switch`, so that routers see what the pool holds."""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from typing import Any

from vllm.distributed.kv_events import BlockRemoved, BlockStored
from vllm.v1.core.kv_cache_utils import maybe_convert_block_hash

from hostagent.engines.core.announcements import Announcement, ChunkFacts, Stored


def chunk_facts(request: Any, chunk: int, chunk_tokens: int, hash_tokens: int) -> ChunkFacts | None:
    """What an event says of a request's chunk; None when vLLM has no hashes of it (prefix caching is off)."""
    first, end = chunk * chunk_tokens // hash_tokens, (chunk + 1) * chunk_tokens // hash_tokens
    if chunk_tokens % hash_tokens or len(request.block_hashes) < end:
        return None
    return ChunkFacts(
        block_hashes=tuple(maybe_convert_block_hash(value) for value in request.block_hashes[first:end]),
        parent_hash=maybe_convert_block_hash(request.block_hashes[first - 1]) if first else None,
        tokens=array("I", request.all_token_ids[chunk * chunk_tokens : (chunk + 1) * chunk_tokens]),
        adapter=request.lora_request.lora_name if request.lora_request is not None else None,
    )


def to_vllm(announcements: Iterable[Announcement], hash_tokens: int, kind: str) -> list[BlockStored | BlockRemoved]:
    """The events to publish; `kind`: the kind of the one group of caches, as vLLM's own events name it."""
    events: list[BlockStored | BlockRemoved] = []
    for each in announcements:
        if isinstance(each, Stored):
            events.append(
                BlockStored(
                    block_hashes=list(each.facts.block_hashes),
                    parent_block_hash=each.facts.parent_hash,
                    token_ids=list(each.facts.tokens),
                    block_size=hash_tokens,
                    lora_id=None,
                    medium=each.medium.value,
                    lora_name=each.facts.adapter,
                    group_idx=0,
                    kv_cache_spec_kind=kind,
                    locality="REMOTE",
                )
            )
        else:
            events.append(
                BlockRemoved(
                    block_hashes=list(each.block_hashes), medium=each.medium.value, group_idx=0, locality="REMOTE"
                )
            )
    return events
