"""vLLM's KV connector on the kvcast pool. A shell: the scheduler's half and the worker's half do the work.

--kv-transfer-config '{"kv_connector": "KvcastConnector", "kv_role": "kv_both"}'
"""

from __future__ import annotations

import kvclient.engines.vllm.supported  # noqa: F401 - refuses a vLLM that is not ours

# isort: split
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, TypeVar

import torch
from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorMetadata,
    KVConnectorRole,
    KVConnectorTransferResults,
    KVConnectorWorkerMetadata,
    SupportsHMA,
)
from vllm.distributed.kv_transfer.kv_connector.v1.metrics import KVConnectorPromMetrics, KVConnectorStats
from vllm.v1.core.sched.interface import SchedulerInterface
from vllm.v1.metrics.cache_hit_source import CacheHitSource

from kvchunk.ids import ChunkKey
from kvclient.client import Where
from kvclient.engines.settings import SettingsError, parse_settings
from kvclient.engines.vllm.callers import caller_of
from kvclient.engines.vllm.facts import check_engine
from kvclient.engines.vllm.metadata import StepOrders
from kvclient.engines.vllm.metrics import KvcastPromMetrics, KvcastStats
from kvclient.engines.vllm.plugin import register
from kvclient.engines.vllm.scheduler import KvcastConnectorScheduler
from kvclient.engines.vllm.worker import KvcastConnectorWorker

T = TypeVar("T")


class KvcastConnector(KVConnectorBase_V1, SupportsHMA):
    """One of its halves exists, by role."""

    _cache_hit_source = CacheHitSource.HOST

    def __init__(self, vllm_config: Any, role: KVConnectorRole, kv_cache_config: Any) -> None:
        """Raises SettingsError, one line, when the engine or its settings cannot work with the pool."""
        super().__init__(vllm_config=vllm_config, role=role, kv_cache_config=kv_cache_config)
        transfer = self._kv_transfer_config
        settings = parse_settings(transfer.kv_connector_extra_config, role=transfer.kv_role)
        settings, groups = check_engine(vllm_config, kv_cache_config, settings)
        self._scheduler: KvcastConnectorScheduler | None = None
        self._worker: KvcastConnectorWorker | None = None
        if role is KVConnectorRole.SCHEDULER:
            self._scheduler = KvcastConnectorScheduler(vllm_config, kv_cache_config, settings, groups)
        else:
            self._worker = KvcastConnectorWorker(vllm_config, kv_cache_config, settings, groups)

    @property
    def requires_kv_delivery(self) -> bool:
        """No: a save that is dropped is a later miss, nothing more."""
        return False

    @property
    def _at_scheduler(self) -> KvcastConnectorScheduler:
        assert self._scheduler is not None, "called in a worker"
        return self._scheduler

    @property
    def _at_worker(self) -> KvcastConnectorWorker:
        assert self._worker is not None, "called in the scheduler"
        return self._worker

    def _step_orders(self) -> StepOrders:
        orders = self._get_connector_metadata()
        assert isinstance(orders, StepOrders)
        return orders

    # ------------------------------------------------------------------ both

    def shutdown(self) -> None:
        """See base."""
        if self._scheduler is not None:
            self._scheduler.close()
        if self._worker is not None:
            self._worker.close()

    def get_kv_connector_stats(self) -> KVConnectorStats | None:
        """See base."""
        return self._scheduler.stats() if self._scheduler is not None else self._at_worker.stats()

    @classmethod
    def build_kv_connector_stats(cls, data: dict[str, Any] | None = None) -> KVConnectorStats | None:
        """See base."""
        return KvcastStats(data=data) if data is not None else KvcastStats()

    @classmethod
    def build_prom_metrics(
        cls,
        vllm_config: Any,
        metric_types: dict[Any, Any],
        labelnames: list[str],
        per_engine_labelvalues: dict[int, list[object]],
    ) -> KVConnectorPromMetrics:
        """See base."""
        return KvcastPromMetrics(vllm_config, metric_types, labelnames, per_engine_labelvalues)

    @classmethod
    def get_required_kvcache_layout(cls, vllm_config: Any) -> str | None:
        """See base. vLLM takes its own, and logs a line, where an attention backend does not know this one."""
        transfer = vllm_config.kv_transfer_config
        return parse_settings(transfer.kv_connector_extra_config, role=transfer.kv_role).cache_layout or None

    @classmethod
    def requires_piecewise_for_cudagraph(cls, extra_config: dict[str, Any]) -> bool:
        """Only layer-wise loads need Python between the layers."""
        return extra_config.get("load") == "layerwise"

    # ------------------------------------------------------------------ scheduler

    def bind_kv_cache_manager(self, kv_cache_manager: Any) -> None:
        """See base. The scheduler itself calls: it is there to publish events."""
        super().bind_kv_cache_manager(kv_cache_manager)
        self._at_scheduler.watch_while_idle(caller_of(SchedulerInterface))
        reset = kv_cache_manager.reset_prefix_cache

        def noticed() -> bool:
            """Whoever has changed the weights resets this cache. vLLM tells a connector only if it is asked to."""
            self._guarded("giving blocks back", self._at_scheduler.reset_begins, _nothing)
            emptied = bool(reset())
            changed = partial(self._at_scheduler.weights_may_have_changed, cache_emptied=emptied)
            self._guarded("forgetting what was computed", changed, _nothing)
            return emptied

        kv_cache_manager.reset_prefix_cache = noticed

    def bind_gpu_block_pool(self, gpu_block_pool: Any) -> None:
        """See base."""
        self._at_scheduler.bind_block_pool(gpu_block_pool)

    def _guarded(self, doing: str, do: Callable[[], T], otherwise: Callable[[], T]) -> T:
        """A bug of ours must not end the engine: whatever is raised is logged in full and counted, and the answer is
        the one of an engine without kvcast."""
        try:
            return do()
        except Exception:  # noqa: BLE001 - see above
            self._at_scheduler.note_failure(doing)
            return otherwise()

    def on_new_request(self, request: Any) -> None:
        """See base."""
        self._guarded("looking a request up", lambda: self._at_scheduler.new_request(request), _nothing)

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int | None, bool]:
        """See base."""
        answer = partial(self._at_scheduler.matched_tokens, request, num_computed_tokens)
        return self._guarded("answering for a request", answer, lambda: (0, False))

    def get_external_cache_hit_sources(self, request: Any, num_external_tokens: int) -> dict[CacheHitSource, int]:
        """See base."""
        return self._at_scheduler.hit_sources(request, num_external_tokens)

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        """See base."""
        half, told = self._at_scheduler, (request, blocks, num_external_tokens)
        self._guarded("ordering a load", partial(half.blocks_allocated, *told), partial(half.fail_load, *told))

    def build_connector_meta(self, scheduler_output: Any) -> KVConnectorMetadata:
        """See base."""
        half = self._at_scheduler
        # Loads that were promised must reach the workers: requests wait for them.
        return self._guarded("ending a schedule", lambda: half.orders(scheduler_output), half.take_orders)

    def update_connector_output(self, connector_output: Any) -> None:
        """See base."""
        reports = partial(self._at_scheduler.reports, connector_output)
        self._guarded("taking workers' reports in", reports, _nothing)

    def request_finished(self, request: Any, block_ids: list[int]) -> tuple[bool, dict[str, Any] | None]:
        """See base. Blocks may be freed: saves keep those they read by vLLM's own counts."""
        finished = partial(self._at_scheduler.request_finished, request)
        return False, self._guarded("ending a request", finished, _nothing)

    def request_finished_all_groups(
        self, request: Any, block_ids: tuple[list[int], ...]
    ) -> tuple[bool, dict[str, Any] | None]:
        """See SupportsHMA."""
        return self.request_finished(request, [])

    def take_events(self) -> Iterable[Any]:
        """See base."""
        return self._guarded("telling routers", self._at_scheduler.take_events, tuple)

    def has_pending_block_frees(self) -> bool:
        """See base."""
        return self._at_scheduler.has_saves

    def has_pending_push_work(self) -> bool:
        """See base: steps go on until the last save's blocks are given back."""
        return self._at_scheduler.has_saves

    def reset_cache(self) -> bool:
        """See base: chunks keep their names unless the weights have changed."""
        self._at_scheduler.weights_may_have_changed(cache_emptied=False)
        return True

    def where(self, tokens: Sequence[int]) -> list[tuple[ChunkKey, Where]]:
        """For tools, not vLLM: see KvcastConnectorScheduler.where."""
        return self._at_scheduler.where(tokens)

    # ------------------------------------------------------------------ worker

    def register_kv_caches(self, kv_caches: dict[str, torch.Tensor]) -> None:
        """See base."""
        self._at_worker.register(kv_caches)

    def unregister_kv_caches(self) -> None:
        """vLLM 0.33, before the engine sleeps: the cache's memory goes."""
        self._at_worker.sleep()

    def restore_kv_caches(self) -> None:
        """vLLM 0.33: the cache's memory is back, at the addresses of before."""
        self._at_worker.wake()

    def bind_connector_metadata(self, connector_metadata: KVConnectorMetadata) -> None:
        """See base: a step begins."""
        super().bind_connector_metadata(connector_metadata)
        self._at_worker.step_begins(self._step_orders())

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        """See base."""
        self._at_worker.start_loads(self._step_orders())

    def wait_for_layer_load(self, layer_name: str) -> None:
        """See base."""
        self._at_worker.wait_for_layer(layer_name)

    def save_kv_layer(self, layer_name: str, kv_layer: torch.Tensor, attn_metadata: Any, **kwargs: Any) -> None:
        """Chunks are saved after the step, in the background."""

    def wait_for_save(self) -> None:
        """See base."""
        self._at_worker.start_saves(self._step_orders())

    def get_transfer_results(self, finished_req_ids: set[str]) -> KVConnectorTransferResults:
        """See base."""
        return self._at_worker.results(self._step_orders())

    def get_block_ids_with_load_errors(self) -> set[int]:
        """See base."""
        return self._at_worker.take_failed_blocks()

    def build_connector_worker_meta(self) -> KVConnectorWorkerMetadata | None:
        """See base."""
        return self._at_worker.take_reports()


def _nothing() -> None:
    """What vLLM is told where there is nothing to tell."""


register()  # MultiConnector looks its children up by name, also when they were configured by module

__all__ = ["KvcastConnector", "SettingsError"]
