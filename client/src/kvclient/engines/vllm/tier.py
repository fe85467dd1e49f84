"""kvcast as a secondary tier below vLLM's own CPU offloading (`SecondaryTierManager`): the second plug.

vLLM's OffloadingConnector keeps chunks in a region of host memory of its own; this tier moves rows of that region to
the pool and back. One copy more than `KvcastConnector` makes, and the pool learns nothing of prefixes, but what vLLM
does around it (several tiers, back-pressure, its metrics) comes for free.
"""

from __future__ import annotations

import functools
import hashlib
import json
import logging
import os
import queue
import time
from collections.abc import Collection, Iterable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import vllm
from vllm.platforms import current_platform
from vllm.v1.kv_offload.base import LookupResult, RequestOffloadingContext
from vllm.v1.kv_offload.tiering.base import JobResult, SecondaryTierManager, TransferJob
from vllm.v1.metrics.cache_hit_source import CacheHitSource

from kvchunk.ids import KEY_BYTES, ChunkKey, Namespace
from kvclient import messages
from kvclient.client import AgentClient, AgentError, AgentUnavailableError, PoolFullError, Status, Where
from kvclient.engines.link import AgentLink
from kvclient.engines.settings import (
    SECRET_FILE_VARIABLE,
    SOCKET_DEFAULT,
    SOCKET_VARIABLE,
    SettingsError,
    tenant_secret,
)
from kvclient.engines.weights import WeightsDigest, WeightsError, digest_of, signature_of

log = logging.getLogger("vllm.kvcast")

ANSWER_FRESH_S = 1.0
"""How long a lookup's answer is believed: requests of one moment share it."""
ANSWERS_MAX = 65536


@dataclass(slots=True)
class _Answer:
    asked_s: float
    known_s: float = 0.0
    """When it was answered; 0: not yet."""
    there: bool = False


class KvcastTier(SecondaryTierManager):
    """Rows of vLLM's host region in the pool, under keys of vLLM's block hashes."""

    cache_hit_source = CacheHitSource.P2P

    def __init__(
        self,
        offloading_spec: Any,
        primary_kv_view: memoryview,
        tier_type: str,
        backpressure_detector: Any = None,
        *,
        socket: str = "",
        weights_digest: str = "",
        packing: str = "",
        tenant_secret_file: str = "",
        load_deadline_s: float = 10.0,
        lookup_timeout_s: float = 0.25,
        threads: int = 4,
    ) -> None:
        """`packing`: text that says how the attention backend packs its pages, where engines differ in it.
        `tenant_secret_file`: as the connector's.

        Raises SettingsError when nothing tells these weights from others, or the secret cannot be read.
        """
        super().__init__(
            offloading_spec=offloading_spec,
            primary_kv_view=primary_kv_view,
            tier_type=tier_type,
            backpressure_detector=backpressure_detector,
        )
        self._weights = _weights(offloading_spec.config.model.name, weights_digest)
        secret = tenant_secret(tenant_secret_file or os.environ.get(SECRET_FILE_VARIABLE, ""))
        self._name_with = functools.partial(_namespace, offloading_spec.config, self.block_size_bytes, packing, secret)
        self._namespace: bytes | None = None
        """None until the digest of the weights is known: nothing is shared until then."""
        self._is_unnamed_for_good = False
        self._rows = np.asarray(primary_kv_view)
        self._deadline_s = load_deadline_s
        self._lookup_timeout_s = lookup_timeout_s
        self._link = AgentLink(AgentClient, socket or os.environ.get(SOCKET_VARIABLE, SOCKET_DEFAULT), log)
        self._lookups = ThreadPoolExecutor(1, thread_name_prefix="kvcast-tier-lookup")
        self._copies = ThreadPoolExecutor(threads, thread_name_prefix="kvcast-tier")
        self._answers: dict[bytes, _Answer] = {}
        self._answered: queue.SimpleQueue[tuple[list[bytes], list[bool]]] = queue.SimpleQueue()
        self._to_ask: list[bytes] = []
        self._jobs: set[Future[None]] = set()
        self._finished: queue.SimpleQueue[JobResult] = queue.SimpleQueue()
        self._unreported_count = 0

    # ------------------------------------------------------------------ lookups

    def lookup(self, key: Any, req_context: Any) -> LookupResult:
        """See base. The first time RETRY; the agent is asked at the end of the step, all keys at once."""
        self._take_answers()
        if not self._is_named():
            return LookupResult.MISS
        now_s = time.monotonic()
        answer = self._answers.get(key)
        if answer is not None and answer.known_s and now_s - answer.known_s <= ANSWER_FRESH_S:
            return LookupResult.HIT if answer.there else LookupResult.MISS
        waited_s = now_s - answer.asked_s if answer is not None and not answer.known_s else 0.0
        if self._link.away or waited_s > self._lookup_timeout_s:
            self._answers.pop(key, None)
            return LookupResult.MISS
        if answer is None or answer.known_s:
            if len(self._answers) >= ANSWERS_MAX:
                self._answers.clear()
            self._answers[key] = _Answer(now_s)
            self._to_ask.append(key)
        return LookupResult.RETRY

    def on_schedule_end(self, context: Any) -> None:
        """See base."""
        if self._to_ask:
            asked, self._to_ask = self._to_ask, []
            self._lookups.submit(self._look_up, asked)

    def _take_answers(self) -> None:
        while not self._answered.empty():
            keys, there = self._answered.get()
            now_s = time.monotonic()
            for key, found in zip(keys, there, strict=True):
                self._answers[key] = _Answer(now_s, now_s, found)

    def _look_up(self, asked: list[bytes]) -> None:
        there = [False] * len(asked)
        client = self._link.client
        if client is not None:
            try:
                for at in range(0, len(asked), messages.KEYS_MAX):
                    keys = [self._key(key) for key in asked[at : at + messages.KEYS_MAX]]
                    there[at : at + len(keys)] = [
                        where not in (Where.NOWHERE, Where.COMPUTING) for where in client.contains(keys)
                    ]
            except AgentUnavailableError as error:
                self._link.connection_lost(client, str(error))
            except AgentError as error:
                log.warning("kvcast: %s", error)
        self._answered.put((asked, there))

    # ------------------------------------------------------------------ jobs

    def submit_store(self, job_metadata: TransferJob) -> None:
        """See base."""
        self._submit(self._store, job_metadata)

    def submit_load(self, job_metadata: TransferJob) -> None:
        """See base."""
        self._submit(self._load, job_metadata)

    def _submit(self, copy: Any, job: TransferJob) -> None:
        self._unreported_count += 1
        future = self._copies.submit(self._run, copy, job)
        self._jobs.add(future)

    def _run(self, copy: Any, job: TransferJob) -> None:
        started_s = time.monotonic()
        done: list[Any] = []
        client = self._link.client
        try:
            if client is not None and self._is_named():
                copy(client, job, done)
        except AgentUnavailableError as error:
            if client is not None:
                self._link.connection_lost(client, str(error))
        except AgentError as error:
            log.warning("kvcast: %s", error)
        except Exception:
            log.exception("kvcast: a job of the tier failed")
            done.clear()
        self._finished.put(
            JobResult(
                job_id=job.job_id,
                success=len(done) == len(job.keys),
                successful_keys=done if job.is_promotion else None,
                transfer_time=time.monotonic() - started_s,
                transfer_bytes=len(done) * self.block_size_bytes,
            )
        )

    def _store(self, client: AgentClient, job: TransferJob, done: list[Any]) -> None:
        for key, row in zip(job.keys, job.chunk_ids, strict=True):
            try:
                client.put(self._key(key), None, self._row(int(row)))
            except PoolFullError:
                return
            done.append(key)

    def _load(self, client: AgentClient, job: TransferJob, done: list[Any]) -> None:
        """Each key by itself counts; a missing one does not end the others."""
        wanted = list(zip(job.keys, job.chunk_ids, strict=True))
        give_up_s = time.monotonic() + self._deadline_s
        while wanted:
            part = wanted[: messages.KEYS_MAX]
            keys = [self._key(key) for key, _ in part]
            with client.fetch_stream(keys, deadline_s=max(0.001, give_up_s - time.monotonic())) as got:
                for place, view in enumerate(got):
                    self._row(int(part[place][1]))[:] = view
                # The lease must have held until the copy was over; an agent that answers has kept it.
                client.contains(keys[:1])
                done += [key for key, _ in part[: got.count]]
                skipped = 0 if got.outcome is Status.OK else 1
                wanted = wanted[got.count + skipped :]

    def _row(self, row: int) -> memoryview:
        return memoryview(self._rows[row]).cast("B")

    def _is_named(self) -> bool:
        """Whether rows have keys yet."""
        if self._namespace is None and not self._is_unnamed_for_good:
            try:
                digest = self._weights.get()
            except WeightsError as error:
                self._is_unnamed_for_good = True
                log.error("kvcast: nothing is shared: %s", error)
                return False
            if digest is not None:
                self._namespace = self._name_with(digest)
        return self._namespace is not None

    def _key(self, key: bytes) -> ChunkKey:
        assert self._namespace is not None, "asked for before rows have keys"
        return ChunkKey(hashlib.blake2b(key, digest_size=KEY_BYTES, key=self._namespace).digest())

    def get_finished_jobs(self) -> Iterable[JobResult]:
        """See base."""
        self._take_answers()
        results = []
        while not self._finished.empty():
            results.append(self._finished.get())
        self._unreported_count -= len(results)
        self._jobs = {future for future in self._jobs if not future.done()}
        return results

    def has_pending_work(self) -> bool:
        """See base."""
        return self._unreported_count > 0

    def drain_jobs(self) -> None:
        """See base."""
        wait(self._jobs)

    # ------------------------------------------------------------------ requests, end

    def on_new_request(self, req_context: Any) -> RequestOffloadingContext:
        """See base."""
        return RequestOffloadingContext()

    def touch(self, keys: Collection[Any], req_context: Any) -> None:
        """See base: the agent counts uses by itself."""

    def shutdown(self) -> None:
        """See base."""
        self._link.close()
        self._lookups.shutdown(wait=True, cancel_futures=True)
        self._copies.shutdown(wait=True, cancel_futures=True)
        self._rows = np.empty((0, 0), dtype=np.int8)


def _weights(model: str, configured: str) -> WeightsDigest:
    """Raises SettingsError when nothing tells these weights from others."""
    if configured:
        return WeightsDigest(lambda: configured)
    try:
        signature_of(model)
    except WeightsError as error:
        raise SettingsError(str(error)) from error
    return WeightsDigest(lambda: digest_of(model))


def _namespace(config: Any, row_bytes: int, packing: str, secret: bytes, digest: str) -> bytes:
    """Everything besides the tokens that decides a row's bytes; vLLM's hashes bind adapter, salt and media."""
    model = config.model.name
    configuration = Path(model, "config.json")
    processor = sorted(name for name, there in torch.cpu.get_capabilities().items() if there is True)
    facts = [
        os.path.basename(model.rstrip("/")),
        digest,
        configuration.read_text() if configuration.is_file() else "",
        config.model.dtype,
        config.cache.tokens_per_hash,
        config.cache.blocks_per_chunk,
        [[group.tokens_per_block, list(group.layer_names)] for group in config.groups],
        config.worker_kv_bytes_per_block,
        row_bytes,
        [config.parallel.tp_size, config.parallel.pp_size, config.parallel.world_size],
        [config.replicated_layout, config.canonical_layout, str(config.kv_cache_layout)],
        [str(current_platform.device_type), processor if current_platform.is_cpu() else [], packing],
        vllm.__version__,
    ]
    return Namespace(model="kvcast-tier", extra=json.dumps(facts), tenant_secret=secret).digest()
