"""The connector's half in a worker: starts copies, reports those that ended."""

from __future__ import annotations

import logging
import sys
import time
from dataclasses import replace
from typing import Any

import torch
from vllm.distributed import get_pcp_group, get_pp_group, get_tensor_model_parallel_rank
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorTransferResults
from vllm.platforms import current_platform
from vllm.v1.worker.worker_base import WorkerBase

from kvclient.client import AgentClient
from kvclient.engines.core.requests import Load
from kvclient.engines.device import Staging
from kvclient.engines.layout import LayoutError, paged_layers
from kvclient.engines.link import AgentLink
from kvclient.engines.paged import GroupedLayers, PagedLayers, StateLayers
from kvclient.engines.pinned import CudaRegistrar, RegisteredMemory, connecting
from kvclient.engines.settings import Settings
from kvclient.engines.transfers import CopyRules, LayerGate, Transfers
from kvclient.engines.vllm.callers import caller_of
from kvclient.engines.vllm.facts import CacheGroups, files_loaded, layer_views, shard_facts, state_views
from kvclient.engines.vllm.metadata import NO_REPORTS, StepOrders, StepReports
from kvclient.engines.vllm.metrics import KvcastStats
from kvclient.engines.vllm.model import WorkersModel

LOCAL_DEADLINE_S = 1.0
IDLE_WAIT_S = 0.001
"""How long vLLM itself sleeps between steps that compute nothing. Waiting instead lets the copying threads run and
takes no turns with them."""

log = logging.getLogger("vllm.kvcast")


class KvcastConnectorWorker:
    """One worker's connector."""

    def __init__(self, vllm_config: Any, kv_cache_config: Any, settings: Settings, groups: CacheGroups) -> None:
        self._vllm_config = vllm_config
        self._kv_cache_config = kv_cache_config
        self._settings = settings
        self._groups = groups
        self._blocks_in_chunk = settings.chunk_tokens // groups.block_tokens
        # The scheduler says when the agent goes, unless this worker is on a node of its own, with an agent of its own.
        self._spans_nodes = vllm_config.parallel_config.nnodes > 1
        self._memory = self._device_memory()
        self._link = AgentLink(
            AgentClient if self._memory is None else connecting(self._memory),
            settings.socket,
            log,
            level=logging.WARNING if self._spans_nodes else logging.DEBUG,
            answer_timeout_s=settings.answer_timeout_s,
        )
        self._transfers: Transfers | None = None
        self._asleep: Transfers | None = None
        """They, while the engine sleeps."""
        self._layers: dict[str, int] = {}
        self._gate: LayerGate | None = None
        self._async_loads: set[str] = set()
        self._failed_blocks: set[int] = set()
        self._reports = StepReports()
        self._outages_told = 0
        self._rank = (0, 0)
        self._model: WorkersModel | None = None
        self._checksum = ""
        """Of the weights that this worker computes with."""
        self._answered = 0
        """The last question about them that was answered."""
        self._outdated = -1
        """Orders that know no later question have keys of other weights: they are not carried out."""

    def register(self, kv_caches: dict[str, torch.Tensor]) -> None:
        """The paged cache is there, and the model is loaded. Raises LayoutError for a cache that cannot be copied by
        pages, and for a worker that does not show its model."""
        parts = [
            layer_views(self._kv_cache_config, kv_caches, self._groups, part)
            for part in range(self._groups.parts.groups_each)
        ]
        first = next(iter(parts[0][0].values()))
        staging = Staging(first.device, lanes=self._settings.threads + 1, memory=self._memory)
        made = [self._paged(groups, staging) for groups in parts]
        states = [paged_layers(views, staging) for views in state_views(self._kv_cache_config, kv_caches, self._groups)]
        self._layers = {name: index for index, name in enumerate(parts[0][0])}
        chunk_bytes = made[0].chunk_bytes(self._blocks_in_chunk)
        if first.device.type != "cpu":
            log.info("kvcast: %d bytes of the device are for copies", staging.prepare(chunk_bytes))
        facts = shard_facts(self._vllm_config, self._kv_cache_config, kv_caches, chunk_bytes, self._groups)
        pipeline_rank, worker_rank = get_pp_group().rank_in_group, self._worker_rank()
        self._rank = pipeline_rank, worker_rank
        worker = caller_of(WorkerBase)
        if worker is None:
            raise LayoutError("kvcast cannot see the model of this worker: it is none of vLLM's own kinds of workers")
        self._model = WorkersModel(worker, self._vllm_config, self.sleep, self.wake)
        self._checksum = self._model.take_checksum()
        files = files_loaded(self._vllm_config, self._settings, self._model)
        self._reports.shards[self._rank] = replace(
            facts, model=self._model.digest(), weights=self._checksum, files=files
        )
        held = self._groups.parts.of(worker_rank)
        self._transfers = Transfers(
            self._link,
            made,
            StateLayers(states) if states else None,
            CopyRules(
                shards=tuple(pipeline_rank * self._groups.parts.count + part for part in held.parts),
                writes=held.writes,
                blocks_in_chunk=self._blocks_in_chunk,
                # The scheduler leases promised chunks on its own node; other nodes have to fetch them first.
                deadline_s=self._settings.load_deadline_s if self._spans_nodes else LOCAL_DEADLINE_S,
                threads=self._settings.threads,
            ),
            log,
            time.monotonic,
        )

    @staticmethod
    def _device_memory() -> RegisteredMemory | None:
        """What this worker's device copies from and to by itself; None: it is none of CUDA's."""
        if not current_platform.is_cuda():
            return None
        return RegisteredMemory(CudaRegistrar(torch.device("cuda", torch.cuda.current_device())), log)

    def _paged(self, groups: list[dict[str, torch.Tensor]], staging: Staging) -> PagedLayers:
        made = [paged_layers(list(views.values()), staging) for views in groups]
        return GroupedLayers(made, [self._blocks_in_chunk, *self._groups.kept_blocks]) if len(made) > 1 else made[0]

    def _worker_rank(self) -> int:
        """Its number within its pipeline stage."""
        parts = self._groups.parts
        prefill_rank = get_pcp_group().rank_in_group if parts.prefill_contexts > 1 else 0
        return int(prefill_rank * parts.tensor_size + get_tensor_model_parallel_rank())

    def step_begins(self, orders: StepOrders) -> None:
        """Before anything is computed: answer a question about the weights, and notice when they changed."""
        if self._model is None or not (orders.question > self._answered or self._model.weights_touched):
            return
        try:
            self._look_at_weights(self._model, orders)
        except Exception:  # a bug of ours must not end the engine; without an answer nothing is shared
            log.exception("kvcast: the checksum of the weights failed: this worker loads and saves nothing any more")
            self._outdated = sys.maxsize

    def _look_at_weights(self, model: WorkersModel, orders: StepOrders) -> None:
        before, self._checksum = self._checksum, model.take_checksum()
        is_asked = orders.question > self._answered
        if is_asked:
            self._answered = orders.question
            if self._transfers is not None:
                # The scheduler has given their blocks back: what this step computes may overwrite them.
                self._transfers.abandon_saves()
        if before != self._checksum:
            self._outdated = self._answered - is_asked
        if is_asked or before != self._checksum:
            self._reports.weights[self._rank] = self._answered, self._checksum

    def _trusted(self, orders: StepOrders) -> StepOrders:
        """Orders without what stands on keys of other weights: such loads and saves fail."""
        if orders.question > self._outdated:
            return orders
        for save in orders.saves:
            self._reports.saves[save.save] = (1, 1)
        return replace(
            orders,
            loads=[Load(load.request, (), 0, load.block_ids) for load in orders.loads],
            layerwise_loads=[Load(load.request, (), 0, load.block_ids) for load in orders.layerwise_loads],
            saves=[],
        )

    def sleep(self) -> None:
        """Copy nothing until `wake`: the cache's memory goes. Idempotent; before there is a cache nothing happens.

        Raises RuntimeError, with nothing changed, while copies do not end."""
        if self._transfers is not None:
            if not self._transfers.await_copies(self._settings.load_deadline_s + self._settings.answer_timeout_s):
                raise RuntimeError("kvcast: the engine cannot sleep: copies of its KV cache are under way; ask again")
            self._asleep, self._transfers = self._transfers, None

    def wake(self) -> None:
        """The cache is there again. Idempotent."""
        if self._asleep is not None:
            self._transfers, self._asleep = self._asleep, None

    def start_loads(self, orders: StepOrders) -> None:
        """Begin this step's loads."""
        self._gate = None
        if self._transfers is None or not orders.is_anything:
            return
        orders = self._trusted(orders)
        for load in orders.loads:
            self._async_loads.add(load.request)
            self._transfers.load(load)
        for load in orders.layerwise_loads:
            self._start_layerwise(self._transfers, load)

    def _start_layerwise(self, transfers: Transfers, load: Load) -> None:
        if self._gate is None:
            self._gate = LayerGate(len(self._layers))
        self._gate.expect()
        transfers.load(load, self._gate)

    def wait_for_layer(self, layer_name: str) -> None:
        """Let the forward pass into a layer when its KV is there."""
        if self._gate is not None:
            layer = self._layers.get(layer_name)
            if layer is not None:
                self._gate.wait(layer)

    def start_saves(self, orders: StepOrders) -> None:
        """Begin this step's saves: its forward pass is submitted. Loads for it are over when this returns."""
        if not orders.is_anything:
            return
        if self._gate is not None:
            self._gate.wait_all()
            self._gate = None
        if self._transfers is not None:
            self._transfers.save(self._trusted(orders).saves, orders.namespace)
            if orders.holds_answers:
                self._transfers.await_saves(self._settings.answer_timeout_s)

    def results(self, orders: StepOrders) -> KVConnectorTransferResults:
        """Requests whose asynchronous loads ended."""
        transfers = self._transfers
        if transfers is None:
            return KVConnectorTransferResults()
        if orders.is_idle:
            if self._async_loads:
                transfers.await_load(IDLE_WAIT_S)
            elif not orders.has_requests:
                transfers.await_saves(IDLE_WAIT_S)
        if not transfers.has_results:
            return KVConnectorTransferResults()
        received: set[str] = set()
        failed: set[str] = set()
        results = transfers.take_results()
        for request, whole in results.loads.items():
            self._reports.loads[request] = (1, 0 if whole else 1)
            if request in self._async_loads:
                self._async_loads.discard(request)
                received.add(request)
                if not whole and self._groups.is_hybrid:
                    failed.add(request)
        for save, good in results.saves.items():
            self._reports.saves[save] = (1, 0 if good else 1)
        if not self._groups.is_hybrid:  # with several groups vLLM takes requests, not blocks
            self._failed_blocks |= results.failed_blocks
        return KVConnectorTransferResults(finished_recving=received, failed_recving=failed)

    def take_failed_blocks(self) -> set[int]:
        """Blocks whose load failed."""
        if not self._failed_blocks:
            return set()
        failed, self._failed_blocks = self._failed_blocks, set()
        return failed

    def take_reports(self) -> StepReports | None:
        """What the scheduler is to know."""
        if self._reports == NO_REPORTS:
            return None
        reports, self._reports = self._reports, StepReports()
        return reports

    def stats(self) -> KvcastStats | None:
        """What was moved since the last call."""
        outages_count = self._link.outages_count - self._outages_told
        if self._transfers is None or not (self._transfers.has_figures or outages_count):
            return None
        stats = KvcastStats()
        figures = self._transfers.take_figures()
        for key, amount in (
            ("loaded_bytes", figures.loaded_bytes),
            ("saved_bytes", figures.saved_bytes),
            ("failed_blocks", figures.failed_blocks),
            ("internal_errors", figures.errors_count),
        ):
            if amount:
                stats.add(key, amount)
        for key, seconds in (("load_seconds", figures.load_s), ("save_seconds", figures.save_s)):
            for each in seconds:
                stats.observe(key, each)
        if figures.saved_chunks:
            stats.add_labelled("saves", "stored", figures.saved_chunks)
        for outcome, count in figures.saves_failed.items():
            stats.add_labelled("saves", outcome, count)
        if outages_count:
            stats.add("outages", outages_count)
            self._outages_told += outages_count
        return None if stats.is_empty() else stats

    def close(self) -> None:
        """End everything."""
        self._link.close()
        self.wake()
        if self._transfers is not None:
            self._transfers.close()
