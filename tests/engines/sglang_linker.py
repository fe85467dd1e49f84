"""A cache linker for SGLang with a store in this process, which answers "not yet" and "miss" as its test wants.

Not kvcast's: it shows that SGLang with docs/explanation/sglang-linker-answers.patch does what kvcast would need of it.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from sglang.srt.mem_cache.hicache_storage import PoolName, PoolTransfer
from sglang.srt.mem_cache.unified_cache.unified_cache_linker import LayerWiseLoadCounter, UnifiedCacheLinker


class DictLinker(UnifiedCacheLinker):
    """Keeps pages by their hashes. `extra_config`: `log`, a file with a JSON object for each answer; `not_yet`, how
    often each request's look-up has no answer; `refusing`, a path: while it is there, no load is queued."""

    def __init__(
        self,
        server_args: Any,
        params: Any,
        *,
        components: Any,
        extra_config: dict[str, Any],
        forward_stream: Any = None,
    ) -> None:
        del server_args, components
        self._kv = params.token_to_kv_pool_allocator.get_kvcache()
        self._page_tokens: int = params.page_size
        self._log = Path(extra_config["log"])
        self._refusing = Path(extra_config["refusing"])
        self._not_yet: int = extra_config["not_yet"]
        self._asked: Counter[str] = Counter()
        self._pages: dict[str, torch.Tensor] = {}
        self._queued: dict[str, PoolTransfer] = {}
        self._stored = 0
        self.pools = {PoolName.KV: self._kv}
        self.forward_stream = forward_stream
        self.layer_done_counter = LayerWiseLoadCounter(len(self._kv.k_buffer))

    def lookup(self, rid: str, transfers: list[PoolTransfer]) -> list[int] | None:
        self._asked[rid] += 1
        if self._asked[rid] <= self._not_yet:
            self._tell(rid, "not yet")
            return None
        (transfer,) = transfers
        found = 0
        for key in transfer.keys:
            if key not in self._pages:
                break
            found += 1
        self._tell(rid, found)
        return list(range(1, found + 1))

    def load(self, rid: str, transfers: list[PoolTransfer]) -> bool:
        if self._refusing.exists():
            self._tell(rid, "miss")
            return False
        (self._queued[rid],) = transfers
        return True

    def start_layer_wise_loading(self) -> int:
        index = self.layer_done_counter.update_producer()
        for transfer in self._queued.values():
            for page, slots in zip(transfer.keys, self._slots(transfer), strict=True):
                for layer, buffers in enumerate(self._buffers()):
                    for part, buffer in enumerate(buffers):
                        buffer[slots] = self._pages[page][layer, part]
        self._queued.clear()
        for layer in range(len(self._kv.k_buffer)):
            self.layer_done_counter.complete(index, layer)
        return index

    def finish_layer_wise_loading(self, counter_index: int) -> bool:
        return self.layer_done_counter.finish(counter_index)

    def cancel_queued_load(self, rid: str) -> bool:
        return self._queued.pop(rid, None) is not None

    def offload(self, transfers: list[PoolTransfer], session_id: str | None = None) -> bool:
        (transfer,) = transfers
        for page, slots in zip(transfer.keys, self._slots(transfer), strict=True):
            self._pages[page] = torch.stack(
                [torch.stack([buffer[slots] for buffer in buffers]) for buffers in self._buffers()]
            )
        self._stored += 1
        return True

    def num_completed_offloads(self) -> int:
        return self._stored

    def pop_completed_offload(self) -> bool:
        self._stored -= 1
        return True

    def reset(self) -> None:
        """What is stored outlives the engine's cache, as it would in a pool."""
        self._queued.clear()
        self._stored = 0
        self.layer_done_counter.reset()

    def close(self) -> None:
        self.reset()

    def _buffers(self) -> list[tuple[torch.Tensor, torch.Tensor]]:
        return list(zip(self._kv.k_buffer, self._kv.v_buffer, strict=True))

    def _slots(self, transfer: PoolTransfer) -> Sequence[torch.Tensor]:
        return transfer.device_indices.split(self._page_tokens)

    def _tell(self, rid: str, answer: object) -> None:
        with open(self._log, "a", encoding="utf-8") as log:
            print(json.dumps({"rid": rid, "answer": answer}), file=log)
