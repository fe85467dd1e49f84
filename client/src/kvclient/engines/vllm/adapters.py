"""Digests of LoRA adapters, by content, also where an adapter is trained on and loaded again under its own name.

vLLM's workers load an adapter from its files when it is added, and again if it was evicted meanwhile. A request with
`load_inplace` (an adapter under training) makes them load it before each of its steps
(`LRUCacheWorkerLoRAManager.add_adapter`). So the current files show what such a request computes with. For any other
request they show it only as long as nobody has written to them since this engine first saw the adapter. After that,
either content may be the one in use, and its KV has no name.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any, Final

from kvclient.engines.weights import ADAPTER_SUFFIXES, Signature, WeightsError, digest_of, signature_of

log = logging.getLogger("vllm.kvcast")

ADAPTERS_MAX: Final = 4096
"""Adapters remembered; beyond that an engine begins again with those in use."""


@dataclass(frozen=True, slots=True)
class Adapter:
    """An adapter as its files are at a moment."""

    name: str
    """Its name and its content's digest, as the names of chunks bind it; empty: its content is not known."""
    signature: Signature


class AdapterDigests:
    """One engine's. An adapter is known by vLLM's number of it and its path."""

    def __init__(self) -> None:
        self._adapters: dict[tuple[int, str], Adapter] = {}

    def of(self, lora: Any) -> Adapter:
        """What a LoRARequest computes with from now on. Its `name` is empty when requests with it cannot be cached."""
        known = self._adapters.get((lora.lora_int_id, lora.lora_path))
        try:
            signature = signature_of(lora.lora_path, ADAPTER_SUFFIXES)
            if known is not None and known.signature == signature and (known.name or not lora.load_inplace):
                return known
            if known is None or lora.load_inplace:
                digest = digest_of(lora.lora_path, ADAPTER_SUFFIXES)
                return self._remember(lora, Adapter(f"{lora.lora_name}:{digest}", signature))
        except WeightsError as error:
            return self._without_name(lora, known, Adapter("", ()), str(error))
        why = "its files changed and it was not loaded again with load_inplace"
        return self._without_name(lora, known, Adapter("", signature), why)

    def _without_name(self, lora: Any, known: Adapter | None, adapter: Adapter, why: str) -> Adapter:
        if known is None or known.name:
            log.warning("kvcast: requests with adapter %s are not cached: %s", lora.lora_name, why)
        return self._remember(lora, adapter)

    def _remember(self, lora: Any, adapter: Adapter) -> Adapter:
        if len(self._adapters) >= ADAPTERS_MAX:
            self._adapters.clear()
        self._adapters[lora.lora_int_id, lora.lora_path] = adapter
        return adapter
