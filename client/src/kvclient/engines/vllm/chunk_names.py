"""How an engine's chunks are named: by the model, its weights and what each worker's cache looks like.

Chunks have names once every worker has reported its cache and all bytes of the weights have been read, and while it is
certain which weights the engine computes with (`core.generations`). Without names the connector caches nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from itertools import product
from typing import Any

from kvchunk.kv_layout import LOSSY, KvTerms, parse_layout, with_terms
from kvclient.engines.core.generations import Generations, Told
from kvclient.engines.core.identity import EngineIdentity, Shard
from kvclient.engines.link import AgentLink
from kvclient.engines.settings import Settings, SettingsError
from kvclient.engines.vllm.bindings import RequestKeys
from kvclient.engines.vllm.facts import (
    CacheGroups,
    ShardFacts,
    WorkerRank,
    chunks_namespace,
    make_identity,
    weights_digest,
)
from kvclient.engines.vllm.media import MediaDigests
from kvclient.engines.weights import WeightsError, version_in
from kvclient.polled_client import PolledClient

log = logging.getLogger("vllm.kvcast")

WEIGHTS_WAIT_S = 1.0
"""How long an engine's start waits for the digest of its weights: long enough for small models, too short to matter for
large ones."""
SILENT_STEPS_MAX = 64
"""Workers report with the first step that they take part in. The scheduler makes several steps before it sees the
reports of the first."""


class ChunkNames:
    """The names of one engine's chunks; `keys` is None until there are any."""

    def __init__(
        self,
        vllm_config: Any,
        settings: Settings,
        groups: CacheGroups,
        link: AgentLink[PolledClient],
    ) -> None:
        """`link`: named in the line that logs the names. Raises SettingsError."""
        self._vllm_config = vllm_config
        self._settings = settings
        self._block_tokens = groups.block_tokens
        self._parts = groups.parts
        self._link = link
        self._weights, self._files = weights_digest(vllm_config, settings)
        parallel = vllm_config.parallel_config
        self._generations = Generations(
            product(range(parallel.pipeline_parallel_size), range(self._parts.workers_count)),
            has_cache=bool(vllm_config.cache_config.enable_prefix_caching),
        )
        self._generation = ""
        """Of the weights of now; empty: they are those that were loaded."""
        self._workers: dict[WorkerRank, ShardFacts] = {}
        """Reports so far."""
        self._shards: tuple[Shard, ...] = ()
        """The shards that all workers keep together; empty until all have reported."""
        self._silent_steps = 0
        self._given_up = False
        self._media = MediaDigests(trusted=vllm_config.ec_transfer_config is None)
        self.keys: RequestKeys | None = None
        self.namespace = ""
        """The namespace of chunks: `kvcast ls` shows it, and starting engines ask for it. Empty: not known yet."""
        try:
            self._weights.get(WEIGHTS_WAIT_S)
        except WeightsError as error:
            raise SettingsError(str(error)) from error

    @property
    def awaits_workers(self) -> bool:
        """Whether workers still have to report their caches or their weights, with the next step or the one after.
        Until then it is open whether chunks will have names."""
        return not self._given_up and not (self._shards and self._generations.is_settled)

    @property
    def question(self) -> int:
        """The last one about the weights, which workers answer with the next step."""
        return self._generations.question

    def weights_may_have_changed(self, *, cache_emptied: bool) -> None:
        """Nothing has a name until all workers have told their weights. `cache_emptied`: vLLM's own cache is empty."""
        self._generations.weights_may_have_changed(cache_emptied=cache_emptied)
        self._silent_steps = 0
        self.keys = None

    def weights_told(self, workers: Mapping[WorkerRank, tuple[int, str]]) -> set[Told]:
        """What the checksums of these workers change."""
        told = {self._generations.worker_told(rank, *answer) for rank, answer in workers.items()}
        if told - {Told.NOTHING}:
            self.keys = None
        if Told.CHANGED in told:
            version = version_in(self._settings.weights_version_file) if self._settings.weights_version_file else ""
            self._generation = self._generations.name(version)
            self.namespace = ""
            self._media.weights_changed()
            log.info("kvcast: the weights have changed: %s", self._generation or "they are those of the start again")
        if Told.CHANGED in told and self._generations.is_stale:
            log.warning(
                "kvcast: vLLM's own prefix cache has KV of other weights: nothing is loaded or saved until "
                "reset_prefix_cache() has emptied it"
            )
        return told

    def workers_reported(self, workers: Mapping[WorkerRank, ShardFacts]) -> None:
        """These workers have reported their caches."""
        self._workers.update(workers)
        for rank, told in workers.items():
            self._generations.worker_loaded(rank, told.weights)
            if unread := sorted(told.files - self._files):
                self._give_up(
                    f"vLLM has loaded {', '.join(unread)}, which kvcast does not read for this model: set "
                    "weights_digest to any text that changes whenever the weights do"
                )
        parallel = self._vllm_config.parallel_config
        parts = self._parts
        shards = []
        for pipeline_rank in range(parallel.pipeline_parallel_size):
            for part in range(parts.count):
                facts = self._workers.get((pipeline_rank, parts.first_holder(part)))
                if facts is None:
                    return
                shards.append(
                    Shard(
                        part,
                        parts.count,
                        pipeline_rank,
                        parallel.pipeline_parallel_size,
                        facts.layout + parts.context_name(part),
                        facts.chunk_bytes,
                        facts.model,
                    )
                )
        self._shards = tuple(shards)
        if self.find() is None and not self._given_up:
            log.info("kvcast: nothing is cached until the background reader has read all bytes of the weights")

    def step(self) -> None:
        """One more step is scheduled."""
        if self.awaits_workers:
            self._silent_steps += 1
            if self._silent_steps > SILENT_STEPS_MAX:
                self._give_up(
                    "a worker did not report its cache or its weights: install the same release of kvcast on all nodes"
                )

    @property
    def shard_bytes(self) -> int:
        """Bytes of one part of a chunk; 0 until the workers have reported."""
        return self._shards[0].chunk_bytes if self._shards else 0

    @property
    def state_bytes(self) -> int:
        """Bytes of the recurrent layers' states at one worker; 0 until then, and where there are none."""
        return next((facts.state_bytes for facts in self._workers.values()), 0)

    def find_namespace(self, wait_s: float) -> str | None:
        """As `namespace`, also before workers have reported; from any thread. None: the digest of the weights is not
        known after `wait_s`. Raises WeightsError, SettingsError."""
        if self._settings.kv_form == LOSSY and not self._shards:
            return None  # the namespace tells how numbers lie in the workers' caches
        if not self.namespace and (digest := self._weights.get(wait_s)) is not None:
            identity = self._identity(digest, ())
            self.namespace = self._with_terms(chunks_namespace(self._vllm_config, self._parts, identity))
        return self.namespace or None

    def _with_terms(self, namespace: str) -> str:
        """The namespace, with a note where this engine's KV may be rounded. Raises SettingsError."""
        if self._settings.kv_form != LOSSY:
            return namespace
        layouts = {facts.kv_layout for facts in self._workers.values()}
        text = layouts.pop()
        if layouts or not text:
            raise SettingsError(
                "kv_form is lossy, and kvcast cannot tell how the numbers lie in the caches of this engine's workers "
                f"({self._workers[0, 0].backends}): leave kv_form at exact"
            )
        return with_terms(namespace, KvTerms(parse_layout(text), may_lose=True))

    def find(self) -> RequestKeys | None:
        """The keys, if there are any by now. If there will never be any, one line of the log says why."""
        if self.keys is None and not self.awaits_workers and not self._given_up and not self._generations.is_stale:
            try:
                self._make()
            except (WeightsError, SettingsError) as error:
                self._give_up(str(error))
        return self.keys

    def _give_up(self, reason: str) -> None:
        self._given_up = True
        log.error("kvcast: nothing is cached: %s", reason)

    def _identity(self, digest: str, shards: tuple[Shard, ...]) -> EngineIdentity:
        return make_identity(
            self._vllm_config, self._settings, self._block_tokens, digest, shards, generation=self._generation
        )

    def _make(self) -> None:
        """Make the keys, once the weights are known. Raises WeightsError, SettingsError."""
        digest = self._weights.get()
        if digest is None:
            return
        identity = self._identity(digest, self._shards)
        self.namespace = self._with_terms(chunks_namespace(self._vllm_config, self._parts, identity))
        self.keys = RequestKeys(identity, self._media)
        log.info(
            "kvcast: %s, weights %s, layout %s, chunks of %d tokens and %d bytes in %d shard(s), agent at %s%s",
            identity.model,
            digest,
            self._shards[0].layout,
            self._settings.chunk_tokens,
            identity.chunk_bytes,
            len(self._shards),
            self._settings.socket,
            " (away)" if self._link.away else "",
        )
