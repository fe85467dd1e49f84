"""KV events of the pool in vLLM's own format, so that routers see what the pool holds.

Each kind of router knows media of its own and drops, or takes for the engine's own memory, what it does not know. So
`events_medium` chooses the name. Every engine can load a chunk of the pool: each publishes the chunks that it knows of.
"""

from __future__ import annotations

import threading
from array import array
from collections.abc import Iterable, Sequence
from typing import Any

from vllm.distributed.kv_events import BlockRemoved, BlockStored
from vllm.v1.core.kv_cache_utils import generate_block_hash_extra_keys, maybe_convert_block_hash, to_event_extra_keys
from vllm.v1.kv_cache_interface import get_kv_cache_spec_kind

from kvchunk.ids import ChunkKey
from kvclient.client import Where
from kvclient.engines.core.announcements import Announcement, Announcements, ChunkFacts, Stored
from kvclient.engines.core.requests import farthest
from kvclient.engines.settings import KVCAST_MEDIA, Settings
from kvclient.engines.vllm.facts import CacheGroups


def chunk_facts(request: Any, chunk: int, chunk_tokens: int, hash_tokens: int) -> ChunkFacts | None:
    """What an event says about a request's chunk; None: vLLM has no hashes of it, because prefix caching is off."""
    first, end = chunk * chunk_tokens // hash_tokens, (chunk + 1) * chunk_tokens // hash_tokens
    if chunk_tokens % hash_tokens or len(request.block_hashes) < end:
        return None
    return ChunkFacts(
        block_hashes=tuple(maybe_convert_block_hash(value) for value in request.block_hashes[first:end]),
        parent_hash=maybe_convert_block_hash(request.block_hashes[first - 1]) if first else None,
        tokens=array("I", request.all_token_ids[chunk * chunk_tokens : (chunk + 1) * chunk_tokens]),
        adapter=request.lora_request.lora_name if request.lora_request is not None else None,
        extra_keys=_extra_keys(request, first, end, hash_tokens),
        session=request.session_id,
    )


def _extra_keys(request: Any, first: int, end: int, hash_tokens: int) -> tuple[tuple[object, ...] | None, ...] | None:
    """Of blocks [first, end), as vLLM's own events have them; a block's do not depend on where the chunk begins."""
    found = [
        # From the first image or sound on: there are few, and the blocks of a chunk are few, too.
        generate_block_hash_extra_keys(request, block * hash_tokens, (block + 1) * hash_tokens, 0)[0]
        for block in range(first, end)
    ]
    keys = to_event_extra_keys(found)
    return None if keys is None else tuple(keys)


class EventForm:
    """How announcements become vLLM's events."""

    def __init__(self, medium: str, hash_tokens: int, kind: str, group: int = 0) -> None:
        """`kind`: the kind of the leading group of caches, as vLLM's own events name it; `group`: its number."""
        self._group = group
        self._names_own = medium == KVCAST_MEDIA
        self._medium = medium
        self._hash_tokens = hash_tokens
        self._kind = kind

    def to_vllm(self, announcements: Iterable[Announcement]) -> list[BlockStored | BlockRemoved]:
        """The events to publish."""
        # Some routers, Dynamo's among them, keep only what is at the engine itself and drop REMOTE blocks.
        locality = "REMOTE" if self._names_own else None
        events: list[BlockStored | BlockRemoved] = []
        for each in announcements:
            medium = each.medium.value if self._names_own else self._medium
            if not isinstance(each, Stored):
                events.append(BlockRemoved(list(each.block_hashes), medium, group_idx=self._group, locality=locality))
                continue
            facts = each.facts
            events.append(
                BlockStored(
                    block_hashes=list(facts.block_hashes),
                    parent_block_hash=facts.parent_hash,
                    token_ids=list(facts.tokens),
                    block_size=self._hash_tokens,
                    lora_id=None,
                    medium=medium,
                    lora_name=facts.adapter,
                    extra_keys=list(facts.extra_keys) if facts.extra_keys is not None else None,
                    group_idx=self._group,
                    kv_cache_spec_kind=self._kind,
                    locality=locality,
                    session_id=facts.session,
                )
            )
        return events


class PoolNews:
    """What this engine publishes about the pool. Called by the scheduler's thread and by the one that serves an idle
    engine."""

    def __init__(self, vllm_config: Any, kv_cache_config: Any, settings: Settings, groups: CacheGroups) -> None:
        self._chunk_tokens = settings.chunk_tokens
        self._announcements = Announcements(
            settings.events_chunks_max, tell_media_apart=settings.events_medium == KVCAST_MEDIA
        )
        self._events: list[Announcement] = []
        self._lock = threading.Lock()
        events = getattr(vllm_config, "kv_events_config", None)
        self.is_on = bool(settings.events and events is not None and events.enable_kv_cache_events)
        self._hash_tokens = kv_cache_config.hash_block_size or groups.block_tokens
        leading = groups.order[0]
        kind = get_kv_cache_spec_kind(kv_cache_config.kv_cache_groups[leading].kv_cache_spec).value
        self._form = EventForm(settings.events_medium, self._hash_tokens, kind, leading)

    def chunk_in_pool(self, request: Any, chunk: int, keys: tuple[ChunkKey, ...], where: Where) -> None:
        """The pool has a request's chunk."""
        facts = chunk_facts(request, chunk, self._chunk_tokens, self._hash_tokens) if self.is_on else None
        if facts is not None:
            with self._lock:
                self._events += self._announcements.chunk_in_pool(keys, where, facts)

    def chunks_found(self, request: Any, keys: Sequence[tuple[ChunkKey, ...]], where: Sequence[Where]) -> None:
        """A lookup found a request's leading chunks; `where` per key, chunk by chunk."""
        if not self.is_on or not keys:
            return
        shards = len(keys[0])
        for chunk in range(len(where) // shards):
            place = farthest(where[chunk * shards : (chunk + 1) * shards])
            if place in (Where.NOWHERE, Where.COMPUTING):
                break
            self.chunk_in_pool(request, chunk, keys[chunk], place)

    def announced_keys(self) -> list[tuple[ChunkKey, ...]]:
        """Keys of the chunks that routers know of: what to look up from time to time."""
        with self._lock:
            return self._announcements.keys()

    def sweep_ended(self, chunks: Sequence[tuple[ChunkKey, ...]], where: Sequence[Where]) -> None:
        """A look-up of the announced chunks has ended; `where` per key, chunk by chunk."""
        places, at = [], 0
        for keys in chunks:
            places.append(farthest(where[at : at + len(keys)]))
            at += len(keys)
        with self._lock:
            self._events += self._announcements.sweep_ended(chunks, places)

    def withdraw(self) -> None:
        """Withdraw all chunks: this engine can use none of them any more."""
        with self._lock:
            self._events += self._announcements.withdraw()

    def take(self) -> list[BlockStored | BlockRemoved]:
        """Events since the last call."""
        if not self._events:
            return []
        with self._lock:
            events, self._events = self._events, []
        return self._form.to_vllm(events)
