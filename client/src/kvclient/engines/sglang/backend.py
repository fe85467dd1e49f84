"""kvcast's pool as the storage backend of SGLang's hierarchical cache, loaded by `--hicache-storage-backend dynamic`.

SGLang's controller calls from threads of its own: one looks pages up, one loads, one backs up. None of them holds up
the engine, and no call raises for a missing agent: then there are no pages.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from sglang.srt.mem_cache.hicache_storage import HiCacheStorage, PoolHitPolicy, PoolTransferResult

from kvchunk.ids import ChunkKey
from kvclient.client import AgentClient
from kvclient.engines.core.named_keys import leading
from kvclient.engines.link import AgentLink
from kvclient.engines.pieces import Piece
from kvclient.engines.settings import SettingsError, parse_store_settings, tenant_secret
from kvclient.engines.sglang.engine_weights import ENGINE_WEIGHTS, EngineWeights
from kvclient.engines.sglang.pages import KV, HostPages, ModelFacts
from kvclient.engines.store import ChunkStore, StoredChunk
from kvclient.engines.weights import WeightsDigest, WeightsError, digest_of_files

log = logging.getLogger("kvcast")

SETTINGS = "kvcast"
"""Where kvcast's own settings are among SGLang's extra configuration."""
WEIGHTS_WAIT_S = 600.0
"""Reading all weights takes seconds to minutes; until then the backend's threads wait, and the engine computes."""


class KvcastHiCache(HiCacheStorage):  # type: ignore[misc]  # SGLang is not there where this is checked
    """The backend of one rank. See docs/how-to/sglang.md."""

    def __init__(
        self, storage_config: Any, kwargs: Mapping[str, Any], engine_weights: EngineWeights = ENGINE_WEIGHTS
    ) -> None:
        """Raises SettingsError for settings that kvcast does not know, or a secret that cannot be read. An
        agent that is away raises nothing."""
        settings = parse_store_settings((storage_config.extra_config or {}).get(SETTINGS, {}))
        self._config = storage_config
        self._secret = tenant_secret(settings.tenant_secret_file)
        self._server = _server_arguments()
        self._weights = _weights(settings.weights_digest, storage_config, self._server)
        link = AgentLink(AgentClient, settings.socket, log, answer_timeout_s=settings.answer_timeout_s)
        namespace = str(storage_config.model_name or "sglang")
        self._store = ChunkStore(link, log, namespace=namespace, deadline_s=settings.load_deadline_s)
        self._host_pools: dict[str, Any] = {}
        self._pages: dict[tuple[str, str], HostPages] = {}
        """By pool, and by the weights that the engine computes with."""
        self._engine_weights = engine_weights
        engine_weights.backend_attached()
        self._told: set[str] = set()

    def close(self) -> None:
        """Give everything back."""
        self._store.close()

    # ------------------------------------------------------------------ pools

    def register_mem_pool_host(self, mem_pool_host: Any) -> None:
        """The pool of prompts' pages."""
        super().register_mem_pool_host(mem_pool_host)
        self._host_pools[KV] = mem_pool_host

    def register_mem_host_pool_v2(self, host_pool: Any, host_pool_name: Any) -> None:
        """A further pool: states of recurrent layers, indexers, drafts."""
        super().register_mem_host_pool_v2(host_pool, host_pool_name)
        self._host_pools.setdefault(str(host_pool_name), host_pool)

    def _pages_of(self, name: str) -> HostPages | None:
        """A pool's pages; None: it is not registered, or the weights have no name now."""
        if name not in self._host_pools:
            return None
        generation = self._engine_weights.name()
        if generation is None:
            if self._engine_weights.problem:
                self._tell(f"kvcast: {self._engine_weights.problem}; the engine runs without the pool")
            return None
        made = self._pages.get((name, generation))
        if made is not None:
            return made
        try:
            digest = self._weights if isinstance(self._weights, str) else self._weights.get(WEIGHTS_WAIT_S)
        except WeightsError as error:
            self._tell(f"kvcast: {error}; the engine runs without the pool")
            return None
        if digest is None:
            return None
        facts = _model_facts(self._config, self._server, digest, self._secret)
        extra = f"{facts.extra};rotary={self._engine_weights.rotary}{f';weights {generation}' if generation else ''}"
        facts = replace(facts, extra=extra)
        pages = HostPages(name, self._host_pools[name], self._config, facts)
        return self._pages.setdefault((name, generation), pages)

    def _pages_with(self, name: str, keys: Sequence[str], host_indices: Any) -> HostPages | None:
        """A pool's pages, if these indices are the places of so many pages."""
        pages = self._pages_of(name)
        if pages is None or not keys:
            return None
        wanted = len(keys) * pages.indices_per_page
        if host_indices is None or len(host_indices) != wanted:
            self._tell(f"kvcast: pool {name} names {len(keys)} pages without {wanted} places: not stored, not loaded")
            return None
        return pages

    def _tell(self, what: str) -> None:
        if what not in self._told:
            self._told.add(what)
            log.warning("%s", what)

    # ------------------------------------------------------------------ pages of prompts

    def batch_exists(self, keys: list[str], extra_info: Any = None) -> int:
        """How many leading pages are there."""
        return leading(self._exist(KV, keys))

    def exists(self, key: str) -> bool:
        """Whether a page is there."""
        return self._exist(KV, [key])[0]

    def batch_get_v1(self, keys: list[str], host_indices: torch.Tensor, extra_info: Any = None) -> list[bool]:
        """Fetch pages into the host pool; whether each arrived."""
        return self._get(KV, keys, host_indices)

    def batch_set_v1(self, keys: list[str], host_indices: torch.Tensor, extra_info: Any = None) -> list[bool]:
        """Store pages of the host pool; whether each is stored."""
        return self._set(KV, keys, host_indices, _prefix(extra_info))

    # ------------------------------------------------------------------ pages of several pools

    def batch_exists_v2(self, keys: list[str], pool_transfers: Any = None, extra_info: Any = None) -> Any:
        """Which leading pages are there in all pools: see SGLang's HiCacheStorage."""
        kv_pages = leading(self._exist(KV, keys))
        hits = {KV: kv_pages} if kv_pages else {}
        restorable = list(range(1, kv_pages + 1))
        for transfer in pool_transfers or []:
            if not restorable:
                break
            here = self._exist(str(transfer.name), keys[:kv_pages])
            if transfer.hit_policy == PoolHitPolicy.ALL_PAGES:
                possible = set(range(1, leading(here) + 1))
            elif transfer.hit_policy == PoolHitPolicy.TRAILING_PAGES:
                window = max(1, len(transfer.keys or ()))
                possible = {end for end in range(1, kv_pages + 1) if all(here[max(0, end - window) : end])}
            else:
                raise ValueError(f"kvcast does not know the hit policy {transfer.hit_policy} of pool {transfer.name}")
            if possible:
                hits[str(transfer.name)] = max(possible)
            restorable = [end for end in restorable if end in possible]
        return PoolTransferResult(restorable[-1] if restorable else 0, hits, restorable)

    def batch_get_v2(self, transfers: list[Any], extra_info: Any = None) -> dict[str, list[bool]]:
        """Fetch pages of several pools; by pool, whether each arrived."""
        return {one.name: self._get(str(one.name), one.keys or [], one.host_indices) for one in transfers}

    def batch_set_v2(self, transfers: list[Any], extra_info: Any = None) -> dict[str, list[bool]]:
        """Store pages of several pools; by pool, whether each is stored."""
        prefix = _prefix(extra_info)
        return {one.name: self._set(str(one.name), one.keys or [], one.host_indices, prefix) for one in transfers}

    # ------------------------------------------------------------------ the interface without `interface_v1`

    def get(self, key: str, target_location: Any = None, target_sizes: Any = None) -> torch.Tensor | None:
        """A page, copied into `target_location`; None: it is not there."""
        return self.batch_get([key], [target_location])[0]

    def batch_get(self, keys: list[str], target_locations: Any = None, target_sizes: Any = None) -> list[Any]:
        """Pages, copied into tensors that SGLang gives; None for each that is not there."""
        pages = self._pages_of(KV)
        targets = list(target_locations or [])
        if pages is None or pages.chunks_per_page > 1 or len(targets) != len(keys):
            return [None] * len(keys)
        into = [[_piece(target)] for target in targets]
        loaded = self._store.load(_flat_keys(pages, keys), into)
        return [target if is_loaded else None for target, is_loaded in zip(targets, loaded, strict=True)]

    def set(self, key: str, value: Any = None, target_location: Any = None, target_sizes: Any = None) -> bool:
        """Store a page; whether it is stored."""
        return self.batch_set([key], [value])

    def batch_set(
        self, keys: list[str], values: Any = None, target_locations: Any = None, target_sizes: Any = None
    ) -> bool:
        """Store pages; whether all are stored."""
        pages = self._pages_of(KV)
        if pages is None or pages.chunks_per_page > 1 or values is None:
            return False
        wanted = [StoredChunk(key, [_piece(value)]) for key, value in zip(_flat_keys(pages, keys), values, strict=True)]
        return all(self._store.put(wanted))

    # ------------------------------------------------------------------ inside

    def _exist(self, name: str, keys: Sequence[str]) -> list[bool]:
        pages = self._pages_of(name)
        if pages is None:
            return [False] * len(keys)
        return _by_page(self._store.exists(pages.keys(keys)), pages.chunks_per_page)

    def _get(self, name: str, keys: Sequence[str], host_indices: Any) -> list[bool]:
        pages = self._pages_with(name, keys, host_indices)
        if pages is None:
            return [False] * len(keys)
        into = pages.landing(host_indices, len(keys))
        loaded = self._store.load(pages.keys(keys), into)
        pages.landed(host_indices, into, loaded)
        return _by_page(loaded, pages.chunks_per_page)

    def _set(self, name: str, keys: Sequence[str], host_indices: Any, prefix: list[str] | None) -> list[bool]:
        pages = self._pages_with(name, keys, host_indices)
        if pages is None:
            return [False] * len(keys)
        parts = pages.chunks_per_page
        named = pages.keys([*(prefix or [])[-1:], *keys])
        before: list[ChunkKey | None] = [None] * parts if not prefix else []
        parents = [*before, *named]
        first = len(prefix) if prefix is not None else None
        own = named[len(named) - len(keys) * parts :]
        chunks = [
            StoredChunk(key, pieces, parents[place], None if first is None else first + place // parts)
            for place, (key, pieces) in enumerate(zip(own, pages.pieces(host_indices, len(keys)), strict=True))
        ]
        return _by_page(self._store.put(chunks), parts)


def _flat_keys(pages: HostPages, keys: Sequence[str]) -> list[ChunkKey]:
    """Keys of pages as flat tensors, which may order their bytes otherwise than the host pool does."""
    return pages.keys([f"{key}{b'flat'.hex()}" for key in keys])


def _by_page(done: Sequence[bool], parts: int) -> list[bool]:
    """Whether all chunks of each page are done."""
    return [all(done[at : at + parts]) for at in range(0, len(done), parts)]


def _piece(tensor: Any) -> Piece:
    content: Piece = tensor.contiguous().view(torch.uint8).reshape(-1).numpy()
    return content


def _prefix(extra_info: Any) -> list[str] | None:
    """Hashes of all pages before a batch; None: SGLang does not pass them (hicache_storage_pass_prefix_keys)."""
    return None if extra_info is None else extra_info.prefix_keys


def _server_arguments() -> Any:
    """SGLang's own arguments, in an engine's process; None elsewhere."""
    try:
        from sglang.srt.runtime_context import get_server_args

        return get_server_args()
    except (ImportError, AttributeError, ValueError):
        return None


def _model_facts(config: Any, server: Any, weights_digest: str, secret: bytes) -> ModelFacts:
    told = {
        name: str(getattr(server, name, None) or "")
        for name in ("quantization", "kv_cache_dtype", "json_model_override_args", "load_format")
    }
    told["config"] = _config_digest(_folder(config, server))
    return ModelFacts(
        # The last part of a path: nodes may keep a model at different places.
        model=str(config.model_name or "").rstrip("/").rpartition("/")[2],
        revision=str(getattr(server, "revision", None) or ""),
        weights_digest=weights_digest,
        engine=f"sglang-{importlib.metadata.version('sglang')}",
        extra=";".join(f"{name}={value}" for name, value in sorted(told.items())),
        tenant_secret=secret,
    )


def _weights(chosen: str, config: Any, server: Any) -> str | WeightsDigest:
    """The digest of the weights, or the thread that computes it. Raises SettingsError without weights to read."""
    if chosen:
        return chosen
    folder = _folder(config, server)
    if folder is None:
        raise SettingsError(
            f"kvcast finds no weights of {config.model_name!r} on this machine: set weights_digest among its settings "
            "to any text that changes whenever the weights do"
        )
    return WeightsDigest(lambda: digest_of_files(_files_read(folder, server)))


def _files_read(folder: Path, server: Any) -> list[Path]:
    """The weight files that SGLang reads of a folder, or a file. Raises WeightsError."""
    if folder.is_file():
        return [folder]
    load_format = str(getattr(server, "load_format", None) or "auto")
    try:
        from sglang.srt.configs.load_config import LoadConfig
        from sglang.srt.model_loader.loader import DefaultModelLoader

        loader = DefaultModelLoader(LoadConfig(load_format=load_format))
        _, files, *_ = loader._prepare_weights(str(folder), None, fall_back_to_pt=True)
    except (ImportError, AttributeError, TypeError, ValueError, RuntimeError) as error:
        raise WeightsError(
            f"cannot tell which weight files SGLang reads with load_format {load_format} ({error}): set weights_digest "
            "among kvcast's settings to any text that changes whenever the weights do"
        ) from error
    return sorted(Path(file) for file in files)


def _folder(config: Any, server: Any) -> Path | None:
    """The folder of the model on this machine; None: there is none."""
    model = str(getattr(server, "model_path", None) or config.model_name or "")
    return Path(model) if Path(model).exists() else _hub_folder(model, getattr(server, "revision", None))


def _config_digest(folder: Path | None) -> str:
    """Of the model's configuration: positions, norms and the like change KV without changing weights."""
    file = folder / "config.json" if folder is not None else None
    return hashlib.sha256(file.read_bytes()).hexdigest() if file is not None and file.is_file() else ""


def _hub_folder(model: str, revision: str | None) -> Path | None:
    """Where a hub's cache has a model."""
    try:
        from huggingface_hub import snapshot_download

        return Path(snapshot_download(model, revision=revision, local_files_only=True))
    except (ImportError, OSError, ValueError):
        return None
