"""kvcast's pool as a remote backend of LMCache inside an engine (`LMCacheConnectorV1`), loaded by its remote storage
plugins, without a patch. See docs/how-to/lmcache.md.

LMCache calls from its event loop, which must not wait: threads ask the agent. A chunk is one of LMCache's memory
objects behind the header that LMCache itself gives remote stores: shapes, dtypes, format.
"""

from __future__ import annotations

import asyncio
import logging
import os
import struct
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias, TypeVar

import numpy as np
from lmcache.integration.vllm.utils import get_size_bytes
from lmcache.v1.protocol import RemoteMetadata
from lmcache.v1.storage_backend.connector import ConnectorAdapter
from lmcache.v1.storage_backend.connector.base_connector import RemoteConnector

from kvchunk.ids import ChunkKey, KvIdentity
from kvclient.client import AgentClient
from kvclient.engines.core.named_keys import leading, named_keys
from kvclient.engines.link import AgentLink
from kvclient.engines.lmcache.models import Weights, name_of, piece_of
from kvclient.engines.settings import SettingsError, parse_store_settings, tenant_secret
from kvclient.engines.store import ChunkStore, StoredChunk
from kvclient.forks import Threads

log = logging.getLogger("kvcast")

PLUGIN = "kvcast"
"""What LMCache's configuration calls this backend, perhaps with `.NAME` behind it."""
NOT_OURS = ("module_path", "class_name")
THREADS = 4
"""A look-up does not wait for a load, nor a load for a store."""

T = TypeVar("T")
Objects: TypeAlias = list[Any]
Names: TypeAlias = list[str]
ChunkKeys: TypeAlias = list[ChunkKey]
"""A method of LMCache's is called `list`."""


class KvcastPlugin(ConnectorAdapter):  # type: ignore[misc]  # LMCache is not there where this is checked
    """Makes the backend of one engine process."""

    def __init__(self) -> None:
        super().__init__(f"plugin://{PLUGIN}")

    def create_connector(self, context: Any) -> RemoteConnector:
        """For LMCache's context. Raises SettingsError for settings that kvcast does not know."""
        return KvcastRemote(context)


class KvcastRemote(RemoteConnector):  # type: ignore[misc]  # as above
    """The backend of one engine process. No method raises for an agent that is away: then nothing is there."""

    def __init__(self, context: Any) -> None:
        super().__init__(context.config, context.metadata)
        prefix = f"remote_storage_plugin.{context.plugin_name or PLUGIN}."
        extra = context.config.extra_config or {}
        given = {name[len(prefix) :]: value for name, value in extra.items() if name.startswith(prefix)}
        settings = parse_store_settings({name: value for name, value in given.items() if name not in NOT_OURS})
        if context.config.pre_caching_hash_algorithm == "builtin":
            raise SettingsError(
                "LMCache's hashes of chunks are Python's, which differ between processes and are easily forged: set "
                "pre_caching_hash_algorithm to sha256_cbor in LMCache's configuration"
            )
        if not os.environ.get("PYTHONHASHSEED"):
            raise SettingsError(
                "LMCache's hashes of chunks begin with a random number in each process: set PYTHONHASHSEED to the same "
                "number for all engines"
            )
        self._memory = context.local_cpu_backend
        self._weights = Weights(settings.weights_digest)
        self._secret = tenant_secret(settings.tenant_secret_file)
        self._layout = (
            f"{self.meta_fmt.name};{[list(shape[:2]) for shape in self.meta_shapes]};{self.single_token_size}"
        )
        link = AgentLink(AgentClient, settings.socket, log, answer_timeout_s=settings.answer_timeout_s)
        self._store = ChunkStore(link, log, namespace="lmcache", deadline_s=settings.load_deadline_s)
        self._threads = Threads(THREADS, "kvcast-lmcache")
        self._digests: dict[tuple[Any, ...], bytes | None] = {}

    async def close(self) -> None:
        """Give everything back."""
        self._threads.shutdown(cancel_futures=True)
        self._store.close()

    # ------------------------------------------------------------------ what is there

    async def exists(self, key: Any) -> bool:
        """Whether some node or the switch has an object."""
        return await self._run(lambda: self.exists_sync(key))

    def exists_sync(self, key: Any) -> bool:
        """As `exists`."""
        return self.batched_contains([key]) == 1

    def support_batched_contains(self) -> bool:
        """One question for all keys."""
        return True

    def batched_contains(self, keys: Sequence[Any]) -> int:
        """How many are there before the first that is not."""
        names = self._keys(keys)
        return leading(self._store.exists(names)) if names else 0

    async def batched_async_contains(self, lookup_id: str, keys: Sequence[Any], pin: bool = False) -> int:
        """As `batched_contains`."""
        return await self._run(lambda: self.batched_contains(keys))

    async def list(self) -> Names:
        """Nothing: the pool knows no names of LMCache's."""
        return []

    # ------------------------------------------------------------------ bytes

    def support_batched_get(self) -> bool:
        """One fetch for all keys."""
        return True

    def support_batched_put(self) -> bool:
        """One put for all keys."""
        return True

    async def get(self, key: Any) -> Any:
        """A memory object of LMCache's, or None."""
        (found,) = await self.batched_get([key])
        return found

    async def batched_get(self, keys: Sequence[Any]) -> Objects:
        """A memory object for each key, or None."""
        return await self._run(lambda: self._load(keys))

    async def batched_get_non_blocking(self, lookup_id: str, keys: Sequence[Any]) -> Objects:
        """The objects before the first that did not come."""
        loaded = await self.batched_get(keys)
        count = leading(one is not None for one in loaded)
        for one in loaded[count:]:
            if one is not None:
                one.ref_count_down()
        return loaded[:count]

    async def put(self, key: Any, memory_obj: Any) -> None:
        """Store an object."""
        await self.batched_put([key], [memory_obj])

    async def batched_put(self, keys: Sequence[Any], memory_objs: Sequence[Any]) -> None:
        """Store objects; each is the parent of the next, as they are chunks of one prompt."""

        def store() -> None:
            names = self._keys(keys)
            pieces = [[_header(one), piece_of(one)] for one in memory_objs]
            before = zip(names, pieces, [None, *names], strict=False)
            self._store.put([StoredChunk(name, each, parent) for name, each, parent in before])

        await self._run(store)

    def _load(self, keys: Sequence[Any]) -> Objects:
        names = self._keys(keys)
        loaded: Objects = [None] * len(keys)

        def take(place: int, view: memoryview) -> bool:
            loaded[place] = self._object(view)
            return loaded[place] is not None

        if names:
            self._store.read(names, [self.full_chunk_size_bytes] * len(names), take)
        return loaded

    def _object(self, view: memoryview) -> Any:
        """A chunk as LMCache has it in memory; None: it is no object of LMCache's, or there is no room."""
        header, content = view[: self.remote_metadata_bytes], view[self.remote_metadata_bytes :]
        try:
            said = RemoteMetadata.deserialize(header)
            fits = 0 < get_size_bytes(said.shapes, said.dtypes) == len(content) <= self.full_chunk_size_bytes
        except (struct.error, ValueError, KeyError):
            fits = False
        if not fits:
            log.warning("kvcast: a chunk of %d bytes is no object of this LMCache's and is not loaded", len(view))
            return None
        made = self._memory.allocate(said.shapes, said.dtypes, said.fmt)
        if made is not None:
            piece_of(made)[:] = np.frombuffer(content, np.uint8)
        return made

    # ------------------------------------------------------------------ keys

    def _keys(self, keys: Sequence[Any]) -> ChunkKeys:
        """Chunk keys of LMCache's; empty: the weights of the model are unknown."""
        named: ChunkKeys = []
        for key in keys:
            digest = self._digest(key)
            if digest is None:
                return []
            name = f"{key.chunk_hash_hex}/{getattr(key, 'layer_id', '')}/{key.tags or ''}"
            named += named_keys(digest, [name.encode()])
        return named

    def _digest(self, key: Any) -> bytes | None:
        place = (key.model_name, key.world_size, key.worker_id, str(key.dtype))
        if place not in self._digests:
            weights = self._weights.of(key.model_name)
            extra = f"engine=lmcache-in-process;of={key.world_size};rank={key.worker_id};{key.dtype};{self._layout}"
            identity = KvIdentity(
                name_of(key.model_name), weights_digest=weights or "", extra=extra, tenant_secret=self._secret
            )
            self._digests[place] = identity.digest() if weights else None
        return self._digests[place]

    async def _run(self, work: Callable[[], T]) -> T:
        return await asyncio.wrap_future(self._threads.submit(work))


def _header(memory: Any) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """What LMCache puts before an object in a remote store."""
    said = RemoteMetadata(memory.get_size(), memory.get_shapes(), memory.get_dtypes(), memory.get_memory_format())
    return np.frombuffer(said.serialize(), np.uint8)
