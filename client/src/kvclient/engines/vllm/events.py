"""KV events of the pool in vLLM's own format, medium `pool` or `switch`, so that routers see what the pool holds."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from typing import Any

from vllm.distributed.kv_events import BlockRemoved, BlockStored
from vllm.v1.core.kv_cache_utils import maybe_convert_block_hash

from kvclient.client import Where
from kvclient.engines.core.announcements import Announcement, Announcements, ChunkFacts, Stored
from kvclient.engines.core.requests import farthest
from kvclient.engines.settings import Settings
from kvproto.ids import ChunkKey


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


class PoolNews:
    """What this engine tells routers of the pool."""

    def __init__(self, vllm_config: Any, kv_cache_config: Any, settings: Settings, block_tokens: int) -> None:
        self._chunk_tokens = settings.chunk_tokens
        self._announcements = Announcements(settings.events_chunks_max)
        self._events: list[Announcement] = []
        events = getattr(vllm_config, "kv_events_config", None)
        self.is_on = bool(settings.events and events is not None and events.enable_kv_cache_events)
        self._hash_tokens = kv_cache_config.hash_block_size or block_tokens
        self._kind = str(getattr(kv_cache_config.kv_cache_groups[0].kv_cache_spec, "kind", "") or "")

    def there(self, request: Any, chunk: int, keys: tuple[ChunkKey, ...], where: Where) -> None:
        """A request's chunk is in the pool."""
        facts = chunk_facts(request, chunk, self._chunk_tokens, self._hash_tokens) if self.is_on else None
        if facts is not None:
            self._events += self._announcements.there(keys, where, facts)

    def found(self, request: Any, keys: Sequence[tuple[ChunkKey, ...]], where: Sequence[Where]) -> None:
        """A lookup found a request's leading chunks; `where` per key, chunk by chunk."""
        if not self.is_on or not keys:
            return
        shards = len(keys[0])
        for chunk in range(len(where) // shards):
            place = farthest(where[chunk * shards : (chunk + 1) * shards])
            if place in (Where.NOWHERE, Where.COMPUTING):
                break
            self.there(request, chunk, keys[chunk], place)

    def told(self) -> list[tuple[ChunkKey, ...]]:
        """Keys of the chunks that routers know of: what to look up now and then."""
        return self._announcements.keys()

    def swept(self, chunks: Sequence[tuple[ChunkKey, ...]], where: Sequence[Where]) -> None:
        """Where those are now; `where` per key, chunk by chunk."""
        places, at = [], 0
        for keys in chunks:
            places.append(farthest(where[at : at + len(keys)]))
            at += len(keys)
        self._events += self._announcements.swept(chunks, places)

    def withdraw(self) -> None:
        """Nothing that routers know of is of use to this engine any more."""
        self._events += self._announcements.withdraw()

    def take(self) -> list[BlockStored | BlockRemoved]:
        """Events since the last call."""
        events, self._events = self._events, []
        return to_vllm(events, self._hash_tokens, self._kind) if events else []
