"""SGLang's own host pools, small, and a driver of the storage interface around them."""

from __future__ import annotations

import hashlib
from typing import Any

import torch
from sglang.srt.mem_cache.device_pool_info import KVBufferLayout, KVBuffers, MHABufferInfo
from sglang.srt.mem_cache.hicache_storage import HiCacheStorageConfig, HiCacheStorageExtraInfo
from sglang.srt.mem_cache.pool_host.mha import MHATokenToKVPoolHost

from kvclient.engines.sglang.backend import KvcastHiCache
from tests.contracts.engine_store.contract import CHUNK_BYTES, content_of
from tests.engines.sglang_weights import SmallWeights

LAYERS, HEADS, HEAD_DIM, PAGE_TOKENS, PAGES = 3, 4, 32, 16, 8
assert 2 * LAYERS * HEADS * HEAD_DIM * PAGE_TOKENS * 2 == CHUNK_BYTES, "a page is a chunk of the contract"


def storage_config(model: str = "m", **changes: Any) -> HiCacheStorageConfig:
    """As SGLang's controller makes it for one rank alone."""
    facts: dict[str, Any] = {
        "tp_rank": 0,
        "tp_size": 1,
        "pp_rank": 0,
        "pp_size": 1,
        "attn_cp_rank": 0,
        "attn_cp_size": 1,
        "is_mla_model": False,
        "enable_storage_metrics": False,
        "is_page_first_layout": False,
        "model_name": model,
    }
    return HiCacheStorageConfig(**{**facts, **changes})


def host_pool(layout: str, pages: int = PAGES, heads: int = HEADS, dtype: torch.dtype = torch.bfloat16) -> Any:
    """A host pool of `pages` pages."""
    layers = [torch.zeros(PAGE_TOKENS * 2, heads, HEAD_DIM, dtype=dtype) for _ in range(2 * LAYERS)]
    pointers = torch.zeros(LAYERS, dtype=torch.uint64)
    buffers = KVBuffers(
        k=tuple(layers[:LAYERS]),
        v=tuple(layers[LAYERS:]),
        k_data_ptrs=pointers,
        v_data_ptrs=pointers,
        layout=KVBufferLayout.NHD,
    )
    info = MHABufferInfo(
        buffers=buffers,
        page_size=PAGE_TOKENS,
        head_num=heads,
        head_dim=HEAD_DIM,
        v_head_dim=HEAD_DIM,
        dtype=dtype,
        device=torch.device("cpu"),
    )
    return MHATokenToKVPoolHost(
        info,
        2.0,
        0,
        PAGE_TOKENS,
        layout,
        pin_memory=False,
        device_capacity_tokens=PAGE_TOKENS,
        start_layer=0,
        end_layer=LAYERS,
        host_token_capacity=pages * PAGE_TOKENS,
    )


def page_hash(number: int) -> str:
    """As SGLang names pages."""
    return hashlib.sha256(b"%d" % number).hexdigest()


class HiCacheDriver:
    """A rank of an engine: a host pool, and the backend as SGLang's controller drives it, page by page."""

    def __init__(self, socket: str, model: str, layout: str = "page_first_direct", **changes: Any) -> None:
        self.model = model
        self.pool = host_pool(layout, **{name: changes.pop(name) for name in ("heads", "dtype") if name in changes})
        settings = {"kvcast": {"socket": socket, "weights_digest": "w", "load_deadline_s": 5}}
        self.weights = SmallWeights()
        self.backend = KvcastHiCache(storage_config(model, extra_config=settings, **changes), {}, self.weights.seen)
        self.backend.register_mem_pool_host(self.pool)
        self.backend.on_host_pools_registered()

    def indices(self, count: int, first: int = 0) -> torch.Tensor:
        return torch.arange(first * PAGE_TOKENS, (first + count) * PAGE_TOKENS)

    def page(self, place: int) -> torch.Tensor:
        """A page: keys of all layers, then values, each token by token. Shape (2, layers, tokens, heads, dim)."""
        data = self.pool.get_data_page(place * PAGE_TOKENS, flat=False)
        if self.pool.layout == "page_first":
            data = data.transpose(1, 2)
        if self.pool.layout == "page_head":
            data = data.reshape(2, -1, PAGE_TOKENS, LAYERS, HEAD_DIM).permute(0, 3, 2, 1, 4)
        return data.reshape(2, LAYERS, PAGE_TOKENS, -1, HEAD_DIM)

    def write(self, place: int, content: bytes) -> None:
        page = self.page(place)
        values = torch.frombuffer(bytearray(content), dtype=page.dtype).reshape(page.shape)
        self.pool.set_from_flat_data_page(place * PAGE_TOKENS, self._flat(values))

    def read(self, place: int) -> bytes:
        return bytes(self.page(place).contiguous().view(torch.uint8).flatten().numpy())

    def _flat(self, values: torch.Tensor) -> torch.Tensor:
        if self.pool.layout == "page_first":
            values = values.transpose(1, 2)
        if self.pool.layout == "page_head":
            values = values.permute(0, 3, 2, 1, 4)
        return values.contiguous().flatten()

    def put(self, numbers: list[int]) -> list[bool]:
        done: list[bool] = []
        for at in range(0, len(numbers), PAGES):
            part = numbers[at : at + PAGES]
            for place, number in enumerate(part):
                self.write(place, content_of(number, self.model))
            info = HiCacheStorageExtraInfo(prefix_keys=[page_hash(number) for number in numbers[:at]])
            done += self.backend.batch_set_v1([page_hash(one) for one in part], self.indices(len(part)), info)
        return done

    def exists(self, number: int) -> bool:
        found = self.backend.batch_exists([page_hash(number)])
        assert self.backend.exists(page_hash(number)) == bool(found)
        return bool(found)

    def load(self, numbers: list[int]) -> list[bytes | None]:
        found: list[bytes | None] = []
        for at in range(0, len(numbers), PAGES):
            part = numbers[at : at + PAGES]
            for place in range(len(part)):
                self.write(place, bytes(CHUNK_BYTES))
            loaded = self.backend.batch_get_v1([page_hash(one) for one in part], self.indices(len(part)), None)
            pages = [self.read(place) for place in range(len(part))]
            found += [page if came else None for came, page in zip(loaded, pages, strict=True)]
        return found

    def close(self) -> None:
        self.backend.close()
