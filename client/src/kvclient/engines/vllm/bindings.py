"""Which keys a request's tokens get: what the engine is, and what the request adds to that."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kvclient.engines.core.identity import EngineIdentity, RequestBinding
from kvclient.engines.core.keys import MediaSpan, PrefixKeys
from kvclient.engines.vllm.adapters import Adapter, AdapterDigests
from kvclient.engines.vllm.media import MediaDigests

DIGESTS_MAX = 1024


class RequestKeys:
    """Keys of one engine's requests."""

    def __init__(self, identity: EngineIdentity, media: MediaDigests) -> None:
        self._identity = identity
        self._media = media
        self._digests: dict[RequestBinding, tuple[bytes, ...]] = {}
        self._adapters = AdapterDigests()
        self._with_adapter: dict[str, Adapter] = {}
        """By request: what its keys were made with."""

    def of(self, request: Any) -> PrefixKeys | None:
        """Keys of a vLLM request; None when its adapter has no digest: then it is computed and not saved."""
        name = ""
        if request.lora_request is not None:
            adapter = self._adapters.of(request.lora_request)
            if not adapter.name:
                return None
            self._with_adapter[request.request_id] = adapter
            name = adapter.name
        return self._keys(RequestBinding(name, request.cache_salt or ""), self._media_of(request))

    def are_true(self, request: Any) -> bool:
        """Whether a request's keys still name what the engine computes: no write to its adapter's files since `of`."""
        adapter = self._with_adapter.get(request.request_id)
        return adapter is None or self._adapters.of(request.lora_request) == adapter

    def request_ended(self, request_id: str) -> None:
        """A request is done with."""
        self._with_adapter.pop(request_id, None)

    def of_text(self, tokens: Sequence[int]) -> PrefixKeys:
        """Keys of tokens alone, as far as their chunks are full."""
        keys = self._keys(RequestBinding(), ())
        keys.extend(tokens)
        return keys

    def _media_of(self, request: Any) -> list[MediaSpan]:
        """Where placeholders of images and the like are, and what they stand for."""
        return [
            MediaSpan(
                feature.mm_position.offset,
                feature.mm_position.offset + feature.mm_position.length,
                self._media.of(feature.identifier, feature.data),
            )
            for feature in request.mm_features
        ]

    def _keys(self, binding: RequestBinding, media: Sequence[MediaSpan]) -> PrefixKeys:
        digests = self._digests.get(binding)
        if digests is None:
            if len(self._digests) >= DIGESTS_MAX:
                self._digests.clear()
            digests = self._digests[binding] = self._identity.digests(binding)
        return PrefixKeys(digests, self._identity.chunk_tokens, media)


def traceparent_of(request: Any) -> str | None:
    """The trace context of a vLLM request (W3C Trace Context), if vLLM traces."""
    headers = request.trace_headers
    return headers.get("traceparent") if headers else None
