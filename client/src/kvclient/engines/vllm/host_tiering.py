"""vLLM's tiered offloading for engines whose paged cache is in host memory: a spec for `OffloadingConnector`.

vLLM's own worker copies between a GPU and its host region and refuses to run without one. This one copies between two
places in host memory, so that secondary tiers (KvcastTier among them) work on CPU engines, too.
"""

from __future__ import annotations

import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any

import numpy as np
from vllm.platforms import current_platform
from vllm.v1.kv_offload.base import OffloadingWorker, TransferResult
from vllm.v1.kv_offload.cpu.shared_offload_region import SharedOffloadRegion
from vllm.v1.kv_offload.tiering.spec import TieringOffloadingSpec

from kvclient.engines.settings import SettingsError


class HostOffloadingWorker(OffloadingWorker):
    """Copies blocks between a paged cache in host memory and this worker's part of the region's rows."""

    def __init__(self, kv_caches: Any, blocks_per_chunk: int, region: SharedOffloadRegion) -> None:
        self._region: SharedOffloadRegion | None = region
        self._blocks_per_chunk = blocks_per_chunk
        self._pairs = []
        for cache in kv_caches.tensors:
            page_bytes = cache.page_size_bytes
            pages = cache.tensor.numpy().view(np.int8)
            rows = region.create_next_worker_view(page_bytes * blocks_per_chunk).numpy()
            self._pairs.append((pages, rows, page_bytes))
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="kvcast-offload")
        self._lock = threading.Lock()
        self._under_way: dict[int, Future[None]] = {}
        self._finished: list[TransferResult] = []

    def submit_store(self, job_id: int, src_spec: Any, dst_spec: Any) -> bool:
        """Paged cache -> region."""
        self._submit(job_id, src_spec, dst_spec.chunk_ids, store=True)
        return True

    def submit_load(self, job_id: int, src_spec: Any, dst_spec: Any) -> bool:
        """Region -> paged cache."""
        self._submit(job_id, dst_spec, src_spec.chunk_ids, store=False)
        return True

    def _submit(self, job_id: int, blocks: Any, chunk_ids: Any, *, store: bool) -> None:
        self._under_way[job_id] = self._thread.submit(self._copy, job_id, blocks, chunk_ids, store)

    def _copy(self, job_id: int, blocks: Any, chunk_ids: Any, store: bool) -> None:
        started_s = time.monotonic()
        size = self._blocks_per_chunk
        moved_bytes = 0
        # Blocks that follow each other need not begin at a chunk's beginning.
        place = int(blocks.block_indices[0]) % size if len(blocks.block_ids) else 0
        for block in blocks.block_ids:
            row, part = chunk_ids[place // size], place % size
            for pages, rows, page_bytes in self._pairs:
                there = rows[row, part * page_bytes : (part + 1) * page_bytes]
                if store:
                    there[:] = pages[block]
                else:
                    pages[block] = there
                moved_bytes += page_bytes
            place += 1
        with self._lock:
            self._finished.append(TransferResult(job_id, True, moved_bytes, time.monotonic() - started_s))

    def get_finished(self) -> list[TransferResult]:
        """Jobs that ended since the last call. A copy that raised raises here: its blocks are unknown."""
        for job_id, future in list(self._under_way.items()):
            if future.done():
                future.result()
                del self._under_way[job_id]
        with self._lock:
            finished, self._finished = self._finished, []
        return finished

    def wait(self, job_ids: set[int]) -> None:
        """Wait for jobs."""
        wait([self._under_way[job_id] for job_id in job_ids if job_id in self._under_way])

    def shutdown(self) -> None:
        """End."""
        self._thread.shutdown(wait=True, cancel_futures=True)
        self._pairs = []
        if self._region is not None:
            self._region.cleanup()
            self._region = None


class HostTieringSpec(TieringOffloadingSpec):
    """`TieringOffloadingSpec` that also runs where there is no GPU."""

    _worker: OffloadingWorker | None

    def get_worker(self, kv_caches: Any) -> OffloadingWorker:
        """See base. Raises SettingsError for what the copy in host memory does not do."""
        if not current_platform.is_cpu():
            return super().get_worker(kv_caches)
        if not self._worker:
            if len(self.config.groups) != 1 or self.config.canonical_layout:
                raise SettingsError("HostTieringSpec copies one group of KV caches in its own layout only")
            region = SharedOffloadRegion(
                engine_id=self._engine_id,
                num_chunks=self.num_chunks,
                rank=0 if self.replicated_layout else self.config.parallel.rank,
                kv_bytes_per_chunk=self.kv_bytes_per_chunk,
                cpu_page_size=self.cpu_page_size_per_worker,
            )
            self._worker = HostOffloadingWorker(kv_caches, self.blocks_per_chunk, region)
        return self._worker
