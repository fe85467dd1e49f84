"""Pages of SGLang's host pools as chunks: where their bytes lie, and which keys they have.

A page is one chunk, or, where ranks of different tensor-parallel sizes share (`tp_lcm_size`), one chunk for each group
of heads. Everything that decides a page's bytes is in the identity that its key binds: the model and its weights, the
rank, the kind of pool, its layout, dtype and page size.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from kvchunk.ids import ChunkKey, KvIdentity
from kvclient.engines.core.head_groups import groups_of_rank
from kvclient.engines.core.named_keys import named_keys
from kvclient.engines.pieces import Piece, piece_at

KV = "kv"
"""SGLang's name of the pool that every page of a prompt is in."""
SHARDED_ALWAYS = frozenset({"mamba"})
"""Pools that each tensor-parallel rank has a part of, even where the ranks have equal KV."""


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """Facts about an engine's model that decide the bytes of its KV."""

    model: str
    revision: str
    weights_digest: str
    engine: str
    """Name and version."""
    extra: str
    """Quantisation, overrides of the configuration, ..., in a canonical text."""
    tenant_secret: bytes = field(default=b"", repr=False)
    """Keeps other tenants from naming or finding this one's pages; empty: no secret."""


class HostPages:
    """One host pool's pages."""

    def __init__(self, name: str, pool: Any, config: Any, facts: ModelFacts) -> None:
        """`config`: SGLang's HiCacheStorageConfig."""
        self.name = name
        self._pool = pool
        self.indices_per_page = int(getattr(pool, "logical_page_size", None) or getattr(pool, "page_size", 1) or 1)
        layout = str(getattr(pool, "layout", ""))
        replicated = config.is_mla_model and name not in SHARDED_ALWAYS
        rank, ranks = (0, 1) if replicated else (int(config.tp_rank), int(config.tp_size))
        splits_heads = config.tp_lcm_size and layout == "page_head" and not replicated
        groups = int(config.tp_lcm_size) if splits_heads else ranks
        held = groups_of_rank(rank, ranks, groups)
        self._split = len(held)
        self._in_place, sizes = self._probe()
        self._layer_pairs = self._in_place and layout == "layer_first" and len(sizes) == 2 * _layers_of(pool)
        if self._layer_pairs:
            # Layer by layer in memory, but in a chunk all keys and then all values, as page_first_direct has them.
            layout = "page_first_direct"
        self.page_bytes = sum(sizes)
        self._digests = tuple(self._identity(config, facts, layout, group, groups).digest() for group in held)

    @property
    def chunks_per_page(self) -> int:
        """Chunks that a page is split into."""
        return self._split

    def keys(self, pages: Sequence[str]) -> list[ChunkKey]:
        """Keys of pages by SGLang's hashes (hexadecimal): all chunks of a page next to each other."""
        names = [bytes.fromhex(page) for page in pages]
        of_parts = [named_keys(digest, names) for digest in self._digests]
        return [key for page in zip(*of_parts, strict=True) for key in page]

    def pieces(self, indices: Any, count: int) -> list[list[Piece]]:
        """Where the chunks of `count` pages lie, or are to go; `indices`: of their tokens in the pool."""
        if len(indices) != count * self.indices_per_page:
            raise ValueError(f"{count} pages of {self.indices_per_page} tokens with {len(indices)} indices")
        if not self._in_place:
            return [[_bytes_of(self._pool.get_data_page(first, flat=True))] for first in self._firsts(indices)]
        addresses, sizes = self._meta(indices)
        per_chunk = len(addresses) // (count * self._split)
        made = [piece_at(int(address), int(size)) for address, size in zip(addresses, sizes, strict=True)]
        chunks = [made[at : at + per_chunk] for at in range(0, len(made), per_chunk)]
        return [one[::2] + one[1::2] for one in chunks] if self._layer_pairs else chunks

    def landing(self, indices: Any, count: int) -> list[list[Piece]]:
        """As `pieces`, for a load to write to; call `landed` afterwards."""
        if self._in_place:
            return self.pieces(indices, count)
        return [[np.empty(self.page_bytes, dtype=np.uint8)] for _ in range(count)]

    def landed(self, indices: Any, pieces: Sequence[Sequence[Piece]], loaded: Sequence[bool]) -> None:
        """A load has written pieces of `landing`, where `loaded`."""
        if self._in_place:
            return
        for first, (content,), is_loaded in zip(self._firsts(indices), pieces, loaded, strict=True):
            if is_loaded:
                page = self._pool.get_dummy_flat_data_page()
                page.view(torch.uint8).numpy()[:] = content
                self._pool.set_from_flat_data_page(first, page)

    def _identity(self, config: Any, facts: ModelFacts, layout: str, rank: int, size: int) -> KvIdentity:
        """Of group `rank` of `size` groups of heads."""
        pool = self._pool
        shapes = ",".join(f"{fact}={getattr(pool, fact, '')}" for fact in ("layer_num", "head_dim", "v_head_dim"))
        heads = int(getattr(pool, "head_num", 0) or 0) // self._split
        ranks = f"cp={config.attn_cp_rank}/{config.attn_cp_size},dcp={config.dcp_rank}/{config.dcp_size}"
        kind = f"pool={self.name},{type(pool).__name__},format={getattr(pool, 'storage_format_tag', None) or ''}"
        return KvIdentity(
            model=facts.model,
            revision=facts.revision,
            weights_digest=facts.weights_digest,
            dtype=str(getattr(pool, "dtype", "")),
            layout=f"{layout};{kind};{shapes},heads={heads};bytes={self.page_bytes // self._split}",
            chunk_tokens=int(getattr(pool, "page_size", 1) or 1),
            tensor_parallel_rank=rank,
            tensor_parallel_size=size,
            pipeline_parallel_rank=int(config.pp_rank),
            pipeline_parallel_size=int(config.pp_size),
            extra=f"engine={facts.engine};{ranks};{facts.extra}",
            tenant_secret=facts.tenant_secret,
        )

    def _firsts(self, indices: Any) -> list[int]:
        return [int(index) for index in indices[:: self.indices_per_page]]

    def _meta(self, indices: Any) -> tuple[list[int], list[int]]:
        if self._split > 1:
            addresses, sizes = self._pool.get_split_heads_page_buffer_meta(indices, self._split)
        else:
            addresses, sizes = self._pool.get_page_buffer_meta(indices)
        return addresses, sizes

    def _probe(self) -> tuple[bool, list[int]]:
        """(whether the pool has addresses of its pages, sizes of a page's pieces). Without addresses the pool makes
        copies of its pages."""
        try:
            addresses, sizes = self._meta(torch.arange(self.indices_per_page))
            if addresses and len(addresses) == len(sizes):
                return True, [int(size) for size in sizes]
        except (AttributeError, NotImplementedError, ValueError):
            pass  # How SGLang's kinds of host pools say that their pages have no addresses, or none in this layout.
        return False, [_bytes_of(self._pool.get_dummy_flat_data_page()).nbytes]


def _layers_of(pool: Any) -> int:
    return int(getattr(pool, "layer_num", 0))


def _bytes_of(page: Any) -> Piece:
    content: Piece = page.contiguous().view(torch.uint8).reshape(-1).numpy()
    return content
