"""kvcast's pool as a store of UCM, loaded by `ucm_connector_name` and `ucm_connector_module_path`, without a patch.

UCM's scheduler and its workers make a store each. They name a block by a hash of its tokens, model and rank; a block
has one or more shards (its layers, where UCM works layer by layer), and a shard is a chunk. The scheduler does not know
how many shards a block has: it asks for the last one, which is stored only when all before it are.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any

from ucm.store.pipeline.errors import StoreNotFoundError, StoreUnhealthyError
from ucm.store.ucmstore_v1 import Task, UcmKVStoreBaseV1

from kvchunk.ids import ChunkKey, KvIdentity
from kvclient.client import AgentClient
from kvclient.engines.core.named_keys import leading, named_keys
from kvclient.engines.link import AgentLink
from kvclient.engines.pieces import Piece, piece_at
from kvclient.engines.settings import SettingsError, parse_store_settings, tenant_secret
from kvclient.engines.store import ChunkStore, StoredChunk
from kvclient.forks import Threads

log = logging.getLogger("kvcast")

SETTINGS = "kvcast"
"""Where kvcast's own settings are among UCM's configuration of a connector."""
LAST = b"last"
"""Names the last shard of a block; the others are named by their index."""
_ACCELERATORS = ("cuda", "npu", "musa")
"""Of torch, whose memory no `memcpy` of this process reaches."""


class KvcastTask(Task):  # type: ignore[misc]  # UCM is not there where this is checked
    """A load or a dump that a thread carries out."""

    def __init__(self, outcome: Future[None]) -> None:
        self.outcome = outcome


class KvcastStore(UcmKVStoreBaseV1):  # type: ignore[misc]  # as above
    """The scheduler's store, or one worker's. See docs/how-to/ucm.md."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        """`config`: UCM's, with kvcast's settings under `kvcast`. An agent that is away raises nothing.

        Raises SettingsError for settings that kvcast does not know, weights that nothing names, sizes of shards that
        do not fit the block's, and KV in a device's memory.
        """
        super().__init__(config)
        settings = parse_store_settings(config.get(SETTINGS, {}))
        if not settings.weights_digest:
            raise SettingsError(
                "UCM tells its stores nothing of the model's weights: set weights_digest among the settings of kvcast "
                "to any text that changes whenever the weights, or the dtype of the cache, do"
            )
        if config.get("gpu_kv_buffer_addrs") and (device := _accelerator()):
            raise SettingsError(
                f"the KV cache lies in memory of a device ({device}), which kvcast's store cannot read: use an engine "
                "that hands UCM host memory, or kvcast's own connector for vLLM"
            )
        identity = KvIdentity(
            "ucm",
            weights_digest=settings.weights_digest,
            extra="engine=ucm",
            tenant_secret=tenant_secret(settings.tenant_secret_file),
        )
        self._digest = identity.digest()
        self._shards = _shards_per_block(config)
        self._sizes = tuple(int(size) for size in config.get("tensor_size_list") or ())
        self._shard_bytes = int(config.get("shard_size", 0))
        self._lock_s = settings.lock_s
        link = AgentLink(AgentClient, settings.socket, log, answer_timeout_s=settings.answer_timeout_s)
        self._store = ChunkStore(link, log, namespace="ucm", deadline_s=settings.load_deadline_s)
        self._dumps = Threads(1, "kvcast-dump")
        self._loads = Threads(1, "kvcast-load")

    def close(self) -> None:
        """Give everything back; what waits is not begun."""
        for thread in (self._dumps, self._loads):
            thread.shutdown(cancel_futures=True)
        self._store.close()

    def cc_store(self) -> int:
        """Raises NotImplementedError: UCM's native stores cannot stack on kvcast, nor can its sparse attention."""
        raise NotImplementedError(
            "kvcast's store is not one of UCM's native stores, so its native layers cannot use it"
        )

    # ------------------------------------------------------------------ what is there

    def lookup(self, block_ids: list[bytes]) -> list[bool]:
        """Whether some node or the switch has each block."""
        return self._store.exists(self._last_keys(block_ids))

    def lookup_on_prefix(self, block_ids: list[bytes]) -> int:
        """Index of the last of the leading blocks that are there; -1: the first is not."""
        return leading(self.lookup(block_ids)) - 1

    def lookup_on_reverse(self, block_ids: list[bytes]) -> int:
        """Index of the last block that is there; -1: none is."""
        return max((place for place, here in enumerate(self.lookup(block_ids)) if here), default=-1)

    def prefetch(self, block_ids: list[bytes]) -> None:
        """Begin to bring blocks into this node's DRAM. Of blocks with several shards a scheduler can name the last
        alone."""
        keys = [self._key(block, shard) for block in block_ids for shard in range(self._shards)]

        def bring() -> None:
            locked = self._store.lock(keys, hold_s=self._lock_s)
            self._store.unlock([key for key, is_locked in zip(keys, locked, strict=True) if is_locked])

        self._loads.submit(bring)

    # ------------------------------------------------------------------ bytes

    def load(self, block_ids: list[bytes], shard_index: list[int], dst_tensor: Sequence[Sequence[Any]]) -> Task:
        """As `load_data`, into tensors of host memory."""
        return self.load_data(block_ids, shard_index, _addresses(dst_tensor))

    def dump(self, block_ids: list[bytes], shard_index: list[int], src_tensor: Sequence[Sequence[Any]]) -> Task:
        """As `dump_data`, out of tensors of host memory."""
        return self.dump_data(block_ids, shard_index, _addresses(src_tensor))

    def load_data(self, block_ids: list[bytes], shard_index: list[int], dst_addr: Any) -> Task:
        """Bring shards and copy them to addresses, a row of them for each shard. Raises ValueError for rows that do
        not fit the sizes of the configuration."""
        shards = self._shard_list(shard_index, len(block_ids))
        keys = [self._key(block, shard) for block, shard in zip(block_ids, shards, strict=True)]
        pieces = self._rows(dst_addr, len(keys))
        return KvcastTask(self._loads.submit(self._load, keys, pieces))

    def dump_data(
        self, block_ids: list[bytes], shard_index: list[int], src_addr: Any, prerequisite_handle: int = 0
    ) -> Task:
        """Store shards out of addresses, behind all dumps before. Raises ValueError as `load_data`, and for a
        `prerequisite_handle`: an event of a device, for which nothing here can wait."""
        if prerequisite_handle:
            raise ValueError("kvcast's store cannot wait for events of a device: set enable_event_sync to false")
        shards = self._shard_list(shard_index, len(block_ids))
        pieces = self._rows(src_addr, len(block_ids))
        return KvcastTask(self._dumps.submit(self._dump, list(block_ids), shards, pieces))

    def wait(self, task: Any) -> None:
        """Wait for a task. Raises StoreNotFoundError if a load misses a shard, StoreUnhealthyError if a dump found no
        agent, RuntimeError if it found no room."""
        task.outcome.result()

    def check(self, task: Any) -> bool:
        """Whether a task has ended; `wait` says how."""
        return bool(task.outcome.done())

    def _load(self, keys: list[ChunkKey], pieces: list[list[Piece]]) -> None:
        loaded = self._store.load(keys, pieces)
        if not all(loaded):
            raise StoreNotFoundError(
                f"kvcast: {loaded.count(False)} of {len(keys)} shards are not in the pool, or did not arrive in time"
            )

    def _dump(self, blocks: list[bytes], shards: list[int], pieces: list[list[Piece]]) -> None:
        """Last shards after the others: a scheduler takes a block for whole once its last shard is there."""
        shard_rows = list(zip(blocks, shards, pieces, strict=True))
        stored = self._put([row for row in shard_rows if row[1] < self._shards - 1])
        last = [row for row in shard_rows if row[1] == self._shards - 1]
        whole = self._have_all_others([block for block, _, _ in last])
        stored += self._put([row for row, may in zip(last, whole, strict=True) if may])
        if self._store.away:
            raise StoreUnhealthyError("kvcast: there is no agent at the configured socket")
        if stored < len(blocks):
            raise RuntimeError(f"kvcast: the pool had room for {stored} of {len(blocks)} shards")

    def _put(self, shard_rows: Sequence[tuple[bytes, int, list[Piece]]]) -> int:
        """Store shards; returns how many are stored. The pool evicts the last shard of a block first, since each shard
        is the parent of the next."""
        chunks = [
            StoredChunk(self._key(block, shard), pieces, self._key(block, shard - 1) if shard else None)
            for block, shard, pieces in shard_rows
        ]
        return sum(self._store.put(chunks))

    def _have_all_others(self, blocks: Sequence[bytes]) -> list[bool]:
        """Whether all shards of each block but the last are there."""
        count = self._shards - 1
        here = self._store.exists([self._key(block, shard) for block in blocks for shard in range(count)])
        return [all(here[place * count : (place + 1) * count]) for place in range(len(blocks))]

    def _rows(self, addresses: Any, count: int) -> list[list[Piece]]:
        """The runs of bytes behind `count` rows of addresses. Address 0 is a slot that UCM leaves out."""
        rows = [[int(address) for address in row] for row in addresses]
        if len(rows) != count:
            raise ValueError(f"{len(rows)} rows of addresses for {count} shards")
        return [self._pieces(row) for row in rows]

    def _pieces(self, row: Sequence[int]) -> list[Piece]:
        sized = zip(row, self._sizes_of(row), strict=True)
        return [piece_at(address, size) for address, size in sized if address and size]

    def _sizes_of(self, row: Sequence[int]) -> Sequence[int]:
        if self._sizes:
            if len(row) != len(self._sizes):
                raise ValueError(f"{len(row)} addresses for a shard of {len(self._sizes)} tensors")
            return self._sizes
        if not row or not self._shard_bytes or self._shard_bytes % len(row):
            raise ValueError(f"{len(row)} addresses for a shard of {self._shard_bytes} bytes")
        return [self._shard_bytes // len(row)] * len(row)

    # ------------------------------------------------------------------ keys

    def _key(self, block: bytes, shard: int) -> ChunkKey:
        place = LAST if shard == self._shards - 1 else shard.to_bytes(4, "big")
        return named_keys(self._digest, [bytes(block) + b":" + place])[0]

    def _shard_list(self, shards: Sequence[int], count: int) -> list[int]:
        """Shard indices, checked. Some of UCM's callers leave them out where a block has only one."""
        listed = [int(shard) for shard in shards] if len(shards) else [0] * count
        if any(not 0 <= shard < self._shards for shard in listed):
            raise ValueError(f"shards {listed} of blocks with {self._shards}")
        return listed

    def _last_keys(self, blocks: Iterable[bytes]) -> list[ChunkKey]:
        return [self._key(block, self._shards - 1) for block in blocks]


def _shards_per_block(config: Mapping[str, Any]) -> int:
    """How many shards a worker's block has. A scheduler does not know: it sees blocks by their last shard."""
    shard, block = int(config.get("shard_size", 0)), int(config.get("block_size", 0))
    if not shard:
        return 1
    if block % shard or block < shard:
        raise SettingsError(f"UCM's block_size of {block} bytes is not a multiple of its shard_size of {shard}")
    listed = sum(int(size) for size in config.get("tensor_size_list") or ())
    if listed > shard:
        raise SettingsError(f"UCM's tensor_size_list has {listed} bytes, more than its shard_size of {shard}")
    return block // shard


def _addresses(tensors: Sequence[Sequence[Any]]) -> list[list[int]]:
    return [[tensor.data_ptr() for tensor in row] for row in tensors]


def _accelerator() -> str:
    """A device of this process's torch whose memory is not the host's; empty: none."""
    torch = sys.modules.get("torch")
    for name in _ACCELERATORS:
        device = getattr(torch, name, None)
        if device is not None and device.is_available():
            return name
    return ""
