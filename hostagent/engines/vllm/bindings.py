"""Which keys a request's tokens get: what the engine is, and what the request adds to that."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from hostagent.engines.core.identity import EngineIdentity, RequestBinding
from hostagent.engines.core.keys import MediaSpan, PrefixKeys
from hostagent.engines.weights import WeightsError, fingerprint

log = logging.getLogger("vllm.kvcast")

DIGESTS_MAX = 1024


class RequestKeys:
    """Keys of one engine's requests."""

    def __init__(self, identity: EngineIdentity) -> None:
        self._identity = identity
        self._weights_digest = identity.weights_digest
        self._digests: dict[RequestBinding, tuple[bytes, ...]] = {}
        self._adapters: dict[str, str] = {}

    def of(self, request: Any) -> PrefixKeys | None:
        """Keys of a vLLM request; None when its adapter has no fingerprint: then it is computed and not saved."""
        adapter = self._adapter(request.lora_request) if request.lora_request is not None else ""
        if adapter is None:
            return None
        return self._keys(RequestBinding(adapter, request.cache_salt or ""), _media_of(request))

    def of_text(self, tokens: Sequence[int]) -> PrefixKeys:
        """Keys of tokens alone, as far as their chunks are full."""
        keys = self._keys(RequestBinding(), ())
        keys.extend(tokens)
        return keys

    def forget(self) -> None:
        """The weights may be others now: nothing has the keys it had, for good."""
        self._identity = replace(self._identity, weights_digest=f"{self._weights_digest}+{uuid.uuid4().hex}")
        self._digests.clear()

    def _keys(self, binding: RequestBinding, media: Sequence[MediaSpan]) -> PrefixKeys:
        digests = self._digests.get(binding)
        if digests is None:
            if len(self._digests) >= DIGESTS_MAX:
                self._digests.clear()
            digests = self._digests[binding] = self._identity.digests(binding)
        return PrefixKeys(digests, self._identity.chunk_tokens, media)

    def _adapter(self, lora: Any) -> str | None:
        digest = self._adapters.get(lora.lora_path)
        if digest is None:
            try:
                digest = fingerprint(lora.lora_path)
            except WeightsError as error:
                log.warning("kvcast: requests with adapter %s are not cached: %s", lora.lora_name, error)
                digest = ""
            self._adapters[lora.lora_path] = digest
        return f"{lora.lora_name}:{digest}" if digest else None


def _media_of(request: Any) -> list[MediaSpan]:
    """Where placeholders of images and the like are, and what they stand for."""
    return [
        MediaSpan(
            feature.mm_position.offset, feature.mm_position.offset + feature.mm_position.length, feature.identifier
        )
        for feature in request.mm_features
    ]
